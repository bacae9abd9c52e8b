"""Folders for the two parties: the user's side and the provider's, each of use without the other.

    RUN/front/  model.safetensors, half.json, digest.json   the front (split.half_files)
                tokenizer/                                   how texts become tokens
                release.json                                 noise, rows and labels of a release
    RUN/back/   model.safetensors, half.json, digest.json   the back
                release.json                                 the same, so that the provider knows what it gets

``release.json`` holds the *choice* of noise, never a sigma: whoever loads it calibrates anew.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split.half_files import (
    half_digest,
    load_back,
    load_front,
    missing_file_remedy,
    save_back,
    save_split,
)
from dp_forward.split.halves import Back, Front, NarrowBack, NarrowFront, Split
from dp_forward.storage.json_files import read_json, write_json

__all__ = [
    "ProviderSide",
    "UserSide",
    "load_provider_side",
    "load_user_side",
    "save_provider_side",
    "save_sides",
]

_SPEC: Final = "release.json"
_TOKENIZER: Final = "tokenizer"


@dataclass(frozen=True, eq=False)
class UserSide:
    """All that a user needs to make a release.

    Guarantees:
        Its spec promises nothing per token or phrase where the front mixes rows.
    """

    front: Front | NarrowFront
    tokens: FixedLength
    spec: ReleaseSpec

    def __post_init__(self) -> None:
        if self.spec.front is None:
            raise InvalidInput("spec", "name the digest of the front", None, "Save the front first.")
        self.spec.refuse_mixed_rows(row_local=self.front.row_local)

    @property
    def digest(self) -> str:
        """The digest of the front."""
        return self.spec.front or ""


@dataclass(frozen=True, eq=False)
class ProviderSide:
    """All that a provider needs to answer one; ``digest`` is that of the back."""

    back: Back | NarrowBack
    spec: ReleaseSpec
    digest: str


def save_sides(
    pair: Split, spec: ReleaseSpec, tokenizer: Any, folder: str | os.PathLike[str]
) -> dict[str, str]:
    """Write both sides into ``folder``; returns the digests of the halves."""
    root = Path(folder)
    digests = save_split(pair, root)
    tokenizer.save_pretrained(root / "front" / _TOKENIZER)
    for side in ("front", "back"):
        write_json(root / side / _SPEC, spec.as_dict(), sort_keys=True)
    return digests


def save_provider_side(
    back: Back | NarrowBack, spec: ReleaseSpec, folder: str | os.PathLike[str], *, front_digest: str
) -> str:
    """Write the provider's side alone into ``folder``, for the front of this digest; returns its own."""
    root = Path(folder)
    digest = save_back(back, root, front_digest=front_digest)
    write_json(root / "back" / _SPEC, spec.as_dict(), sort_keys=True)
    return digest


def load_user_side(folder: str | os.PathLike[str], *, digest: str | None = None) -> UserSide:
    """The front, its tokenizer and the spec of a release; ``digest`` pins the front to a known one."""
    import transformers

    place = Path(folder)
    settings = _settings(place, "front")
    front = load_front(place, digest=digest)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place / _TOKENIZER)
    except (OSError, ValueError):
        raise InvalidInput(
            "front", f"hold a {_TOKENIZER}", "none that loads", "Hand it over again."
        ) from None
    spec = replace(_spec(settings, front), front=half_digest(place))
    tokens = FixedLength(tokenizer, spec.rows, causal=front.pads_left, most_positions=front.max_rows)
    return UserSide(front, tokens, spec)


def load_provider_side(folder: str | os.PathLike[str], *, digest: str | None = None) -> ProviderSide:
    """The back and the spec of what it will be sent; which front that comes from, the back cannot say."""
    place = Path(folder)
    settings = _settings(place, "back")
    back = load_back(place, digest=digest)
    return ProviderSide(back, _spec(settings, back), half_digest(place))


def _settings(place: Path, side: str) -> dict[str, Any]:
    if not (place / _SPEC).is_file():
        remedy = missing_file_remedy(place, side, _SPEC, otherwise="Make it with dpf finetune.")
        raise InvalidInput("folder", f"hold {_SPEC}", "no such file", remedy)
    return read_json(place / _SPEC, name="folder", remedy="Get it again.")


def _spec(settings: dict[str, Any], half: Front | NarrowFront | Back | NarrowBack) -> ReleaseSpec:
    try:
        return ReleaseSpec.from_dict(settings, width=half.width, cut=str(half.cut))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("folder", f"hold a readable {_SPEC}", "something else", "Get it again.") from None
