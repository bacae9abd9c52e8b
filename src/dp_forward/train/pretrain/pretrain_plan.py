"""The plan of a pre-training run, from a TOML file or flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.train.plan_base import check_settings
from dp_forward.train.pretrain.pretraining import PretrainSettings
from dp_forward.train.pretrain.schedule import PretrainPace

__all__ = ["PretrainPlan"]


@dataclass(frozen=True, kw_only=True)
class PretrainPlan(PretrainPace):
    """What decides a pre-training run: model and corpus by name, the noise by its budget, and the pace."""

    model: str = "minilm"
    corpus: str = "movie-reviews"
    cut: str = "encoder.3"
    mechanism: str = "privunit"
    epsilon: float | None = None
    delta: float | None = None
    norm: float = 1.0
    threshold_share: float | None = None
    length: int = 64

    @property
    def settings(self) -> PretrainSettings:
        """The same with the mechanism built; ``mechanism = "none"`` is the control without noise."""
        noise = None
        if self.mechanism != "none":
            if self.epsilon is None:
                raise InvalidInput(
                    "epsilon", "be given", None, "Take the one of the later task; try --epsilon 8."
                )
            noise = NoiseSpec(
                mechanism=self.mechanism,
                epsilon=self.epsilon,
                delta=self.delta,
                norm=self.norm,
                threshold_share=self.threshold_share,
                rows=self.length,
            ).build()
        shared = {item.name for item in fields(PretrainSettings)} - {"mechanism"}
        return PretrainSettings(mechanism=noise, **{name: getattr(self, name) for name in shared})

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> PretrainPlan:
        """From JSON or TOML; an unknown key or a wrong type is an error."""
        check_settings(cls, settings)
        return cls(**dict(settings))
