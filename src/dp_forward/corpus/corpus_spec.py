"""Public settings of a released corpus, from which both parties derive the same promise.

The user writes them into ``manifest.json``; whoever reads that file calibrates the noise anew and asks the
mechanism for the guarantee. No epsilon is ever taken from a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.noise.released.entropy import ENTROPY_IS_SECRET
from dp_forward.privacy import Deployment, Guarantee, Prior, RandomizedResponse, ResponseWithPrior, compose
from dp_forward.privacy.charge import Charge
from dp_forward.privacy.checks import count
from dp_forward.release_spec import ReleaseSpec

__all__ = ["CorpusSpec", "LabelMechanism", "Labels", "labels_as_dict", "labels_from_dict", "shard_size"]

LabelMechanism = RandomizedResponse | ResponseWithPrior  # how a label is randomized

Labels = LabelMechanism | Literal["public", "none", "folded"]
"""What is known of the labels: a randomized answer, everything, nothing, or only what the one release of text
and label tells (`noise.folded_record`)."""

_SHARD_BYTES: Final = 64 << 20
_MOST_SHARD_RECORDS: Final = 1 << 16
_PIECE_BYTES: Final = 4 << 20
_PIECE_RECORDS: Final = 1024  # a piece is what a crash can cost in work: a few seconds of it
_KEYS = {"front", "release", "labels", "bits", "rows", "width", "records", "shard_records"}
_ASSUMPTIONS = (
    "the front does not depend on the released texts",
    "the number and the order of the records are public",
    "a text that is in several records spends in each",
    ENTROPY_IS_SECRET,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class CorpusSpec:
    """What is public of a corpus of ``records``: its ``release``, ``labels`` and ``shard_records``.

    Guarantees:
        `guarantee` covers one record: its text (SeqLDP where labels are public, LDP where none are stored),
        or text and label together where the label is randomized, or folded into the release.
    """

    release: ReleaseSpec
    labels: Labels
    records: int
    shard_records: int

    def __post_init__(self) -> None:
        for name in ("records", "shard_records"):
            count(name, getattr(self, name), remedy="A corpus has records, and a record has rows.")
        if (self.labels == "folded") != self.release.folded:
            rule = "be folded where the release protects a record, and only there"
            raise InvalidInput("labels", rule, labels_as_dict(self.labels)["how"], "Check unit and labels.")
        if isinstance(self.labels, LabelMechanism) and self.labels.labels != len(self.release.labels):
            rule = f"be for the {len(self.release.labels)} labels of the front"
            remedy = "Make it with labels=K, the number of labels of the task."
            raise InvalidInput("label_mechanism", rule, self.labels.labels, remedy)

    def guarantee(self) -> Guarantee:
        """What a record is promised."""
        text = self.release.mechanism()
        if isinstance(self.labels, LabelMechanism):
            return Deployment(compose(text, self.labels)).guarantee(assumptions=_ASSUMPTIONS)
        return Deployment(text, public_label=self.labels == "public").guarantee(assumptions=_ASSUMPTIONS)

    def charge(self) -> Charge:
        """What every record spends."""
        text = self.release.mechanism().charge()
        return text + self.labels.charge() if isinstance(self.labels, LabelMechanism) else text

    @property
    def stores_labels(self) -> bool:
        """Whether a label, true or randomized, is stored beside each release."""
        return self.labels not in ("none", "folded")

    @property
    def shards(self) -> int:
        """How many files the corpus takes."""
        return -(-self.records // self.shard_records)

    def span(self, shard: int) -> range:
        """The records of a shard."""
        first = shard * self.shard_records
        return range(first, min(first + self.shard_records, self.records))

    def pieces(self, first: int = 0) -> Iterator[range]:
        """The records from ``first`` on, as they are drawn at a time; never of two shards."""
        step = max(1, min(_PIECE_RECORDS, _PIECE_BYTES // self.release.payload_bytes))
        while first < self.records:
            last = min(first + step, self.span(first // self.shard_records).stop)
            yield range(first, last)
            first = last

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "front": self.release.front,
            "release": self.release.as_dict(),
            "labels": labels_as_dict(self.labels),
            "bits": self.release.bits,
            "rows": self.release.matrix_rows,
            "width": self.release.width,
            "records": self.records,
            "shard_records": self.shard_records,
        }

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """From JSON; anything but what `as_dict` writes is refused."""
        rule = f"have the keys {', '.join(sorted(_KEYS))}"
        refuse_if(settings.keys() != _KEYS, "corpus", rule, sorted(settings), "Update dp-forward.")
        crosses, tokens = settings["rows"], settings["release"]["rows"]
        # The files do not say the cut; that one row crosses of several tokens says it is `output`.
        release = ReleaseSpec.from_dict(
            settings["release"],
            width=settings["width"],
            cut="output" if crosses == 1 != tokens else None,
            front=settings["front"],
            bits=settings["bits"],
        )
        if release.matrix_rows != crosses:
            raise InvalidInput("rows", f"be 1 or {tokens}", crosses, "Get the corpus again.")
        return cls(
            release=release,
            labels=labels_from_dict(settings["labels"], len(release.labels)),
            records=settings["records"],
            shard_records=settings["shard_records"],
        )


def shard_size(release: ReleaseSpec) -> int:
    """How many records of a ``release`` at 16 bits fit in 64 MiB: those of a shard by default."""
    return min(max(1, _SHARD_BYTES // (release.matrix_rows * release.width * 2)), _MOST_SHARD_RECORDS)


def labels_as_dict(labels: Labels) -> dict[str, Any]:
    """For JSON: how ``labels`` are stored."""
    if not isinstance(labels, LabelMechanism):
        return {"how": labels}
    plain = {"epsilon": labels.label_epsilon, "releases": labels.releases}
    if isinstance(labels, RandomizedResponse):
        return {"how": "randomized", **plain}
    prior = labels.prior
    belief = {"weights": prior.weights.tolist(), "source": prior.source, "where": prior.where}
    return {"how": "randomized-with-prior", **plain, "prior": belief}


def labels_from_dict(settings: dict[str, Any], labels: int) -> Labels:
    """From JSON, for so many ``labels``; anything but what `labels_as_dict` writes is refused."""
    match settings:
        case {"how": ("public" | "none" | "folded") as how, **rest} if not rest:
            plain: Labels = how
            return plain
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
    rule = "be public, none, folded or randomized"
    raise InvalidInput("labels", rule, settings.get("how"), "Update dp-forward.")
