"""How long, how fast and on how much of the noise to pre-train: what a plan and its settings share."""

from __future__ import annotations

from dataclasses import dataclass

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count, positive, probability

__all__ = ["PretrainPace"]


@dataclass(frozen=True, kw_only=True)
class PretrainPace:
    """Exactly one of ``steps`` and ``epochs`` says for how long.

    Edges:
        ``head_steps`` counts only where the checkpoint has no head; ``head_alone`` keeps the rest of the
        model as it is meanwhile. With ``freeze_front`` the front never moves (nor does a decoder tied to its
        token table, nor a block that ALBERT shares with it). With ``least_noise`` below 1 each block has a
        share of the noise between that and all of it, so that it forgets less; the losses are through all of
        it. It counts with noise only.
    """

    length: int = 128
    steps: int | None = None
    epochs: int | None = None
    batch: int = 32
    learning_rate: float = 1e-4
    draws: int = 1
    mask_rate: float = 0.15
    least_noise: float = 0.03
    freeze_front: bool = False
    head_steps: int = 500
    head_learning_rate: float = 5e-4
    head_alone: bool = False
    bf16: bool = False
    seed: int = 0
    save_every: int = 500

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            given = "both" if self.steps is not None else "neither"
            raise InvalidInput("steps", "be given, or epochs, and not both", given, "Use steps=10_000.")
        if self.steps is not None:
            count("steps", self.steps, at_least=0, remedy="Use 10_000, or 0 to train the head only.")
        if self.epochs is not None:
            count("epochs", self.epochs, remedy="Use 1 or more passes over the corpus.")
        count("length", self.length, at_least=8, remedy="Use the length n of the later task, such as 128.")
        for name in ("batch", "draws", "save_every"):
            count(name, getattr(self, name), remedy="Use 1 or more.")
        count("head_steps", self.head_steps, at_least=0, remedy="Use 500, or 0 for a random head.")
        count("seed", self.seed, at_least=0, remedy="Use 0.")
        probability("mask_rate", self.mask_rate, remedy="BERT uses 0.15.")
        positive("least_noise", self.least_noise, remedy="Use 1 for all of the noise, or 0.03.")
        if self.least_noise > 1:
            raise InvalidInput("least_noise", "be 1 or less", self.least_noise, "1 is all of the noise.")
        for name in ("learning_rate", "head_learning_rate"):
            positive(name, getattr(self, name), remedy="Use 1e-4.")
