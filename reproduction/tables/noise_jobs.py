"""Jobs of our own recipe that several tables share: fine-tuning, the model without noise, other questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reproduction.jobs import Job, digest_of
from reproduction.model_setup import ModelSetup, TaskSetting

__all__ = ["GAUSSIAN", "finetune_job", "non_private_job", "query_job"]

GAUSSIAN: Final = "matrix-gaussian"
_SLOWLY: Final[Mapping[str, Any]] = {"learning_rate": 5e-5, "head_learning_rate": 5e-4}
"""At `embeddings` all blocks lie behind the noise: at the rates of the recipe they often learn nothing."""


def finetune_job(
    setup: ModelSetup,
    task: TaskSetting,
    cut: str,
    epsilon: float,
    *,
    mechanism: str = GAUSSIAN,
    weight: float = 4.0,
    **settings: Any,
) -> Job:
    """Fine-tuning through the noise of a proved epsilon by our recipe, the front with it as in the paper."""
    plan = {
        **task.settings,
        "model": setup.model,
        "regime": "end-to-end",
        "cut": cut,
        "mechanism": mechanism,
        "epsilon": epsilon,
        **({"precision": "fp32"} if cut == "output" else {}),
        **(_SLOWLY if cut == "embeddings" else {}),
        **settings,
    }
    return Job("finetune", plan, weight=weight)


def query_job(run: Job, epsilon: float, **settings: Any) -> Job:
    """The model of a run, asked through other noise, of a proved epsilon; the run itself, if it has that."""
    if run.settings.get("epsilon") == epsilon and not settings:
        return run
    asking = {"epsilon": epsilon, "draws": 10, **settings}
    return Job("queries", {**asking, "noise_seed": _seed_of(run, asking)}, after=(run,), weight=0.2)


def _seed_of(run: Job, asking: Mapping[str, Any]) -> int:
    """A stream of noise of its own for each question: cells that share a model must not share their luck."""
    return int(digest_of("queries", asking, [run.digest])[:8], 16)


def non_private_job(setup: ModelSetup, task: TaskSetting) -> Job:
    """The undefended model."""
    plan = {**task.settings, "model": setup.model, "regime": "end-to-end", "mechanism": "none"}
    return Job("finetune", {**plan, "cut": "output", "precision": "fp32"}, weight=4.0)
