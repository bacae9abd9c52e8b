"""What is handed to each party: the user's folder and the provider's, each of use without the other.

    RUN/front/  model.safetensors, half.json, digest.json   the front (split.store)
                tokenizer/                                   how texts become tokens
                release.json                                 which noise, how many rows, which labels
    RUN/back/   model.safetensors, half.json, digest.json   the back
                release.json                                 the same, so that the provider knows what it gets

``release.json`` holds the *choice* of noise, never a sigma: whoever loads it calibrates anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.privacy import Mechanism, NoiseSpec
from dp_forward.privacy.checks import count
from dp_forward.privacy.units import refuse_where_rows_mix
from dp_forward.split.half_files import digest_of, load_back, load_front, save_back, save_split, where_it_lies
from dp_forward.split.halves import Back, Front, NarrowBack, NarrowFront, Split

__all__ = [
    "ProviderSide",
    "ReleaseForm",
    "UserSide",
    "hand_over",
    "hand_over_back",
    "load_provider_side",
    "load_user_side",
]

_FORMAT = 1
_FORM, _TOKENIZER = "release.json", "tokenizer"


@dataclass(frozen=True, kw_only=True)
class ReleaseForm:
    """What one release looks like: public, and the same for every text.

    ``rows`` is how many tokens a text is cut or padded to; at the cut `output` one row crosses all the same.
    ``labels`` are the names of what the back answers. ``noise`` is None for an undefended model.
    """

    noise: NoiseSpec | None
    rows: int
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        count("rows", self.rows, remedy="It is the fixed public length n.")

    def mechanism(self) -> Mechanism:
        """The noise, calibrated now."""
        if self.noise is None:
            raise InvalidInput("front", "come with noise", "none", "It was trained as an undefended model.")
        return self.noise.build()

    def refuse_mixed_rows(self, *, row_local: bool, cut: object) -> None:
        """A promise per token or phrase needs a front that computes each row from its own token."""
        if self.noise is not None:
            refuse_where_rows_mix("unit", self.noise.protects, row_local=row_local, cut=cut)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        noise = None if self.noise is None else self.noise.as_dict()
        return {"format": _FORMAT, "noise": noise, "rows": self.rows, "labels": list(self.labels)}

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> ReleaseForm:
        """From JSON; anything but what `as_dict` writes is refused."""
        if settings.get("format") != _FORMAT or settings.keys() != {"format", "noise", "rows", "labels"}:
            raise InvalidInput(_FORM, f"be of format {_FORMAT}", settings.get("format"), "Update dp-forward.")
        noise = settings["noise"]
        return cls(
            noise=None if noise is None else NoiseSpec.from_dict(noise),
            rows=settings["rows"],
            labels=tuple(map(str, settings["labels"])),
        )


@dataclass(frozen=True, eq=False)
class UserSide:
    """All that a user needs to make a release.

    Guarantees:
        Its form promises nothing per token or phrase where the front mixes rows.
    """

    front: Front | NarrowFront
    tokens: FixedLength
    form: ReleaseForm
    digest: str

    def __post_init__(self) -> None:
        self.form.refuse_mixed_rows(row_local=self.front.row_local, cut=self.front.cut)


@dataclass(frozen=True, eq=False)
class ProviderSide:
    """All that a provider needs to answer one."""

    back: Back | NarrowBack
    form: ReleaseForm
    digest: str


def hand_over(
    pair: Split, form: ReleaseForm, tokenizer: Any, folder: str | os.PathLike[str]
) -> dict[str, str]:
    """Write both sides into ``folder``; returns the digests of the halves."""
    root = Path(folder)
    digests = save_split(pair, root)
    tokenizer.save_pretrained(root / "front" / _TOKENIZER)
    for side in ("front", "back"):
        _write_form(form, root / side)
    return digests


def hand_over_back(
    back: Back | NarrowBack, form: ReleaseForm, folder: str | os.PathLike[str], *, front_digest: str
) -> str:
    """Write the provider's side alone into ``folder``, for the front of this digest; returns its own."""
    root = Path(folder)
    digest = save_back(back, root, front_digest=front_digest)
    _write_form(form, root / "back")
    return digest


def _write_form(form: ReleaseForm, place: Path) -> None:
    draft = place / (_FORM + ".new")
    draft.write_text(json.dumps(form.as_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(place / _FORM)


def load_user_side(folder: str | os.PathLike[str], *, digest: str | None = None) -> UserSide:
    """The front, its tokenizer and the form of a release; ``digest`` pins the front to a known one."""
    import transformers

    place = Path(folder)
    form = _form(place, "front")
    front = load_front(place, digest=digest)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place / _TOKENIZER)
    except (OSError, ValueError):
        raise InvalidInput(
            "front", f"hold a {_TOKENIZER}", "none that loads", "Hand it over again."
        ) from None
    tokens = FixedLength(tokenizer, form.rows, causal=front.pads_left, most_positions=front.max_rows)
    return UserSide(front, tokens, form, digest_of(place))


def load_provider_side(folder: str | os.PathLike[str], *, digest: str | None = None) -> ProviderSide:
    """The back and the form of what it will be sent."""
    place = Path(folder)
    return ProviderSide(load_back(place, digest=digest), _form(place, "back"), digest_of(place))


def _form(place: Path, side: str) -> ReleaseForm:
    path = place / _FORM
    if not path.is_file():
        remedy = where_it_lies(place, side, _FORM, otherwise="Make it with dpf finetune.")
        raise InvalidInput("folder", f"hold {_FORM}", "no such file", remedy)
    try:
        return ReleaseForm.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("folder", f"hold a readable {_FORM}", "something else", "Get it again.") from None
