"""The one description of a release: which noise, on what shape, from which front, for which labels.

It is public and the same for every text. Folders, manifests, corpora, policies and frames hold a
`ReleaseSpec` or a part of it. It holds the *choice* of noise, never a sigma: whoever reads it calibrates
anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import RECORD, KaryResponse, Mechanism, NoiseSpec
from dp_forward.privacy.checks import count
from dp_forward.privacy.units import refuse_where_rows_mix

__all__ = ["ReleaseSpec", "release_width"]

_FORMAT: Final = 1
_KEYS: Final = {"format", "noise", "rows", "labels"}
_POOLED: Final = "output"
_LONGEST_REPLY: Final = 8000


class _Half(Protocol):
    """A front or a back: where the model is cut, and how many columns cross."""

    @property
    def cut(self) -> object: ...
    @property
    def width(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class ReleaseSpec:
    """What one release looks like; see the module.

    ``noise`` is None for an undefended model. ``rows`` is how many tokens a text is cut or padded to;
    ``matrix_rows x width`` integers of ``bits`` bits cross. ``labels`` are the names of what the back
    answers. ``cut`` is None where a stored corpus does not say it, ``front`` (the hex digest of the front)
    before the front was saved.

    Guarantees:
        One row crosses at the cut `output`, ``rows`` at every other. The same spec makes the same mechanism
        everywhere. K-ary response stands at `output` only, with as many columns as it has labels.
    Edges:
        8 or 16 bits are as private: the rounding comes after the noise.
    """

    noise: NoiseSpec | None
    rows: int
    labels: tuple[str, ...]
    width: int
    cut: str | None
    front: str | None = None
    bits: int = 16

    def __post_init__(self) -> None:
        count("rows", self.rows, remedy="It is the fixed public length n.")
        count("width", self.width, remedy="It is what the back was made for.")
        known = type(self.bits) is int and self.bits in (8, 16)
        refuse_if(not known, "bits", "be 8 or 16", repr(self.bits), "8 halves the bytes and is as private.")
        noise = self.noise
        if noise is not None and noise.mechanism == KaryResponse.name and self.cut is not None:
            rule = f"be {noise.columns} at the cut output for {noise.mechanism}"
            wrong = (self.cut, self.width) != (_POOLED, noise.columns)
            refuse_if(wrong, "width", rule, f"{self.width} at {self.cut}", "One score per label crosses.")
        if self.folded and (self.cut not in (_POOLED, None) or self.width % len(self.labels)):
            found = f"{self.width} columns at {self.cut}"
            raise InvalidInput("unit", "be text unless one row is folded", found, "Release it at output.")

    @classmethod
    def of(
        cls,
        half: _Half,
        *,
        noise: NoiseSpec | None,
        rows: int,
        labels: Sequence[str],
        front: str | None = None,
    ) -> Self:
        """The releases of a front, or for a back: cut and width are those of the half."""
        width = release_width(half.width, noise, labels)
        return cls(noise=noise, rows=rows, labels=tuple(labels), width=width, cut=str(half.cut), front=front)

    @staticmethod
    def is_reply(said: object) -> bool:
        """Whether a provider may say this to a label: 1 to 8,000 letters, and no terminal codes."""
        return (
            isinstance(said, str) and 0 < len(said) <= _LONGEST_REPLY and "".join(said.split()).isprintable()
        )

    @property
    def folded(self) -> bool:
        """Whether text and label of a record are in one release (`noise.folded_record`)."""
        return self.noise is not None and self.noise.protects == RECORD

    @property
    def matrix_rows(self) -> int:
        """How many rows cross: at `output` one, whatever the number of tokens."""
        return 1 if self.cut == _POOLED else self.rows

    @property
    def shape(self) -> tuple[int, int]:
        """What crosses: rows and columns."""
        return self.matrix_rows, self.width

    @property
    def payload_bytes(self) -> int:
        """How many bytes the matrix of one release takes."""
        return self.matrix_rows * self.width * self.bits // 8

    @property
    def integers(self) -> np.dtype[Any]:
        """How one number is stored."""
        return np.dtype(f"<i{self.bits // 8}")

    def required_noise(self) -> NoiseSpec:
        """The choice of noise; an undefended model is refused."""
        if self.noise is None:
            raise InvalidInput("front", "come with noise", "none", "It was trained as an undefended model.")
        return self.noise

    def mechanism(self) -> Mechanism:
        """The noise, calibrated now."""
        return self.required_noise().build()

    def refuse_mixed_rows(self, *, row_local: bool) -> None:
        """A promise per token or phrase needs a front that computes each row from its own token."""
        if self.noise is not None:
            refuse_where_rows_mix("unit", self.noise.protects, row_local=row_local, cut=self.cut)

    def as_dict(self) -> dict[str, Any]:
        """For ``release.json`` beside a half, which says the rest itself: noise, rows and labels."""
        noise = None if self.noise is None else self.noise.as_dict()
        return {"format": _FORMAT, "noise": noise, "rows": self.rows, "labels": list(self.labels)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], *, width: int, cut: str | None, **rest: Any) -> Self:
        """From ``release.json`` and what its half says; anything but what `as_dict` writes is refused."""
        found = settings.get("format")
        known, rule = found == _FORMAT and settings.keys() == _KEYS, f"be of format {_FORMAT}"
        refuse_if(not known, "release.json", rule, found, "Update dp-forward.")
        noise, labels = settings["noise"], tuple(map(str, settings["labels"]))
        noise = None if noise is None else NoiseSpec.from_dict(noise)
        return cls(noise=noise, rows=settings["rows"], labels=labels, width=width, cut=cut, **rest)


def release_width(width: int, noise: NoiseSpec | None, labels: Sequence[str]) -> int:
    """How many columns cross for a half of ``width``: more where a label is folded in."""
    folded = noise is not None and noise.protects == RECORD
    return len(labels) * (width + 1) if folded else width
