"""The halves of an earlier run as a published model.

A front that was trained on public data can be given to everybody: `--model RUN` starts from its halves, in
`release-once` with the front as it is. So one public step serves many private tasks and mechanisms.

A front that was trained on raw texts (`end-to-end`) may hold anything about them. Every report names the
tasks whose raw texts the front has seen, handed down from run to run, and a regime that protects training
texts refuses a front that has seen those of its own task.

Edges:
    The note is by the name of a task. A checkpoint from elsewhere has none: that it was not trained on the
    private texts is an assumption of every guarantee.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from dp_forward.errors import InvalidInput
from dp_forward.handed import load_provider_side, load_user_side
from dp_forward.split.pair import Split
from dp_forward.train.plan import Plan

__all__ = [
    "Shape",
    "load_published",
    "published_shape",
    "raw_texts_of",
    "refuse_front_that_saw",
    "refuse_seen_texts",
]

_SEEN = "front_has_seen_raw_texts_of"


class Shape(NamedTuple):
    """What is fixed once a model is cut."""

    cut: str
    width: int
    """d', or 0 without maps."""
    rows: int


def published_shape(model: str) -> Shape | None:
    """The shape of a run's halves; None if ``model`` is not the folder of a run."""
    folder = Path(model)
    if not (folder / "split.json").is_file():
        return None
    try:
        half = json.loads((folder / "front" / "half.json").read_text(encoding="utf-8"))
        form = json.loads((folder / "front" / "release.json").read_text(encoding="utf-8"))
        return Shape(str(half["cut"]), int(half["width"] or 0), int(form["rows"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            "model", "be a whole run", model, "Finish it with dpf finetune --resume."
        ) from None


def load_published(model: str, *, cut: str, width: int, labels: int) -> tuple[Split, Any]:
    """The halves and the tokenizer; a plan that asks for another shape is refused."""
    shape = published_shape(model)
    assert shape is not None
    for name, wanted, found in (("cut", cut, shape.cut), ("width", width, shape.width)):
        if wanted != found:
            raise InvalidInput(name, f"be {found}, as in the run it starts from", wanted, "Leave it out.")
    user, provider = load_user_side(Path(model) / "front"), load_provider_side(Path(model) / "back")
    if len(user.form.labels) != labels:
        raise InvalidInput(
            "task", f"have {len(user.form.labels)} labels, as the head has", labels, "Name another."
        )
    return Split(user.front, provider.back), user.tokens.tokenizer


def raw_texts_of(plan: Plan) -> list[str]:
    """The tasks whose raw texts, private or declared public, the front of this plan's run will have seen."""
    seen = set(_seen_by(plan.model))
    if not plan.regime.protects_training:
        seen.add(plan.task)
    if plan.public_task is not None:
        seen.add(plan.public_task)
    return sorted(seen)


def refuse_seen_texts(plan: Plan) -> None:
    """No promise for texts that the front was trained on."""
    if plan.regime.protects_training and plan.task in _seen_by(plan.model):
        raise InvalidInput(
            "model",
            f"not have been trained on the raw texts of {plan.task}",
            plan.model,
            "No regime can protect them any more: start from the published model.",
        )


def refuse_front_that_saw(task: str, front: Path) -> None:
    """As `refuse_seen_texts`, for a front in the folder of its run.

    Edges:
        A front that was handed over alone has no report beside it: that it does not depend on the texts is
        then an assumption of the guarantee, and is said there.
    """
    run = front.absolute().parent
    if (run / "report.json").is_file() and task in _seen_by(str(run)):
        raise InvalidInput(
            "front",
            f"not have been trained on the raw texts of {task}",
            front.name,
            "No release can protect them any more: take a front that has not seen them.",
        )


def _seen_by(model: str) -> list[str]:
    if published_shape(model) is None:
        return []
    try:
        found = json.loads((Path(model) / "report.json").read_text(encoding="utf-8"))[_SEEN]
        return [str(task) for task in found]
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            "model", f"have a report with {_SEEN}", model, "Finish the run, or take another."
        ) from None
