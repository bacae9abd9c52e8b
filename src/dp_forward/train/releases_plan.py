"""The plan of a provider that trains from releases: how the back trains, and nothing about texts.

What concerns texts (task, cut, noise, budget, regime) was decided when they were released, and is read from
the corpus. A plan that says it again could only contradict it, so it is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.noise_spec import DEFAULT_DELTA
from dp_forward.train.defaults import pace_from_releases
from dp_forward.train.plan import Plan, Precision, check_settings

__all__ = ["ReleasesPlan"]

_PLACES = ("releases", "model")
"""Where things lie is not part of what a run is; what lies there goes into the digest instead."""


@dataclass(frozen=True, kw_only=True)
class ReleasesPlan:
    """How a back trains on a released corpus. None means: by the rule of `defaults`."""

    releases: str
    """The folder of a released corpus, or of a collection."""
    model: str
    """Where the back starts from: a run, what `dpf split` made, or a back folder."""
    epochs: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    head_learning_rate: float | None = None
    weight_decay: float = 0.01
    average: float = 0.0
    """Decay of the moving average of the weights that is kept in the end; 0 keeps the last weights."""
    lora_rank: int = 0
    held_out: float = 0.1
    """The share of the records that is never trained on and tells how good the back is; 0 for none."""
    central_delta: float = DEFAULT_DELTA
    """For the central promise of a corpus that came through a shuffler; it touches no other promise."""
    seed: int = 0
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "head_learning_rate"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name), remedy="Leave it out for the default.")
        if self.batch is not None:
            checks.count("batch", self.batch, remedy="Leave it out for the default.")
        for name in ("lora_rank", "seed"):
            checks.count(name, getattr(self, name), at_least=0, remedy="Leave it out for the default.")
        checks.nonnegative("weight_decay", self.weight_decay, remedy="Use 0 for none.")
        checks.delta(self.central_delta, name="central_delta", zero=False)
        if not 0 <= self.average < 1:
            raise InvalidInput("average", "lie in [0, 1)", self.average, "Use 0 for none, or 0.999.")
        if not 0 <= self.held_out < 1:
            raise InvalidInput("held_out", "lie in [0, 1)", self.held_out, "Use 0 to train on all.")
        if self.precision not in get_args(Precision):
            raise InvalidInput("precision", "be auto, fp32 or bf16", repr(self.precision), "Use auto.")

    def filled(self, cut: str) -> ReleasesPlan:
        """The effective plan for a back at this cut."""
        pace = pace_from_releases(cut)
        return replace(self, **{name: value for name, value in pace.items() if getattr(self, name) is None})

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def digest(self, *, back: str, corpus: str) -> str:
        """SHA-256 of what decides the result: the settings, the digest of the back, and the corpus."""
        deciding = {name: value for name, value in self.as_dict().items() if name not in _PLACES}
        whole = {**deciding, "back": back, "corpus": corpus}
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> ReleasesPlan:
        """From JSON, TOML or flags; what the corpus says already, and unknown keys, are refused."""
        known = {item.name for item in fields(cls)}
        for item in fields(Plan):
            if item.name in settings and item.name not in known:
                name = item.name.replace("_", "-")
                raise InvalidInput(
                    name, "be left out with --from-releases", settings[item.name], _why_not(item.name)
                )
        check_settings(cls, settings)
        if settings.get("model") is None:
            raise InvalidInput(
                "model", "be given with --from-releases", None, "Name the run or back folder to start from."
            )
        return cls(**dict(settings))


def _why_not(name: str) -> str:
    if name in ("early_stopping", "evaluation_split", "evaluation_limit", "evaluation_draws"):
        return "The back is measured on held-out records: --set held_out=0.1."
    return "It was decided when the texts were released."
