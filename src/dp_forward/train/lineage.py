"""Lineage: the model that a run starts from, and what its halves have already learnt.

A front that was trained on public data can be given to everybody: `--model RUN` starts from its halves, in
`release-once` with the front as it is. So one public step serves many private tasks and mechanisms.

A front that was trained on raw texts (`end-to-end`) may hold anything about them, and carries the commitments
to their entries in the owner's register from model to model (`inputs.enter_texts`). A back that was trained
from releases holds those, and a second release of the same texts adds to the first. So every report names the
tasks of both, and what a regime cannot protect any more is refused. A provider starts from a back
(`StartingPoint`).

Edges:
    A front from elsewhere has commitments that this register does not know, or none. Then only the names of
    its report are compared, and that it was not trained on the private texts is an assumption, and said.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.data.own_data import name_of_source
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import Split
from dp_forward.split.artifacts import half_digest, load_back, load_provider_side, load_user_side
from dp_forward.split.pretrained import count_decoder_blocks
from dp_forward.storage.json_files import read_json
from dp_forward.train.plan import Plan
from dp_forward.train.regimes import Regime

__all__ = ["is_projection"]

_SEEN = "front_has_seen_raw_texts_of"
_LEARNT = "back_has_learnt_from_releases_of"
_BEFORE = "back_had_learnt_from_releases_of"
_TASKS_OF_CORPUS = {"movie-reviews": ["imdb", "rotten-tomatoes"]}
_SUMMARY, _SPEC, _SETTINGS = "split.json", "release.json", "half.json"
_OF_A_FRONT = ("model.safetensors", _SETTINGS, "digest.json", _SPEC, "tokenizer", "front.onnx")
PUBLIC = "public"  # RUN/public/back: the back of `public-front` as it was before the releases
NUMBERS = "projection.safetensors"  # in RUN/projection, beside its front: what is known in its space


class Shape(NamedTuple):
    """What is fixed once a model is cut; the width d' is 0 without maps."""

    cut: str
    width: int
    rows: int
    decoder_blocks: int | None  # None for an encoder


def published_shape(model: str) -> Shape | None:
    """The shape of a run's halves; None if ``model`` is not the folder of a run."""
    folder = Path(model)
    if not (folder / _SUMMARY).is_file():
        return None
    half, spec = (_facts(folder / "front" / name) or {} for name in (_SETTINGS, _SPEC))
    try:
        cut, width, rows = str(half["cut"]), int(half["width"] or 0), int(spec["rows"])
        return Shape(cut, width, rows, count_decoder_blocks(half["model"]))
    except (ValueError, KeyError, TypeError):
        raise InvalidInput("model", "be a whole run", model, "Try dpf finetune --resume.") from None


def load_published(plan: Plan, *, labels: int) -> tuple[Split, Any] | None:
    """The halves and the tokenizer of the run that a plan starts from; None if its model is no run.

    A plan that asks for another shape is refused.
    """
    shape = published_shape(plan.model)
    if shape is None:
        return None
    for name, wanted, found in (("cut", plan.cut, shape.cut), ("width", plan.width or 0, shape.width)):
        refuse_if(wanted != found, name, f"be {found}, as in the run it starts from", wanted, "Leave it out.")
    run = Path(plan.model)
    user = load_user_side(run / "front")
    provider = load_provider_side((run / PUBLIC if _starts_before_releases(plan) else run) / "back")
    refuse_if(plan.blocks is not None, "blocks", "go with a whole model", plan.blocks, "Leave it out.")
    rule, other = "be that of the run it starts from", plan.prompt not in (None, user.front.prompt)
    refuse_if(other, "prompt", rule, plan.prompt, "Leave it out.")
    known = len(user.spec.labels)
    refuse_if(known != labels, "task", f"have {known} labels, as the head has", labels, "Name another.")
    return Split(user.front, provider.back), user.tokens.tokenizer


def raw_texts_of(plan: Plan) -> list[str]:
    """The tasks whose raw texts, private or declared public, the front of this plan's run will have seen."""
    own = None if plan.regime.protects_training else plan.task
    public = plan.public_task
    if plan.public is not None and plan.regime is Regime.PUBLIC_FRONT:
        public = name_of_source(plan.public)
    return sorted({*raw_texts_seen(plan.model), *filter(None, (own, public))})


def _starts_before_releases(plan: Plan) -> bool:
    """Whether this plan starts from the back that a run of `public-front` kept from before its releases."""
    return plan.regime.protects_training and (Path(plan.model) / PUBLIC / "back").is_dir()


def releases_learnt(plan: Plan) -> dict[str, Any]:
    """For the report: the tasks from whose releases the back has learnt, before this run and after it."""
    before: set[str] = set()
    if published_shape(plan.model) is not None:
        before = set(_required_note(plan.model, _BEFORE if _starts_before_releases(plan) else _LEARNT))
    after = before | ({plan.task} if plan.regime.protects_training else set())
    return {_BEFORE: sorted(before), _LEARNT: sorted(after)}


def refuse_learnt_releases(plan: Plan) -> None:
    """No back that has learnt from releases of the task: two of a text, or two answers about a label, add up.

    By the name of the task, before anything is read. What a front has seen raw, the register knows by its
    content (`inputs.enter_texts`).
    """
    task, model = plan.task, plan.model
    if task not in releases_learnt(plan)[_BEFORE]:
        return
    remedy = "Two releases of a text add up: start from the model before it."
    rule = f"not have learnt from releases of {task}"
    refuse_if(plan.regime.protects_training, "model", rule, model, remedy)
    remedy = "Answers about one label add up: start from the published model."
    rule = f"go with a model that has not learnt labels of {task}"
    refuse_if(plan.label_epsilon is not None, "label_epsilon", rule, model, remedy)


def raw_texts_seen(model: str) -> list[str]:
    """The tasks (or corpora) whose raw texts a model was trained on, as far as its folder says."""
    if published_shape(model) is not None:
        return _required_note(model, _SEEN)
    folder = Path(model).absolute()
    seen = []
    with contextlib.suppress(ValueError, KeyError, TypeError):  # `dpf pretrain`
        stored = _facts(folder / "plan.json") or {}
        corpus = str(stored.get("plan", stored)["corpus"])
        seen += _TASKS_OF_CORPUS.get(corpus, [f"the corpus {Path(corpus).name}"])
    with contextlib.suppress(ValueError, KeyError, TypeError):  # `dpf baseline dpsgd`: RUN/model
        report = _facts(folder.parent / "report.json") or {}
        if folder.name == "model" and report["regime"] == "dp-sgd":
            seen.append(str(report["plan"]["task"]))
    return seen


def _required_note(model: str, name: str) -> list[str]:
    """A list of tasks in the report of a run; not knowing it is no empty list."""
    found = _note(Path(model), name)
    if found is None:
        raise InvalidInput("model", f"have a report with {name}", model, "Finish the run, or take another.")
    return found


def _note(run: Path, name: str) -> list[str] | None:
    """A list of tasks in the report of a run; None, not an empty list, where it is not known."""
    found = (_facts(run / "report.json") or {}).get(name)
    return [str(task) for task in found] if isinstance(found, list) else None


def _facts(path: Path, *, checked: bool = False) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none to read: if ``checked``, only without a file."""
    with contextlib.suppress(*(() if checked and path.is_file() else (InvalidInput,))):
        return read_json(path, name="model", remedy="Get it again.")
    return None


class StartingPoint:
    """The back in ``model`` or in ``model/back``, checked against its own digests, and what its folder says.

    ``front`` is the front's folder, where it lies beside the back. ``seen_raw`` are the tasks whose raw texts
    the front was trained on, ``learnt`` those from whose releases the back has learnt; None: not known.
    """

    def __init__(self, model: str) -> None:
        base, place = _find_places(model)
        summary = _facts(base / _SUMMARY, checked=True)
        for name in ("digest_back", "digest_front"):
            if summary is not None and not isinstance(summary.get(name), str):
                raise InvalidInput("model", f"have {name} in {_SUMMARY}", "none", "Get it again.")
        known, front, provider = summary or {}, base / "front", None
        digest, self.front_digest = known.get("digest_back"), known.get("digest_front")
        if (place / _SPEC).is_file():  # saved for a provider, and not only split
            provider = load_provider_side(place, digest=digest)
        self.back = load_back(place, digest=digest) if provider is None else provider.back
        self.spec = None if provider is None else provider.spec
        self.digest = half_digest(place)
        self.front = front if base == Path(model) and front.is_dir() else None
        # A report beside a back of unknown front may be about another front.
        self.seen_raw = None if summary is None else _note(base, _SEEN)
        self.learnt = None if summary is None else _note(base, _LEARNT)


def is_projection(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a front that folds labels in, with what is known in its space, and no back."""
    return (Path(folder) / NUMBERS).is_file()


def seen_raw_beside(projection: Path) -> list[str] | None:
    """The tasks whose raw texts the front of a projection was trained on, as the report of its run says."""
    return _note(projection.absolute().parent, _SEEN)


def cut_of_start(model: str) -> str | None:
    """Where the back in a folder was cut, without loading it; None for a projection, which has no back."""
    if is_projection(model):
        return None
    cut = (_facts(_find_places(model)[1] / _SETTINGS, checked=True) or {}).get("cut")
    if not isinstance(cut, str):
        raise InvalidInput("model", f"hold a readable {_SETTINGS}", model, "Get it again.")
    return cut


def _find_places(model: str) -> tuple[Path, Path]:
    """Where ``split.json`` belongs, and where the back lies."""
    root = Path(model)
    if (root / "back").is_dir():
        return root, root / "back"
    if (_facts(root / _SETTINGS, checked=True) or {}).get("half") == "back":
        return root.resolve().parent, root
    raise InvalidInput("model", "hold a back", model, "Name a run, a result of dpf split, or a back folder.")


def refuse_other_releases(
    corpus: ReleasedCorpus, fronts: Iterable[str | None], spec: ReleaseSpec | None, *names: str
) -> None:
    """Refuse releases of another front, or where one of ``names`` differs; None: not known."""
    found = corpus.front_digest
    for known in filter(None, fronts):
        rule = f"come from the front of the model, {known[:12]}..."
        refuse_if(known != found, "releases", rule, f"{found[:12]}...", "Name the other model.")
    for name in names if spec is not None else ():
        other, rule = getattr(spec, name) != getattr(corpus.release, name), f"have the {name} of the model"
        refuse_if(other, "releases", rule, "others", "Release again, or name the other model.")


def check_fits(start: StartingPoint, corpus: ReleasedCorpus) -> None:
    """Refuse a corpus that this back cannot learn from, before anything is written."""
    spec, cut = corpus.release, start.back.cut
    remedy = "Have them released: public, or with dpf release --label-epsilon."
    refuse_if(corpus.labels is None, "releases", "hold labels", "none", remedy)
    fronts = [start.front_digest] if start.front is None else [start.front_digest, half_digest(start.front)]
    refuse_other_releases(corpus, fronts, start.spec, "noise", "rows", "labels")
    wanted = ReleaseSpec.of(start.back, noise=spec.noise, rows=spec.rows, labels=spec.labels)
    wanted.refuse_mixed_rows(row_local=cut.row_local)
    rule = f"be matrices of {wanted.matrix_rows} x {wanted.width}, which the back reads at {cut}"
    size, other = f"{spec.matrix_rows} x {spec.width}", wanted.shape != spec.shape
    refuse_if(other, "releases", rule, size, "Name the other model.")
    with torch.inference_mode():
        logits = getattr(start.back(torch.zeros(1, *spec.shape)), "logits", None)
    found = None if logits is None else tuple(logits.shape)
    if found != (1, len(spec.labels)):
        rule = f"answer with one number for each of the {len(spec.labels)} labels of the releases"
        raise InvalidInput("model", rule, "none" if found is None else found[1:], "Split a classifier.")


def copy_front(front: Path, out: Path) -> None:
    """The user's side as it is, so that the new run is whole; nothing else that lies in its folder."""

    def others(at: str, names: list[str]) -> set[str]:
        return set(names) - set(_OF_A_FRONT) if Path(at) == front else set()

    shutil.copytree(front, out, dirs_exist_ok=True, ignore=others)
