"""The halves of an earlier run as a published model.

A front that was trained on public data can be given to everybody: `--model RUN` starts from its halves, in
`release-once` with the front as it is. So one public step serves many private tasks and mechanisms.

A front that was trained on raw texts (`end-to-end`) may hold anything about them. Every report names the
tasks whose raw texts the front has seen, handed down from run to run, and a regime that protects training
texts refuses a front that has seen those of its own task.

A back that was trained from releases holds them. A second release of the same texts adds to the first, and a
promise that counts one of them would be too small. So every report also names the tasks from whose releases
the back has learnt. A run on such a task starts from the back that `public-front` kept from before its
releases (RUN/public), and where there is none it is refused.

Edges:
    The note is by the name of a task. A checkpoint from elsewhere has none: that it was not trained on the
    private texts is an assumption of every guarantee.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from dp_forward.data.tasks import find_task
from dp_forward.errors import InvalidInput
from dp_forward.split import Split
from dp_forward.split.artifacts import load_provider_side, load_user_side
from dp_forward.train.plan import Plan

__all__ = [
    "PUBLIC",
    "Shape",
    "load_published",
    "published_shape",
    "raw_texts_of",
    "refuse_front_that_saw",
    "refuse_seen_texts",
    "releases_learnt",
    "starts_before_releases",
]

_SEEN = "front_has_seen_raw_texts_of"
_LEARNT = "back_has_learnt_from_releases_of"
_BEFORE = "back_had_learnt_from_releases_of"
_TASKS_OF_CORPUS = {"movie-reviews": ["imdb", "rotten-tomatoes"]}
PUBLIC = "public"
"""RUN/public/back: the back of `public-front` as it was before the releases."""


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


def load_published(
    model: str, *, cut: str, width: int, labels: int, before_releases: bool = False
) -> tuple[Split, Any]:
    """The halves and the tokenizer; a plan that asks for another shape is refused.

    With ``before_releases`` the back is the one that `public-front` kept from before its releases.
    """
    shape = published_shape(model)
    assert shape is not None
    for name, wanted, found in (("cut", cut, shape.cut), ("width", width, shape.width)):
        if wanted != found:
            raise InvalidInput(name, f"be {found}, as in the run it starts from", wanted, "Leave it out.")
    place = Path(model) / PUBLIC if before_releases else Path(model)
    user, provider = load_user_side(Path(model) / "front"), load_provider_side(place / "back")
    if len(user.spec.labels) != labels:
        raise InvalidInput(
            "task", f"have {len(user.spec.labels)} labels, as the head has", labels, "Name another."
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


def starts_before_releases(plan: Plan) -> bool:
    """Whether this plan starts from the back that a run kept from before it was given these very texts.

    Two releases of one text add up. A run that starts from another one's back has what that one learnt, so
    where both are on the same task it takes the earlier back, if there is one, and is refused if not.
    """
    if not plan.regime.protects_training or published_shape(plan.model) is None:
        return False
    kept = (Path(plan.model) / PUBLIC / "back").is_dir()
    return kept and plan.task in _noted(plan.model, _LEARNT) and plan.task not in _noted(plan.model, _BEFORE)


def releases_learnt(plan: Plan) -> dict[str, list[str]]:
    """For the report: the tasks from whose releases the back has learnt, before this run and after it."""
    before: set[str] = set()
    if published_shape(plan.model) is not None:
        before = set(_noted(plan.model, _BEFORE if starts_before_releases(plan) else _LEARNT))
    after = before | ({plan.task} if plan.regime.protects_training else set())
    return {_BEFORE: sorted(before), _LEARNT: sorted(after)}


def refuse_seen_texts(plan: Plan) -> None:
    """No promise for texts that the front was trained on, nor one release counted where there are two."""
    _refuse_seen_labels(plan)
    if plan.regime.protects_training and plan.task in releases_learnt(plan)[_BEFORE]:
        raise InvalidInput(
            "model",
            f"not have learnt from releases of {plan.task}",
            plan.model,
            "Two releases of a text add up: start from the model before it.",
        )
    if plan.regime.protects_training and plan.task in _seen_by(plan.model):
        raise InvalidInput(
            "model",
            f"not have been trained on the raw texts of {plan.task}",
            plan.model,
            "No regime can protect them any more: start from the published model.",
        )


def _refuse_seen_labels(plan: Plan) -> None:
    """A label that the model has learnt, raw or by an answer, is not answered for the first time."""
    if plan.label_epsilon is None or plan.regime.protects_training:
        return  # where texts are protected, the checks of texts cover their labels
    if plan.task in {*_seen_by(plan.model), *releases_learnt(plan)[_BEFORE]}:
        raise InvalidInput(
            "label_epsilon",
            f"go with a model that has not learnt labels of {plan.task}",
            plan.model,
            "Answers about one label add up: start from the published model.",
        )


def refuse_front_that_saw(task: str, front: Path) -> None:
    """As `refuse_seen_texts`, for a front in the folder of its run.

    Edges:
        A front that was handed over alone has no report beside it: that it does not depend on the texts is
        then an assumption of the guarantee, and is said there.
    """
    run = front.absolute().parent
    # A front in the folder of a run that has no report yet is one that nobody can speak for.
    of_a_run = any((run / name).is_file() for name in ("report.json", "plan.json"))
    if of_a_run and task in _noted(str(run), _SEEN):
        raise InvalidInput(
            "front",
            f"not have been trained on the raw texts of {task}",
            front.name,
            "No release can protect them any more: take a front that has not seen them.",
        )


def _seen_by(model: str) -> list[str]:
    """The tasks (or corpora) whose raw texts a model was trained on, as far as its folder says."""
    if published_shape(model) is not None:
        return _noted(model, _SEEN)
    folder = Path(model).absolute()
    seen = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # `dpf pretrain`
        stored = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        # Folders of before the common run folder hold the bare plan.
        corpus = str(stored.get("plan", stored)["corpus"])
        seen += _TASKS_OF_CORPUS.get(corpus, [f"the corpus {Path(corpus).name}"])
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # `dpf baseline dpsgd`: RUN/model
        report = json.loads((folder.parent / "report.json").read_text(encoding="utf-8"))
        if folder.name == "model" and report["regime"] == "dp-sgd":
            seen.append(find_task(str(report["plan"]["task"])).name)
    return seen


def _noted(model: str, name: str) -> list[str]:
    """A list of tasks in the report of a run; not knowing it is no empty list."""
    try:
        found = json.loads((Path(model) / "report.json").read_text(encoding="utf-8"))[name]
        return [str(task) for task in found]
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            "model", f"have a report with {name}", model, "Finish the run, or take another."
        ) from None
