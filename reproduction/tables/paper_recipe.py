"""The paper's settings, in one place: its recipe, its positions, and jobs that have just these.

A row is called the paper's only if its jobs come from here. Section 5.1 of the paper gives the numbers, and
Section 5.2 n = 128; what a plan says besides is that nothing of ours is added: no maps, warm-up, auxiliary
loss or several draws.

Positions of its twelve blocks are mapped by relative depth: block K of 12 stands for block ceil(K b / 12) of
b, so that its Encoder 1, 3, 5, 7, 9, 11 are blocks 1 to 6 of MiniLM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from reproduction.jobs import Job
from reproduction.model_setup import ModelSetup, TaskSetting
from reproduction.tables.paper_sensitivity import LABEL_EPSILON

__all__ = [
    "AUTHORS",
    "AUTHORS_BY_ROW",
    "PAPER",
    "PROOF",
    "PROOF_BY_ROW",
    "PaperRecipe",
    "attacked_positions",
    "paper_dpsgd_job",
    "paper_job",
    "paper_positions",
]

AUTHORS: Final = "S = C (the authors' experiments)"
PROOF: Final = "S = 2C (the text, and the proof)"
AUTHORS_BY_ROW: Final = "S = C (the paper's appendix)"
PROOF_BY_ROW: Final = "S = 2C (the proof)"
"""For one row, at token level, the text has C too (Appendix A.2)."""
_BLOCKS: Final = 12
_ENCODERS: Final = (1, 3, 5, 7, 9, 11)
_ATTACKED: Final = ("Embedding", "Encoder 1", "Encoder 7", "Encoder 11", "Output")
_STEP_SECONDS: Final = {"output": 0.025, "inside": 0.038}
"""Of a step of 32 texts, with fourteen processes on one H200: only orders the work."""
_RECORDS: Final[Mapping[str, int]] = {"sst2": 67_349, "imdb": 25_000, "qqp": 19_055}


@dataclass(frozen=True)
class PaperRecipe:
    """What the paper trains with, as settings of a plan."""

    epochs: float = 3.0
    batch: int = 32
    learning_rate: float = 2e-5
    head_learning_rate: float = 2e-5
    weight_decay: float = 0.0
    schedule: str = "constant"
    rows: int = 128
    width: int = 0
    norm: float = 1.0
    warm_up_epochs: float = 0.0
    auxiliary_weight: float = 0.0
    auxiliary_alone: bool = False
    draws: int = 1
    average: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """For a plan; noise, cut and task come on top."""
        return asdict(self)

    @property
    def says(self) -> str:
        """In words, for a page."""
        return (
            "**The paper's recipe**, in every row that is not called ours, but for what the table varies: "
            f"{self.epochs:g} epochs, batches of {self.batch}, learning rate {self.learning_rate:g} for head "
            "and body, no decay of weights or "
            f"rate, n = {self.rows} rows, all columns without maps, normalised to C = {self.norm:g}, delta "
            "1e-5, one draw of the noise a step, no warm-up and no auxiliary loss."
        )

    @property
    def differs(self) -> tuple[str, ...]:
        """What is still not as in the paper, for a page."""
        return (
            "Still not as in the paper: the model (six blocks and d = 384 against twelve and 768; its "
            "Encoder K stands for block K / 2, rounded up); no mask crosses the cut here, where the "
            "authors' code hands the mask to the back; rows of padding are zero before they are bounded; "
            "batches are made of texts of like length; at `output` the texts of a batch are padded to the "
            "longest only, which changes nothing; inner cuts train in mixed precision.",
        )


PAPER: Final = PaperRecipe()


def paper_positions(setup: ModelSetup) -> dict[str, str]:
    """Cut -> what the paper calls the position of that depth; each cut once, from the first to the last."""
    found = {"embeddings": "Embedding"}
    for k in _ENCODERS:
        found.setdefault(f"encoder.{math.ceil(k * setup.blocks / _BLOCKS)}", f"Encoder {k}")
    return {**found, "output": "Output"}


def attacked_positions(setup: ModelSetup) -> dict[str, str]:
    """The five of them that the paper attacks."""
    return {cut: name for cut, name in paper_positions(setup).items() if name in _ATTACKED}


def paper_job(
    setup: ModelSetup,
    task: TaskSetting,
    cut: str,
    epsilon: float | None,
    *,
    labels: bool = False,
    **settings: Any,
) -> Job:
    """Fine-tuning by the paper's recipe through the noise of a proved epsilon; without noise for None.

    ``labels`` sends the labels through randomized response that keeps 0.9 of them. The whole test split is
    measured; with ten draws of the noise a text at `output` and on SST-2, else one.
    """
    few = cut != "output" and task.name != "sst2"
    noise: dict[str, Any] = {"mechanism": "none"}
    if epsilon is not None:
        noise = {"mechanism": "matrix-gaussian", "epsilon": epsilon, "training_epsilon": epsilon}
    plan: dict[str, Any] = {
        "task": task.name,
        "evaluation_split": task.split,
        "model": setup.model,
        "regime": "end-to-end",
        "cut": cut,
        **noise,
        **PAPER.settings,
        **({"label_epsilon": LABEL_EPSILON} if labels else {}),
        **({"precision": "fp32"} if cut == "output" else {}),
        **({"evaluation_draws": 1} if few else {}),
        **settings,
    }
    return Job("finetune", plan, weight=_minutes(task, cut, plan))


def _minutes(task: TaskSetting, cut: str, plan: Mapping[str, Any]) -> float:
    records = int(plan.get("train_limit", _RECORDS[task.name]))
    seconds = _STEP_SECONDS["output" if cut == "output" and task.name != "imdb" else "inside"]
    steps = float(plan["epochs"]) * records / int(plan["batch"])
    return round(seconds * steps / 60 + 0.3, 2)


def paper_dpsgd_job(setup: ModelSetup, task: TaskSetting, central: float, **settings: Any) -> Job:
    """DP-SGD as the paper runs it: its batch, epochs and rate, clipping at 1, no noise in queries."""
    plan: dict[str, Any] = {
        "task": task.name,
        "evaluation_split": task.split,
        "model": setup.model,
        "epsilon": central,
        "mode": "hooks",
        "epochs": int(PAPER.epochs),
        "batch": PAPER.batch,
        "micro_batch": 2 * PAPER.batch,
        "learning_rate": PAPER.learning_rate,
        "clip_norm": PAPER.norm,
        "rows": 72
        if task.name == "sst2"
        else PAPER.rows,  # where no text is longer, more rows change nothing
        **settings,
    }
    return Job("baseline", plan, weight=round(2.5 * _minutes(task, "output", plan), 2))
