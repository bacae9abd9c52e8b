"""Plan of a DP-SGD run: the task, the budget of the trained weights, and how long to train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dp_forward.privacy import checks
from dp_forward.train.plan_base import PlanBase, choice_of, setting

__all__ = ["DpSgdPlan"]

Mode = Literal["hooks", "ghost"]
Trainable = Literal["frozen-embeddings", "lora"]

_COUNT = partial(checks.count, remedy="Use 1 or more.")


@dataclass(frozen=True, kw_only=True)
class DpSgdPlan(PlanBase):
    """What decides a run of the baseline.

    Edges:
        ``seed`` fixes what is public (fresh LoRA weights, dropout); the noise has no seed, see
        `private_optimizer`. A step sums over its whole batch, so ``micro_batch`` decides nothing.
    """

    task: str = setting(
        help="sst2, imdb, qqp or rotten-tomatoes.", group="usual", missing="Try --task rotten-tomatoes."
    )
    model: str = setting("minilm", help="A Hugging Face name or folder.", group="usual")
    epsilon: float = setting(
        help="Central epsilon; there is no default.",
        group="usual",
        short="-e",
        check=lambda name, value: checks.epsilon(value),
        missing="There is no default for a promise; try --epsilon 8.",
    )
    delta: float = setting(
        1e-5,
        help="The budget's delta.",
        group="usual",
        short="-d",
        check=lambda name, value: checks.delta(value, zero=False),
    )
    mode: Mode = setting(
        "hooks",
        help="hooks (a gradient per record in memory) or ghost (their norms only).",
        group="usual",
        check=choice_of("hooks", "ghost", remedy="Use hooks."),
    )
    trainable: Trainable = setting(
        "frozen-embeddings",
        help="What trains: frozen-embeddings (all but the tables) or lora.",
        group="usual",
        check=choice_of("frozen-embeddings", "lora", remedy="Use frozen-embeddings."),
    )
    lora_rank: int = setting(8, help="Rank of the LoRA maps.", group="advanced", check=_COUNT)
    epochs: int = setting(3, help="Passes over the records.", group="usual", check=_COUNT)
    batch: int = setting(256, help="Expected texts per step.", group="usual", check=_COUNT)
    micro_batch: int = setting(
        32, help="Most texts in memory at once.", group="advanced", check=_COUNT, decides=False
    )
    learning_rate: float = setting(
        5e-4,
        help="AdamW's learning rate.",
        group="advanced",
        check=partial(checks.positive, remedy="Use something near 5e-4."),
    )
    clip_norm: float = setting(
        1.0,
        help="Norm to which a record's gradient is clipped.",
        group="advanced",
        check=partial(checks.positive, remedy="Use 1.0."),
    )
    rows: int = setting(64, help="Tokens of every text.", group="advanced")
    train_limit: int | None = setting(None, help="A sample of the training texts.", group="advanced")
    evaluation_limit: int | None = setting(None, help="A sample of the evaluation texts.", group="advanced")
    evaluation_split: str = setting("validation", help="The split to measure on.", group="advanced")
    seed: int = setting(
        0,
        help="Of what is public, never of the noise.",
        group="advanced",
        check=partial(checks.count, at_least=0, remedy="Use 0."),
    )
    data: Mapping[str, str] = setting(
        dict,
        help="Where a task's files lie, TASK=PATH; can be given several times.",
        group="usual",
        decides=False,
    )

    def __post_init__(self) -> None:
        # Not above: the package loads torch, which `--help` does without.
        from dp_forward.data.tasks import find_task

        object.__setattr__(self, "task", find_task(self.task).name)
        super().__post_init__()
