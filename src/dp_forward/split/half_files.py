"""One half on disk: its weights, its settings, and the digest of both; how it is rebuilt from them.

Guarantees and layout are those of `artifacts`.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.optional_packages import name_extra
from dp_forward.split.families import FAMILIES
from dp_forward.storage.digests import file_digest
from dp_forward.storage.files import draft_of, write_file
from dp_forward.storage.json_files import read_json, write_json

if TYPE_CHECKING:
    from dp_forward.split.halves import AnyBack, AnyFront

FORMAT: Final = 1
_WEIGHTS, SETTINGS, _DIGEST = "model.safetensors", "half.json", "digest.json"
TOKENIZER, ONNX = "tokenizer", "front.onnx"


def save_half(side: str, half: AnyFront | AnyBack, root: Path, **more: Any) -> str:
    """Write a half, with ``more`` in its settings."""
    from safetensors.torch import save_file

    folder = root / side
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous().clone() for name, value in half.state_dict().items()}
    with draft_of(folder / _WEIGHTS) as draft:
        save_file(tensors, draft)
    return write_settings(folder, _settings(side, half) | more)


def write_settings(folder: Path, settings: dict[str, Any]) -> str:
    write_json(folder / SETTINGS, settings, sort_keys=True)
    digest = half_digest(folder)
    write_file(folder / _DIGEST, json.dumps({"sha256": digest}) + "\n")
    return digest


def _settings(side: str, half: AnyFront | AnyBack) -> dict[str, Any]:
    from dp_forward.split.halves import AnswerBack, NarrowBack, NarrowFront, ReadoutFront

    found: dict[str, Any] = {"format": FORMAT, "half": side, "cut": str(half.cut), "width": None}
    if isinstance(half, AnswerBack):
        found |= {"architecture": None, "allow_vocabulary_head": False, "model": {}}
        return {**found, "readout": {"labels": half.width}}
    plain = half.plain
    found["architecture"], found["model"] = plain.architecture, plain.settings
    found["allow_vocabulary_head"] = plain.vocabulary_head
    if isinstance(half, NarrowFront | NarrowBack):
        found["width"] = half.width
    # Only where there are any: the digest of a half covers these settings.
    known = {"pooling": plain.pooling, "prompt": getattr(plain, "prompt", None)}
    found |= {name: value for name, value in known.items() if value is not None}
    if isinstance(half, ReadoutFront):
        labels = None if half.decide is None else half.width
        found["readout"] = {"width": half.project.out_features, "labels": labels}
    return found


def half_digest(folder: str | os.PathLike[str]) -> str:
    """SHA-256 over the names, lengths and bytes of a half's two files."""
    digest = hashlib.sha256()
    for name in (SETTINGS, _WEIGHTS):
        data = (Path(folder) / name).read_bytes()
        digest.update(f"{name}:{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def require_files(folder: Path, side: str, *names: str, otherwise: str) -> None:
    """Refuse a folder without these files; who named the folder of both halves is told the right one."""
    for name in names:
        remedy = f"Name {folder / side}." if (folder / side / name).is_file() else otherwise
        refuse_if(not (folder / name).is_file(), "folder", f"hold {name}", "no such file", remedy)


def read_settings(path: Path) -> dict[str, Any]:
    return read_json(path, name="folder", remedy="Get it again.")


def check_half(folder: Path, side: str, digest: str | None) -> tuple[dict[str, Any], str]:
    """The settings and the digest of a half whose files match it."""
    made = f"Name the folder {side} that dpf finetune or dpf split made."
    require_files(folder, side, _WEIGHTS, SETTINGS, _DIGEST, otherwise=made)
    stored = read_settings(folder / _DIGEST)
    if "sha256" not in stored:
        raise InvalidInput("folder", f"hold a readable {_DIGEST}", "something else", "Get it again.")
    found = half_digest(folder)
    for expected in (str(stored["sha256"]), digest):
        if expected is not None and found != expected:
            rule = f"match its digest {expected[:12]}..."
            raise InvalidInput("folder", rule, f"{found[:12]}...", "Get it again.")
    settings = read_settings(folder / SETTINGS)
    if settings.get("format") != FORMAT:
        raise InvalidInput("folder", f"be of format {FORMAT}", settings.get("format"), "Update dp-forward.")
    if settings.get("half") != side:
        raise InvalidInput("folder", f"hold a {side}", f"a {settings.get('half')}", "Name the other folder.")
    if "tokenizer" in settings and settings["tokenizer"] != digests_below(folder / TOKENIZER):
        raise _changed(TOKENIZER)
    if "onnx" in settings:
        export = folder / ONNX
        named = settings["onnx"].get("sha256") if isinstance(settings["onnx"], dict) else None
        if not export.is_file() or file_digest(export) != named:
            raise _changed(ONNX)
    return settings, found


def _changed(name: str) -> InvalidInput:
    rule = f"hold the {name} that its digest names"
    return InvalidInput("folder", rule, "another one, or none", "Get it again, as it was saved.")


@name_extra("A half")
def build_half(folder: Path, side: str, settings: dict[str, Any]) -> AnyFront | AnyBack:
    from safetensors.torch import load_file

    half = _rebuild(settings, side)
    weights, wanted = load_file(folder / _WEIGHTS), half.state_dict()
    if weights.keys() != wanted.keys() or any(weights[k].shape != wanted[k].shape for k in wanted):
        rule = "hold the weights that its settings ask for"
        raise InvalidInput("folder", rule, "other tensors", "Save it again.")
    half.load_state_dict(weights)
    half.train(False)
    return half


def _rebuild(settings: dict[str, Any], side: str) -> AnyFront | AnyBack:
    """The same surgery on a model of the same shape; what stands at the end of it, if anything."""
    import transformers

    from dp_forward.split.halves import AnswerBack, ReadoutFront
    from dp_forward.split.surgery import split_model

    readout = settings.get("readout")
    if readout is not None and side == "back":
        return AnswerBack(int(readout["labels"]))
    kind = settings["model"].get("model_type")
    refuse_if(kind not in FAMILIES, "model_type", "be a known family", kind, "Update dp-forward.")
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
        prompt=settings.get("prompt"),
    )
    if side == "back":
        return pair.back
    if readout is None:
        return pair.front
    return ReadoutFront(pair.front, int(readout["width"]), readout["labels"])  # type: ignore[arg-type]


def digests_below(folder: Path) -> dict[str, str]:
    """The digest of every file below a folder, by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}
