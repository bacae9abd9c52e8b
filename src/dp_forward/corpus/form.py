"""What a released corpus is: public settings from which both parties derive the same promise.

The user writes them into ``manifest.json``; whoever reads that file calibrates the noise anew and asks the
mechanism for the guarantee. No epsilon is ever taken from a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput
from dp_forward.noise.released.entropy import ENTROPY_IS_SECRET
from dp_forward.privacy import (
    TEXT,
    Guarantee,
    Mechanism,
    Notion,
    Prior,
    RandomizedResponse,
    ResponseWithPrior,
    compose,
)
from dp_forward.privacy.charge import Charge
from dp_forward.privacy.checks import count
from dp_forward.split.artifacts import ReleaseForm

__all__ = ["CorpusForm", "LabelMechanism", "Labels"]

LabelMechanism = RandomizedResponse | ResponseWithPrior
"""How a label is randomized."""

Labels = LabelMechanism | Literal["public", "none"]
"""What is known of the labels: a randomized answer, everything, or nothing."""

_KEYS = {"front", "release", "labels", "bits", "rows", "width", "records", "shard_records"}
_ASSUMPTIONS = (
    "the front does not depend on the released texts",
    "the number and the order of the records are public",
    "a text that is in several records spends in each",
    ENTROPY_IS_SECRET,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class CorpusForm:
    """Everything about a released corpus that is public and the same for every record.

    ``front`` is the digest of the front, ``release`` the noise and labels, ``rows`` x ``width`` what crosses
    of each record as integers of ``bits`` bits.

    Guarantees:
        `guarantee` covers one record: its text (SeqLDP where labels are public, LDP where none are stored),
        or text and label together where the label is randomized.
    """

    front: str
    release: ReleaseForm
    labels: Labels
    bits: int
    rows: int
    width: int
    records: int
    shard_records: int

    def __post_init__(self) -> None:
        if self.bits not in (8, 16):
            raise InvalidInput("bits", "be 8 or 16", self.bits, "8 halves the files and costs no privacy.")
        for name in ("rows", "width", "records", "shard_records"):
            count(name, getattr(self, name), remedy="A corpus has records, and a record has rows.")
        if isinstance(self.labels, LabelMechanism) and self.labels.labels != len(self.release.labels):
            raise InvalidInput(
                "label_mechanism",
                f"be for the {len(self.release.labels)} labels of the front",
                self.labels.labels,
                "Make it with labels=K, the number of labels of the task.",
            )

    def mechanism(self) -> Mechanism:
        """The noise on the hidden matrix, calibrated now."""
        return self.release.mechanism()

    def guarantee(self) -> Guarantee:
        """What a record is promised."""
        text = self.mechanism()
        if isinstance(self.labels, LabelMechanism):
            return Guarantee(compose(text, self.labels), more_assumptions=_ASSUMPTIONS)
        notion = Notion.SEQ_LDP if self.labels == "public" and text.unit == TEXT else None
        return Guarantee(text, notion=notion, more_assumptions=_ASSUMPTIONS)

    def charge(self) -> Charge:
        """What every record spends."""
        text = self.mechanism().charge()
        return text + self.labels.charge() if isinstance(self.labels, LabelMechanism) else text

    def transition(self) -> NDArray[np.float64] | None:
        """Row y: how a label y is answered; None where labels are not randomized."""
        return self.labels.transition() if isinstance(self.labels, LabelMechanism) else None

    @property
    def integers(self) -> np.dtype[Any]:
        """How one number is stored."""
        return np.dtype(f"<i{self.bits // 8}")

    @property
    def record_bytes(self) -> int:
        """How many bytes the matrix of one record takes."""
        return self.rows * self.width * self.bits // 8

    @property
    def shards(self) -> int:
        """How many files the corpus takes."""
        return -(-self.records // self.shard_records)

    def span(self, shard: int) -> range:
        """The records of a shard."""
        first = shard * self.shard_records
        return range(first, min(first + self.shard_records, self.records))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "front": self.front,
            "release": self.release.as_dict(),
            "labels": _labels_as_dict(self.labels),
            "bits": self.bits,
            "rows": self.rows,
            "width": self.width,
            "records": self.records,
            "shard_records": self.shard_records,
        }

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> CorpusForm:
        """From JSON; anything but what `as_dict` writes is refused."""
        if settings.keys() != _KEYS:
            raise InvalidInput(
                "corpus", f"have the keys {', '.join(sorted(_KEYS))}", sorted(settings), "Update dp-forward."
            )
        release = ReleaseForm.from_dict(settings["release"])
        labels = _labels_from_dict(settings["labels"], len(release.labels))
        return cls(**{**settings, "release": release, "labels": labels})


def _labels_as_dict(labels: Labels) -> dict[str, Any]:
    match labels:
        case RandomizedResponse():
            return {"how": "randomized", "epsilon": labels.label_epsilon, "releases": labels.releases}
        case ResponseWithPrior():
            prior = labels.prior
            belief = {"weights": prior.weights.tolist(), "source": prior.source, "where": prior.where}
            plain = {"epsilon": labels.label_epsilon, "releases": labels.releases}
            return {"how": "randomized-with-prior", **plain, "prior": belief}
        case _:
            return {"how": labels}


def _labels_from_dict(settings: dict[str, Any], labels: int) -> Labels:
    match settings:
        case {"how": "public", **rest} if not rest:
            return "public"
        case {"how": "none", **rest} if not rest:
            return "none"
        case {"how": "randomized", "epsilon": epsilon, "releases": releases, **rest} if not rest:
            return RandomizedResponse(epsilon, labels, releases)
        case {
            "how": "randomized-with-prior",
            "epsilon": epsilon,
            "releases": releases,
            "prior": {"weights": weights, "source": source, "where": where},
            **rest,
        } if not rest:
            prior = Prior(np.asarray(weights, dtype=np.float64), source, where)
            return ResponseWithPrior(epsilon, prior, releases)
    raise InvalidInput("labels", "be public, none or randomized", settings.get("how"), "Update dp-forward.")
