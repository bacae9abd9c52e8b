"""Front and back on disk: safetensors and JSON only, each half without the other.

    DIR/front/   model.safetensors, half.json, digest.json     the user's
    DIR/back/    the same                                      the provider's
    DIR/split.json                                             cut and the digests of both

A half is rebuilt from its settings (the model's Hugging Face class and settings, the cut, the width of the
maps) by the same surgery that made it, and its weights are then filled in; nothing is unpickled, no code is
loaded.

Guarantees:
    The digest is SHA-256 over the bytes of the weights and settings of a half. A half whose files do not
    match its digest, or that is asked to be the other one, is refused before anything is built.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from dp_forward.errors import InvalidInput
from dp_forward.split.families import FAMILIES
from dp_forward.split.halves import Back, Front, NarrowBack, NarrowFront, Split
from dp_forward.split.surgery import split_model
from dp_forward.storage.files import draft_of, write_file
from dp_forward.storage.json_files import read_json, write_json

__all__ = ["half_digest", "load_back", "load_front", "missing_file_remedy", "save_back", "save_split"]

Half = Front | NarrowFront | Back | NarrowBack

_FORMAT = 1
_WEIGHTS, _SETTINGS, _DIGEST = "model.safetensors", "half.json", "digest.json"


def save_split(pair: Split, folder: str | os.PathLike[str]) -> dict[str, str]:
    """Write both halves and ``split.json``; returns the digests by half."""
    root = Path(folder)
    halves: dict[str, Half] = {"front": pair.front, "back": pair.back}
    digests = {side: _save_half(side, half, root / side) for side, half in halves.items()}
    _save_summary(root, pair.back, digests)
    return digests


def save_back(back: Back | NarrowBack, folder: str | os.PathLike[str], *, front_digest: str) -> str:
    """Write ``back/`` and ``split.json`` where the front is elsewhere and only its digest is known."""
    root = Path(folder)
    digest = _save_half("back", back, root / "back")
    _save_summary(root, back, {"front": front_digest, "back": digest})
    return digest


def _save_half(side: str, half: Half, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous().clone() for name, value in half.state_dict().items()}
    with draft_of(folder / _WEIGHTS) as draft:
        save_file(tensors, draft)
    write_json(folder / _SETTINGS, _settings(side, half), sort_keys=True)
    digest = half_digest(folder)
    write_file(folder / _DIGEST, json.dumps({"sha256": digest}) + "\n")
    return digest


def _save_summary(root: Path, back: Back | NarrowBack, digests: dict[str, str]) -> None:
    named = {f"digest_{side}": digest for side, digest in digests.items()}
    write_json(root / "split.json", {"format": _FORMAT, "cut": str(back.cut), **named}, sort_keys=True)


def _settings(side: str, half: Half) -> dict[str, Any]:
    plain = half.front if isinstance(half, NarrowFront) else half
    plain = plain.back if isinstance(plain, NarrowBack) else plain
    return {
        "format": _FORMAT,
        "half": side,
        "cut": str(half.cut),
        "width": half.width if isinstance(half, NarrowFront | NarrowBack) else None,
        "architecture": plain.architecture,
        "allow_vocabulary_head": plain.vocabulary_head,
        "model": plain.settings,
    }


def half_digest(folder: str | os.PathLike[str]) -> str:
    """SHA-256 over the names, lengths and bytes of a half's two files."""
    digest = hashlib.sha256()
    for name in (_SETTINGS, _WEIGHTS):
        data = (Path(folder) / name).read_bytes()
        digest.update(f"{name}:{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def load_front(folder: str | os.PathLike[str], *, digest: str | None = None) -> Front | NarrowFront:
    """The user's half; ``digest`` pins it to a known one."""
    return _load(Path(folder), "front", digest).front


def load_back(folder: str | os.PathLike[str], *, digest: str | None = None) -> Back | NarrowBack:
    """The provider's half; ``digest`` pins it to a known one."""
    return _load(Path(folder), "back", digest).back


def _load(folder: Path, side: str, digest: str | None) -> Split:
    pair = _rebuild(_check(folder, side, digest))
    half: nn.Module = pair.front if side == "front" else pair.back
    weights = load_file(folder / _WEIGHTS)
    wanted = half.state_dict()
    if weights.keys() != wanted.keys() or any(weights[k].shape != wanted[k].shape for k in wanted):
        raise InvalidInput(
            "folder", "hold the weights that its settings ask for", "other tensors", "Save it again."
        )
    half.load_state_dict(weights)
    half.train(False)
    return pair


def missing_file_remedy(folder: Path, side: str, name: str, *, otherwise: str) -> str:
    """The remedy for a folder without this file: its half, where somebody named the folder of both."""
    inside = folder / side
    return f"Name {inside}." if (inside / name).is_file() else otherwise


def _check(folder: Path, side: str, digest: str | None) -> dict[str, Any]:
    for name in (_WEIGHTS, _SETTINGS, _DIGEST):
        if not (folder / name).is_file():
            made = f"Name the folder {side} that dpf finetune or dpf split made."
            remedy = missing_file_remedy(folder, side, name, otherwise=made)
            raise InvalidInput("folder", f"hold {name}", "no such file", remedy)
    found = half_digest(folder)
    for expected in (_stored_digest(folder / _DIGEST), digest):
        if expected is not None and found != expected:
            raise InvalidInput(
                "folder", f"match its digest {expected[:12]}...", f"{found[:12]}...", "Get it again."
            )
    settings = read_json(folder / _SETTINGS, name="folder", remedy="Get it again.")
    if settings.get("format") != _FORMAT:
        raise InvalidInput("folder", f"be of format {_FORMAT}", settings.get("format"), "Update dp-forward.")
    if settings.get("half") != side:
        raise InvalidInput("folder", f"hold a {side}", f"a {settings.get('half')}", "Name the other folder.")
    return settings


def _stored_digest(path: Path) -> str:
    stored = read_json(path, name="folder", remedy="Get it again.")
    if "sha256" not in stored:
        raise InvalidInput("folder", f"hold a readable {path.name}", "something else", "Get it again.")
    return str(stored["sha256"])


def _rebuild(settings: dict[str, Any]) -> Split:
    """The same surgery on a model of the same shape."""
    kind = settings["model"].get("model_type")
    if kind not in FAMILIES:
        raise InvalidInput("model_type", "be a known family", kind, "Update dp-forward.")
    architecture = getattr(transformers, str(settings["architecture"]), None)
    if not (isinstance(architecture, type) and issubclass(architecture, transformers.PreTrainedModel)):
        raise InvalidInput("architecture", "be a Hugging Face model class", architecture, "Save it again.")
    shape = transformers.AutoConfig.for_model(**settings["model"])
    model = architecture(shape)
    model.train(False)
    return split_model(
        model,
        settings["cut"],
        width=settings["width"],
        allow_vocabulary_head=bool(settings["allow_vocabulary_head"]),
    )
