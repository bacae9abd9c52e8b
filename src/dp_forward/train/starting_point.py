"""Where a provider starts from: a back, and what is known of the front that it belongs to.

A starting point is the folder of a run, what `dpf split` made, or a back folder alone. Before anything
trains, `check_fits` holds it against the corpus: a back that is trained on the releases of another front, or
of another noise, learns nothing that it could be asked about.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.errors import InvalidInput
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split.artifacts import load_provider_side
from dp_forward.split.half_files import half_digest, load_back
from dp_forward.split.halves import Back, NarrowBack

__all__ = ["StartingPoint", "check_fits", "copy_front", "cut_of_start", "load_start"]

_SUMMARY, _FORM, _SETTINGS = "split.json", "release.json", "half.json"
_OF_A_FRONT = ("model.safetensors", _SETTINGS, "digest.json", _FORM, "tokenizer")


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """A back to train; None where the folder does not say."""

    back: Back | NarrowBack
    digest: str
    """Of the back as it was found."""
    spec: ReleaseSpec | None
    front_digest: str | None
    front: Path | None
    """The front's folder, where it lies beside the back."""
    seen_raw: list[str] | None
    """The tasks whose raw texts the front was trained on, as the report of its run says."""
    learnt: list[str] | None
    """The tasks from whose releases the back has learnt already, as that report says."""


def load_start(model: str) -> StartingPoint:
    """The back in ``model`` or in ``model/back``, checked against its own digests."""
    base, place = _places(model)
    summary = _json(base / _SUMMARY)
    pinned = None if summary is None else _word(summary, "digest_back")
    back, spec = _loaded(place, pinned)
    front = base / "front" if base == Path(model) and (base / "front").is_dir() else None
    return StartingPoint(
        back=back,
        digest=half_digest(place),
        spec=spec,
        front_digest=None if summary is None else _word(summary, "digest_front"),
        front=front,
        # A report beside a back of unknown front may be about another front.
        seen_raw=None if summary is None else _noted(base, "front_has_seen_raw_texts_of"),
        learnt=None if summary is None else _noted(base, "back_has_learnt_from_releases_of"),
    )


def _loaded(place: Path, digest: str | None) -> tuple[Back | NarrowBack, ReleaseSpec | None]:
    """The back, and the spec beside it where it was saved for a provider and not only split."""
    if not (place / _FORM).is_file():
        return load_back(place, digest=digest), None
    provider = load_provider_side(place, digest=digest)
    return provider.back, provider.spec


def cut_of_start(model: str) -> str:
    """Where the back in a folder was cut, without loading it."""
    settings = _json(_places(model)[1] / _SETTINGS)
    if settings is None or not isinstance(settings.get("cut"), str):
        raise InvalidInput("model", f"hold a readable {_SETTINGS}", model, "Get it again.")
    return str(settings["cut"])


def _places(model: str) -> tuple[Path, Path]:
    """Where ``split.json`` belongs, and where the back lies."""
    root = Path(model)
    if (root / "back").is_dir():
        return root, root / "back"
    if (_json(root / _SETTINGS) or {}).get("half") == "back":
        return root.resolve().parent, root
    raise InvalidInput("model", "hold a back", model, "Name a run, a result of dpf split, or a back folder.")


def check_fits(start: StartingPoint, corpus: ReleasedCorpus) -> None:
    """Refuse a corpus that this back cannot learn from, before anything is written."""
    spec, cut = corpus.release, start.back.cut
    if corpus.labels is None:
        raise InvalidInput(
            "releases", "hold labels", "none", "Have them released: public, or randomized by --label-epsilon."
        )
    fronts = [start.front_digest] if start.front is None else [start.front_digest, half_digest(start.front)]
    for known in fronts:
        if known is not None and known != corpus.front_digest:
            rule = f"come from the front of the model, {known[:12]}..."
            raise InvalidInput("releases", rule, f"{corpus.front_digest[:12]}...", "Name the other model.")
    for known_spec in (start.spec, _spec_of_front(start.front)):
        for name in ("noise", "rows", "labels"):
            if known_spec is not None and getattr(known_spec, name) != getattr(spec, name):
                rule = f"have the {name} that the model was made for"
                raise InvalidInput("releases", rule, "others", "Release again, or name the other model.")
    wanted = ReleaseSpec.of(start.back, noise=spec.noise, rows=spec.rows, labels=spec.labels)
    wanted.refuse_mixed_rows(row_local=cut.row_local)
    if wanted.shape != spec.shape:
        rule = f"be matrices of {wanted.matrix_rows} x {wanted.width}, which the back reads at {cut}"
        raise InvalidInput("releases", rule, f"{spec.matrix_rows} x {spec.width}", "Name the other model.")
    _check_answers(start.back, corpus)


@torch.inference_mode()
def _check_answers(back: Back | NarrowBack, corpus: ReleasedCorpus) -> None:
    logits = getattr(back(torch.zeros(1, *corpus.release.shape)), "logits", None)
    found = None if logits is None else tuple(logits.shape)
    if found != (1, len(corpus.release.labels)):
        rule = f"answer with one number for each of the {len(corpus.release.labels)} labels of the releases"
        raise InvalidInput("model", rule, "none" if found is None else found[1:], "Split a classifier.")


def copy_front(front: Path, out: Path) -> None:
    """The user's side as it is, so that the new run is whole; nothing else that lies in its folder."""
    out.mkdir(exist_ok=True)
    for name in _OF_A_FRONT:
        if (front / name).is_dir():
            shutil.copytree(front / name, out / name, dirs_exist_ok=True)
        elif (front / name).is_file():
            shutil.copyfile(front / name, out / name)


def _spec_of_front(front: Path | None) -> ReleaseSpec | None:
    found = None if front is None else _json(front / _FORM)
    return (
        None if found is None else ReleaseSpec.from_dict(found, width=1, cut=None)
    )  # compared by noise, rows, labels


def _noted(base: Path, name: str) -> list[str] | None:
    """None, not an empty list, where it is not known."""
    try:
        found = json.loads((base / "report.json").read_text(encoding="utf-8"))[name]
        return [str(task) for task in found]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInput("model", f"hold a readable {path.name}", "something else", "Get it again.")
    return found


def _word(summary: dict[str, Any], name: str) -> str:
    if not isinstance(summary.get(name), str):
        raise InvalidInput("model", f"have {name} in {_SUMMARY}", "none", "Get it again.")
    return str(summary[name])
