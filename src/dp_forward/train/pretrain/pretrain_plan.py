"""Plan of a pre-training run: the public text, the cut, the noise of the later task, how long to train."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dp_forward.errors import refuse_if
from dp_forward.privacy import NoiseSpec, checks
from dp_forward.train.plan_base import COUNT, COUNT_OR_ZERO, POSITIVE, PlanBase, setting

__all__ = ["PretrainPlan"]

_LENGTH = partial(checks.count, at_least=8, remedy="Use the length n of the later task, such as 128.")


def _check_least_noise(name: str, value: float) -> None:
    checks.positive(name, value, remedy="Use 1 for all of the noise, or 0.03.")
    refuse_if(value > 1, name, "be 1 or less", value, "1 is all of the noise.")


@dataclass(frozen=True, kw_only=True)
class PretrainPlan(PlanBase):
    """What decides a pre-training run.

    Edges:
        ``mechanism="none"`` trains without bound and noise, as a control. ``head_steps`` counts only where
        the checkpoint has no head. With ``least_noise`` below 1 each block has a share of the noise between
        that and all of it, so that it forgets less; the losses are through all of it.
    """

    retired: ClassVar[dict[str, object]] = {
        "epochs": None,
        "draws": 1,
        "mask_rate": 0.15,
        "freeze_front": False,
        "head_alone": False,
    }
    model: str = setting("minilm", "A masked LM or encoder of Hugging Face.", "usual")
    corpus: str = setting("movie-reviews", "Public text: a file, a folder or hf:NAME[:CONFIG].", "usual")
    cut: str = setting("encoder.3", "Where the noise is added: see dpf cuts MODEL.", "usual")
    mechanism: str = setting("privunit", "Which noise, or none.", "usual", short="-m")
    epsilon: float | None = setting(
        None, "The privacy budget of the later task; there is no default.", "usual", short="-e"
    )
    delta: float | None = setting(
        None, "Delta of the budget [1e-5 for Gaussian noise, else 0].", "usual", short="-d"
    )
    norm: float = setting(1.0, "C, the norm bound at the cut.")
    threshold_share: float | None = setting(None, "PrivUnit's t as a share of t* [1].", "advanced")
    length: int = setting(64, "Tokens of a block of text.", "usual", _LENGTH)
    steps: int = setting(
        help="Training steps; required.", group="usual", check=COUNT_OR_ZERO, missing="Use steps=10000."
    )
    batch: int = setting(32, "Blocks per step.", "usual", COUNT)
    learning_rate: float = setting(1e-4, "Learning rate of those steps.", "advanced", POSITIVE)
    least_noise: float = setting(
        0.03, "Smallest share of the noise that a block gets.", "advanced", _check_least_noise
    )
    head_steps: int = setting(
        500, "Steps to train a missing masked-LM head first.", "advanced", COUNT_OR_ZERO
    )
    head_learning_rate: float = setting(5e-4, "Of those steps.", check=POSITIVE)
    bf16: bool = setting(False, "Numbers in training.", "advanced", switch="--bf16/--fp32")
    seed: int = setting(0, "Seed of masks, order and fresh weights.", "advanced", COUNT_OR_ZERO)
    save_every: int = setting(500, "Steps between two checkpoints.", check=COUNT, decides=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "Take the one of the later task; try --epsilon 8."
        refuse_if(self.mechanism != "none" and self.epsilon is None, "epsilon", "be given", None, remedy)

    @property
    def noise(self) -> NoiseSpec | None:
        """The choice of noise; None for the control without."""
        if self.mechanism == "none":
            return None
        assert self.epsilon is not None
        same: Any = {name: getattr(self, name) for name in ("mechanism", "delta", "norm", "threshold_share")}
        return NoiseSpec(epsilon=self.epsilon, rows=self.length, **same)
