"""Front and back on disk: folders for the user and for the provider, each of use without the other.

    DIR/front/  model.safetensors, half.json, digest.json   the front
                front.onnx                                   the same for a user without torch (`onnx_front`)
                tokenizer/                                   how texts become tokens
                release.json                                 noise, rows and labels of a release
    DIR/back/   model.safetensors, half.json, digest.json   the back
                release.json                                 the same, so that the provider knows what it gets
                replies.json                                 of a route: what is said to a label, public
    DIR/split.json                                           cut and the digests of both

A half (`save_split`, `load_front`, `load_back`) is rebuilt from its settings by the same surgery that made
it, and its weights are then filled in; nothing is unpickled, no code is loaded. A side (`save_sides`,
`load_user_side`, `load_provider_side`) is a half with its tokenizer and ``release.json``, which holds the
*choice* of noise, never a sigma: whoever loads it calibrates anew.

Guarantees:
    The digest is SHA-256 over the bytes of the weights and settings of a half. The settings of a user's front
    name the number of rows, ``front.onnx`` and every file of the tokenizer by its SHA-256, so the digest
    covers all that decides the hidden matrix of a text. A half whose files do not match its digest, a front
    whose tokenizer is missing, changed or has one file more, and a half that is asked to be the other one are
    refused before anything is built.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from dp_forward.data import FixedLength
from dp_forward.data.tokens import tokens_for
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.optional_packages import name_extra
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec, release_width
from dp_forward.split import half_files
from dp_forward.split.half_files import FORMAT, SETTINGS, TOKENIZER, half_digest, require_files
from dp_forward.split.onnx_front import OnnxFront, Tokens, export_front, light_tokens
from dp_forward.storage.json_files import read_json, write_json
from dp_forward.storage.stores import Place

if TYPE_CHECKING:
    from dp_forward.split.halves import AnyBack, AnyFront, Split

__all__ = [
    "AskingSide",
    "ProviderSide",
    "UserSide",
    "front_of",
    "half_digest",
    "load_asking_side",
    "load_back",
    "load_front",
    "load_provider_side",
    "load_user_side",
    "save_provider_side",
    "save_sides",
    "save_split",
    "save_user_side",
]

_SPEC, _REPLIES = "release.json", "replies.json"
_NO_SPEC: Final = "Make it with dpf finetune."


@dataclass(frozen=True, eq=False)
class AskingSide(ABC):
    """All that a user needs to make a release of one text, with torch (`UserSide`) or ONNX (`OnnxSide`).

    Guarantees:
        Its spec is of this front's cut and width, and promises nothing per token where the front mixes rows.
    """

    front: Any
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

    @abstractmethod
    def hidden(self, tokens: Tokens) -> NDArray[Any]:
        """The hidden matrix [1, rows, width] of one text's tokens [1, n]."""


@dataclass(frozen=True, eq=False)
class UserSide(AskingSide):
    """A front in torch: also for batches of texts, and to train."""

    front: AnyFront

    def hidden(self, tokens: Tokens) -> NDArray[Any]:
        import torch

        self.front.train(False)
        with torch.inference_mode():
            found: torch.Tensor = self.front(**{name: torch.from_numpy(ids) for name, ids in tokens.items()})
        return np.asarray(found.double().cpu(), np.float64)


@dataclass(frozen=True, eq=False)
class OnnxSide(AskingSide):
    """A front in ONNX: texts are asked about without torch."""

    front: OnnxFront

    def hidden(self, tokens: Tokens) -> NDArray[Any]:
        return self.front.hidden(tokens)


@dataclass(frozen=True, eq=False)
class ProviderSide:
    """All that a provider needs to answer one; ``digest`` is that of the back.

    ``replies`` say more to some labels than their names do; they are public, and of `train.routing`.
    """

    back: AnyBack
    spec: ReleaseSpec
    digest: str
    replies: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_other_half(self.spec, self.back)
        if not self.replies.keys() <= set(self.spec.labels):
            raise InvalidInput("replies", "be to labels of the back", "others", "Make the route again.")
        rule, remedy = "be printable texts of 1 to 8000 letters", "Shorten it, and make the route again."
        refuse_if(not all(map(self.spec.is_reply, self.replies.values())), "replies", rule, "another", remedy)


def _refuse_other_half(spec: ReleaseSpec, half: AnyFront | AnyBack | OnnxFront) -> None:
    """Refuse a spec that does not describe what crosses at this half."""
    width = release_width(half.width, spec.noise, spec.labels)
    for name, own in {"cut": str(half.cut), "width": width}.items():
        found = getattr(spec, name)
        refuse_if(found != own, "spec", f"have the {name} {own} of its half", found, "Use ReleaseSpec.of.")


def load_front(folder: Place, *, digest: str | None = None) -> AnyFront:
    """The user's half; ``digest`` pins it to a known one."""
    settings, _ = half_files.check_half(Path(folder), "front", digest)
    return cast("AnyFront", half_files.build_half(Path(folder), "front", settings))


def load_back(folder: Place, *, digest: str | None = None) -> AnyBack:
    """The provider's half; ``digest`` pins it to a known one."""
    settings, _ = half_files.check_half(Path(folder), "back", digest)
    return cast("AnyBack", half_files.build_half(Path(folder), "back", settings))


def save_split(pair: Split, folder: Place) -> dict[str, str]:
    """Write both halves and ``split.json``; returns the digests by half."""
    front = half_files.save_half("front", pair.front, Path(folder))
    return {"front": front, "back": save_provider_side(pair.back, None, folder, front_digest=front)}


def save_sides(
    pair: Split, spec: ReleaseSpec, tokenizer: Any, folder: Place, *, replies: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Write both sides into ``folder``; returns the digests of the halves. ``replies`` go with the back."""
    ProviderSide(pair.back, spec, "", replies or {})  # what it refuses is refused before anything is written
    front = save_user_side(pair.front, spec, tokenizer, folder)
    back = save_provider_side(pair.back, spec, folder, front_digest=front)
    if replies:
        write_json(Path(folder) / "back" / _REPLIES, replies)
    return {"front": front, "back": back}


def save_user_side(front: AnyFront, spec: ReleaseSpec, tokenizer: Any, folder: Place) -> str:
    """Write ``front/`` alone, and its ONNX where the front is one that asks; returns its digest."""
    place = Path(folder) / "front"
    files = place / TOKENIZER
    before = half_files.read_settings(place / SETTINGS).get("onnx") if (place / SETTINGS).is_file() else None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # what the last call left there; every call sets it anew
        backend.no_truncation()
        backend.no_padding()
    shutil.rmtree(files, ignore_errors=True)
    tokenizer.save_pretrained(files)
    digests = half_files.digests_below(files)
    digest = half_files.save_half("front", front, Path(folder), rows=spec.rows, tokenizer=digests)
    write_json(place / _SPEC, spec.as_dict(), sort_keys=True)
    if spec.noise is None or spec.folded or spec.noise.protects.tokens is not None:
        return digest
    settings = half_files.read_settings(place / SETTINGS)
    made = export_front(front, tokenizer, place, settings, of=digest, known=before)
    return digest if made is None else half_files.write_settings(place, {**settings, "onnx": made})


def save_provider_side(back: AnyBack, spec: ReleaseSpec | None, folder: Place, *, front_digest: str) -> str:
    """Write ``back/`` and ``split.json`` (with ``front_digest``) alone; returns the digest of the back."""
    root = Path(folder)
    digest = half_files.save_half("back", back, root)
    digests = {"digest_front": front_digest, "digest_back": digest}
    write_json(root / "split.json", {"format": FORMAT, "cut": str(back.cut), **digests}, sort_keys=True)
    if spec is not None:
        write_json(root / "back" / _SPEC, spec.as_dict(), sort_keys=True)
    return digest


def load_user_side(folder: Place, *, digest: str | None = None) -> UserSide:
    """The front, its tokenizer and the spec of a release; ``digest`` pins the front to a known one."""
    return _user_side(Path(folder), *_check_user(Path(folder), digest))


def load_asking_side(folder: Place) -> AskingSide:
    """As `load_user_side`; without torch where the front has ONNX (`onnx_front`) and onnxruntime is there."""
    place = Path(folder)
    settings, digest = _check_user(place, None)
    if "onnx" in settings and all(map(find_spec, ("onnxruntime", "tokenizers"))):
        try:
            front = OnnxFront(place, settings)
            spec = _spec_of(place, front, settings, digest)
            if spec.noise is None or spec.noise.protects.tokens is None:
                front.start()
                return OnnxSide(front, light_tokens(place, settings), spec)
        except InvalidInput:
            raise
        except Exception:  # the libraries raise anything
            rule = "hold an ONNX form and a tokenizer that load"
            raise InvalidInput("front", rule, "others", "Get it again.") from None
    with name_extra("A front without ONNX" if "onnx" not in settings else "A promise per token"):
        import torch  # noqa: F401

        return _user_side(place, settings, digest)


def _check_user(place: Path, digest: str | None) -> tuple[dict[str, Any], str]:
    """The settings and the digest of a user's front whose files are those that it was saved with."""
    require_files(place, "front", _SPEC, otherwise=_NO_SPEC)
    settings, found = half_files.check_half(place, "front", digest)
    older, remedy = "a front of an earlier version", "Make it again: its digest does not cover its tokenizer."
    refuse_if("tokenizer" not in settings, "front", f"name its {TOKENIZER} in {SETTINGS}", older, remedy)
    return settings, found


def _spec_of(place: Path, front: AnyFront | OnnxFront, settings: dict[str, Any], digest: str) -> ReleaseSpec:
    spec = replace(_read_spec(place, front), front=digest)
    rule = f"have {settings['rows']} rows in {_SPEC}, as in {SETTINGS}"
    refuse_if(spec.rows != settings["rows"], "front", rule, spec.rows, "Get it again.")
    return spec


def _user_side(place: Path, settings: dict[str, Any], digest: str) -> UserSide:
    import transformers

    front = cast("AnyFront", half_files.build_half(place, "front", settings))
    spec = _spec_of(place, front, settings, digest)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place / TOKENIZER)
    except (OSError, ValueError):
        raise InvalidInput("front", f"hold a {TOKENIZER}", "none that loads", "Hand it over again.") from None
    return UserSide(front, tokens_for(front, tokenizer, spec.rows), spec)


def front_of(folder: Place) -> Path:
    """The front of a run, where a whole run is named; otherwise the folder itself."""
    place = Path(folder)
    inside = place / "front"
    return inside if (inside / _SPEC).is_file() and not (place / _SPEC).is_file() else place


def load_provider_side(folder: Place, *, digest: str | None = None) -> ProviderSide:
    """The back and the spec of what it will be sent; ``digest`` pins the back to a known one."""
    place = Path(folder)
    require_files(place, "back", _SPEC, otherwise=_NO_SPEC)
    back, replies = load_back(place, digest=digest), dict[str, str]()
    if (place / _REPLIES).is_file():
        replies = read_json(place / _REPLIES, name="back", remedy="Make the route again.")
    return ProviderSide(back, _read_spec(place, back), half_digest(place), replies)


def _read_spec(folder: Path, half: AnyFront | AnyBack | OnnxFront) -> ReleaseSpec:
    settings = half_files.read_settings(folder / _SPEC)
    try:
        noise = None if settings["noise"] is None else NoiseSpec.from_dict(settings["noise"])
        width = release_width(half.width, noise, settings["labels"])
        return ReleaseSpec.from_dict(settings, width=width, cut=str(half.cut))
    except InvalidInput:
        raise
    except (ValueError, TypeError, AttributeError, KeyError):
        raise InvalidInput("folder", f"hold a readable {_SPEC}", "something else", "Get it again.") from None
