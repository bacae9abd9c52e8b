"""Front and back on disk: folders for the user and for the provider, each of use without the other.

    DIR/front/  model.safetensors, half.json, digest.json   the front
                tokenizer/                                   how texts become tokens
                release.json                                 noise, rows and labels of a release
    DIR/back/   model.safetensors, half.json, digest.json   the back
                release.json                                 the same, so that the provider knows what it gets
    DIR/split.json                                           cut and the digests of both

A half (`save_split`, `load_front`, `load_back`) is rebuilt from its settings (the model's Hugging Face class
and settings, the cut, the width of the maps) by the same surgery that made it, and its weights are then
filled in; nothing is unpickled, no code is loaded. A side (`save_sides`, `load_user_side`,
`load_provider_side`) is a half with its tokenizer and ``release.json``, which holds the *choice* of noise,
never a sigma: whoever loads it calibrates anew.

Guarantees:
    The digest is SHA-256 over the bytes of the weights and settings of a half. The settings of a user's front
    name the number of rows and every file of the tokenizer by its SHA-256, so the digest covers all that
    decides the hidden matrix of a text. A half whose files do not match its digest, a front whose tokenizer
    is missing, changed or has one file more, and a half that is asked to be the other one are refused before
    anything is built.
Edges:
    The front of a user's side that an earlier version saved names no tokenizer. `load_user_side` refuses it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import transformers
from safetensors.torch import load_file, save_file

from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec, release_width
from dp_forward.split.families import FAMILIES
from dp_forward.split.halves import (
    AnswerBack,
    AnyBack,
    AnyFront,
    NarrowBack,
    NarrowFront,
    ReadoutFront,
    Split,
)
from dp_forward.split.surgery import split_model
from dp_forward.storage.digests import file_digest
from dp_forward.storage.files import draft_of, write_file
from dp_forward.storage.json_files import read_json, write_json

__all__ = [
    "ProviderSide",
    "UserSide",
    "front_of",
    "half_digest",
    "load_back",
    "load_front",
    "load_provider_side",
    "load_user_side",
    "save_provider_side",
    "save_sides",
    "save_split",
    "save_user_side",
]

Half = AnyFront | AnyBack

_FORMAT: Final = 1
_WEIGHTS, _SETTINGS, _DIGEST = "model.safetensors", "half.json", "digest.json"
_SPEC, _TOKENIZER = "release.json", "tokenizer"
_NO_SPEC: Final = "Make it with dpf finetune."


@dataclass(frozen=True, eq=False)
class UserSide:
    """All that a user needs to make a release.

    Guarantees:
        Its spec is of this front's cut and width, and promises nothing per token or phrase where the front
        mixes rows.
    """

    front: AnyFront
    tokens: FixedLength
    spec: ReleaseSpec

    def __post_init__(self) -> None:
        if self.spec.front is None:
            raise InvalidInput("spec", "name the digest of the front", None, "Save the front first.")
        _refuse_other_half(self.spec, self.front)
        self.spec.refuse_mixed_rows(row_local=self.front.row_local)

    @property
    def digest(self) -> str:
        """The digest of the front."""
        return self.spec.front or ""


@dataclass(frozen=True, eq=False)
class ProviderSide:
    """All that a provider needs to answer one; ``digest`` is that of the back."""

    back: AnyBack
    spec: ReleaseSpec
    digest: str

    def __post_init__(self) -> None:
        _refuse_other_half(self.spec, self.back)


def _refuse_other_half(spec: ReleaseSpec, half: Half) -> None:
    """Refuse a spec that does not describe what crosses at this half."""
    width = release_width(half.width, spec.noise, spec.labels)
    for name, own in {"cut": str(half.cut), "width": width}.items():
        found = getattr(spec, name)
        if found != own:
            raise InvalidInput("spec", f"have the {name} {own} of its half", found, "Use ReleaseSpec.of.")


def _save_half(side: str, half: Half, root: Path, **more: Any) -> str:
    """Write a half, with ``more`` in its settings."""
    folder = root / side
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous().clone() for name, value in half.state_dict().items()}
    with draft_of(folder / _WEIGHTS) as draft:
        save_file(tensors, draft)
    write_json(folder / _SETTINGS, _settings(side, half) | more, sort_keys=True)
    digest = half_digest(folder)
    write_file(folder / _DIGEST, json.dumps({"sha256": digest}) + "\n")
    return digest


def _settings(side: str, half: Half) -> dict[str, Any]:
    found: dict[str, Any] = {"format": _FORMAT, "half": side, "cut": str(half.cut), "width": None}
    if isinstance(half, AnswerBack):
        found |= {"architecture": None, "allow_vocabulary_head": False, "model": {}}
        return {**found, "readout": {"labels": half.width}}
    plain = half.plain
    found["architecture"], found["model"] = plain.architecture, plain.settings
    found["allow_vocabulary_head"] = plain.vocabulary_head
    if isinstance(half, NarrowFront | NarrowBack):
        found["width"] = half.width
    # Only where there are any: the digest of a half covers these settings.
    if plain.pooling is not None:
        found["pooling"] = plain.pooling
    if isinstance(half, ReadoutFront):
        labels = None if half.decide is None else half.width
        found["readout"] = {"width": half.project.out_features, "labels": labels}
    return found


def half_digest(folder: str | os.PathLike[str]) -> str:
    """SHA-256 over the names, lengths and bytes of a half's two files."""
    digest = hashlib.sha256()
    for name in (_SETTINGS, _WEIGHTS):
        data = (Path(folder) / name).read_bytes()
        digest.update(f"{name}:{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def load_front(folder: str | os.PathLike[str], *, digest: str | None = None) -> AnyFront:
    """The user's half; ``digest`` pins it to a known one."""
    return cast(AnyFront, _build(Path(folder), "front", _check(Path(folder), "front", digest)))


def load_back(folder: str | os.PathLike[str], *, digest: str | None = None) -> AnyBack:
    """The provider's half; ``digest`` pins it to a known one."""
    return cast(AnyBack, _build(Path(folder), "back", _check(Path(folder), "back", digest)))


def _build(folder: Path, side: str, settings: dict[str, Any]) -> Half:
    half = _rebuild(settings, side)
    weights, wanted = load_file(folder / _WEIGHTS), half.state_dict()
    if weights.keys() != wanted.keys() or any(weights[k].shape != wanted[k].shape for k in wanted):
        rule = "hold the weights that its settings ask for"
        raise InvalidInput("folder", rule, "other tensors", "Save it again.")
    half.load_state_dict(weights)
    half.train(False)
    return half


def save_split(pair: Split, folder: str | os.PathLike[str]) -> dict[str, str]:
    """Write both halves and ``split.json``; returns the digests by half."""
    front = _save_half("front", pair.front, Path(folder))
    return {"front": front, "back": save_provider_side(pair.back, None, folder, front_digest=front)}


def save_sides(
    pair: Split, spec: ReleaseSpec, tokenizer: Any, folder: str | os.PathLike[str]
) -> dict[str, str]:
    """Write both sides into ``folder``; returns the digests of the halves."""
    front = save_user_side(pair.front, spec, tokenizer, folder)
    return {"front": front, "back": save_provider_side(pair.back, spec, folder, front_digest=front)}


def save_user_side(front: AnyFront, spec: ReleaseSpec, tokenizer: Any, folder: str | os.PathLike[str]) -> str:
    """Write ``front/`` alone; returns the digest of the front."""
    root = Path(folder)
    files = root / "front" / _TOKENIZER
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # what the last call left there; every call sets it anew
        backend.no_truncation()
        backend.no_padding()
    shutil.rmtree(files, ignore_errors=True)
    tokenizer.save_pretrained(files)
    digest = _save_half("front", front, root, rows=spec.rows, tokenizer=_digests_below(files))
    write_json(root / "front" / _SPEC, spec.as_dict(), sort_keys=True)
    return digest


def _digests_below(folder: Path) -> dict[str, str]:
    """The digest of every file below a folder, by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


def save_provider_side(
    back: AnyBack, spec: ReleaseSpec | None, folder: str | os.PathLike[str], *, front_digest: str
) -> str:
    """Write ``back/`` and ``split.json`` alone; returns the digest of the back."""
    root = Path(folder)
    digest = _save_half("back", back, root)
    digests = {"digest_front": front_digest, "digest_back": digest}
    write_json(root / "split.json", {"format": _FORMAT, "cut": str(back.cut), **digests}, sort_keys=True)
    if spec is not None:
        write_json(root / "back" / _SPEC, spec.as_dict(), sort_keys=True)
    return digest


def load_user_side(folder: str | os.PathLike[str], *, digest: str | None = None) -> UserSide:
    """The front, its tokenizer and the spec of a release; ``digest`` pins the front to a known one."""
    place = Path(folder)
    _require(place, "front", _SPEC, otherwise=_NO_SPEC)
    settings = _check(place, "front", digest)
    if "tokenizer" not in settings:
        rule, found = f"name its {_TOKENIZER} in {_SETTINGS}", "a front of an earlier version"
        raise InvalidInput("front", rule, found, "Make it again: its digest does not cover its tokenizer.")
    front = cast(AnyFront, _build(place, "front", settings))
    spec = replace(_read_spec(place, front), front=half_digest(place))
    if spec.rows != settings["rows"]:
        rule = f"have {settings['rows']} rows in {_SPEC}, as in {_SETTINGS}"
        raise InvalidInput("front", rule, spec.rows, "Get it again.")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place / _TOKENIZER)
    except (OSError, ValueError):
        rule, remedy = f"hold a {_TOKENIZER}", "Hand it over again."
        raise InvalidInput("front", rule, "none that loads", remedy) from None
    tokens = FixedLength(tokenizer, spec.rows, causal=front.pads_left, most_positions=front.max_rows)
    return UserSide(front, tokens, spec)


def front_of(folder: str | os.PathLike[str]) -> Path:
    """The front of a run, where a whole run is named; otherwise the folder itself."""
    place = Path(folder)
    inside = place / "front"
    return inside if (inside / _SPEC).is_file() and not (place / _SPEC).is_file() else place


def load_provider_side(folder: str | os.PathLike[str], *, digest: str | None = None) -> ProviderSide:
    """The back and the spec of what it will be sent; which front that comes from, the back cannot say."""
    place = Path(folder)
    _require(place, "back", _SPEC, otherwise=_NO_SPEC)
    back = load_back(place, digest=digest)
    return ProviderSide(back, _read_spec(place, back), half_digest(place))


def _require(folder: Path, side: str, *names: str, otherwise: str) -> None:
    """Refuse a folder without these files; who named the folder of both halves is told the right one."""
    for name in names:
        if not (folder / name).is_file():
            remedy = f"Name {folder / side}." if (folder / side / name).is_file() else otherwise
            raise InvalidInput("folder", f"hold {name}", "no such file", remedy)


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, name="folder", remedy="Get it again.")


def _check(folder: Path, side: str, digest: str | None) -> dict[str, Any]:
    made = f"Name the folder {side} that dpf finetune or dpf split made."
    _require(folder, side, _WEIGHTS, _SETTINGS, _DIGEST, otherwise=made)
    stored = _read(folder / _DIGEST)
    if "sha256" not in stored:
        raise InvalidInput("folder", f"hold a readable {_DIGEST}", "something else", "Get it again.")
    found = half_digest(folder)
    for expected in (str(stored["sha256"]), digest):
        if expected is not None and found != expected:
            rule = f"match its digest {expected[:12]}..."
            raise InvalidInput("folder", rule, f"{found[:12]}...", "Get it again.")
    settings = _read(folder / _SETTINGS)
    if settings.get("format") != _FORMAT:
        raise InvalidInput("folder", f"be of format {_FORMAT}", settings.get("format"), "Update dp-forward.")
    if settings.get("half") != side:
        raise InvalidInput("folder", f"hold a {side}", f"a {settings.get('half')}", "Name the other folder.")
    if "tokenizer" in settings and settings["tokenizer"] != _digests_below(folder / _TOKENIZER):
        rule, found = f"hold the {_TOKENIZER} that its digest names", "another one, or none"
        raise InvalidInput("folder", rule, found, "Get it again, as it was saved.")
    return settings


def _rebuild(settings: dict[str, Any], side: str) -> Half:
    """The same surgery on a model of the same shape; what stands at the end of it, if anything."""
    readout = settings.get("readout")
    if readout is not None and side == "back":
        return AnswerBack(int(readout["labels"]))
    kind = settings["model"].get("model_type")
    if kind not in FAMILIES:
        raise InvalidInput("model_type", "be a known family", kind, "Update dp-forward.")
    architecture = getattr(transformers, str(settings["architecture"]), None)
    if not (isinstance(architecture, type) and issubclass(architecture, transformers.PreTrainedModel)):
        raise InvalidInput("architecture", "be a Hugging Face model class", architecture, "Save it again.")
    model = architecture(transformers.AutoConfig.for_model(**settings["model"]))
    model.train(False)
    pair = split_model(
        model,
        settings["cut"],
        width=settings["width"],
        allow_vocabulary_head=bool(settings["allow_vocabulary_head"]),
        pooling=settings.get("pooling"),
    )
    if side == "back":
        return pair.back
    if readout is None:
        return pair.front
    return ReadoutFront(pair.front, int(readout["width"]), readout["labels"])  # type: ignore[arg-type]


def _read_spec(folder: Path, half: Half) -> ReleaseSpec:
    settings = _read(folder / _SPEC)
    try:
        noise = None if settings["noise"] is None else NoiseSpec.from_dict(settings["noise"])
        width = release_width(half.width, noise, settings["labels"])
        return ReleaseSpec.from_dict(settings, width=width, cut=str(half.cut))
    except InvalidInput:
        raise
    except (ValueError, TypeError, AttributeError, KeyError):
        raise InvalidInput("folder", f"hold a readable {_SPEC}", "something else", "Get it again.") from None
