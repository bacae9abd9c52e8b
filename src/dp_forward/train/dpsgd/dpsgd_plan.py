"""Plan of a DP-SGD run: the task, the budget of the trained weights, and how long to train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from dp_forward.privacy import checks
from dp_forward.train.plan_base import COUNT, COUNT_OR_ZERO, POSITIVE, TaskSettings, choice_of, setting

__all__ = ["DpSgdPlan"]

Mode = Literal["hooks", "ghost"]

_MODE = choice_of(*get_args(Mode), remedy="Use hooks.")


@dataclass(frozen=True, kw_only=True)
class DpSgdPlan(TaskSettings):
    """What decides a run of the baseline.

    Edges:
        ``seed`` fixes what is public (a fresh head, dropout); the noise has no seed, see
        `private_optimizer`. A step sums over its whole batch, so ``micro_batch`` decides nothing.
    """

    retired: ClassVar[dict[str, object]] = {"trainable": "frozen-embeddings", "lora_rank": 8}
    model: str = setting("minilm", "A Hugging Face name or folder.", "usual")
    epsilon: float = setting(
        help="Central epsilon of the trained weights. Required.",
        group="usual",
        short="-e",
        check=lambda name, value: checks.epsilon(value),
        missing="There is no default for a promise; try --epsilon 8.",
    )
    delta: float = setting(
        1e-5, "Delta of the budget.", "usual", lambda _, value: checks.delta(value, zero=False), short="-d"
    )
    mode: Mode = setting(
        "hooks", "hooks (a gradient per record in memory) or ghost (their norms only).", "usual", _MODE
    )
    epochs: int = setting(3, "Passes over the records.", "usual", COUNT)
    batch: int = setting(256, "Expected texts per step.", "usual", COUNT)
    micro_batch: int = setting(32, "Most texts in memory at once.", "advanced", COUNT, decides=False)
    learning_rate: float = setting(5e-4, "AdamW's learning rate.", "advanced", POSITIVE)
    clip_norm: float = setting(1.0, "Norm to which a record's gradient is clipped.", "advanced", POSITIVE)
    rows: int = setting(64, "Tokens of every text.", "advanced")
    train_limit: int | None = setting(None, "Train on a sample of so many texts.", "data")
    evaluation_limit: int | None = setting(None, "Measure on a sample of so many texts.", "advanced")
    seed: int = setting(0, "Seed of everything but the noise.", "advanced", COUNT_OR_ZERO)
