"""What a collector wants: which releases, with which labels, and whether a shuffler takes them.

It holds the *choice* of noise (the manifest) and of the labels' noise, never a sigma: both parties calibrate
anew. `CollectionSpec.corpus_spec` is what the records will be once they lie in a corpus.

Edges:
    One corpus has one noise: a collection takes its manifest's own epsilon alone. What comes from the network
    goes through `from_dict`, where every defect is a `WireError` that repeats nothing of what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dp_forward.corpus.corpus_spec import CorpusSpec, Labels, labels_as_dict, labels_from_dict
from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.service.protocol.frame import WireError
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.protocol.record import RECORD_LABEL_BYTES

__all__ = ["CollectionSpec"]

MOST_BODY_BYTES: Final = 8 << 20
"""No body of records is longer."""
MOST_BODY_RECORDS: Final = 256
"""No body holds more records."""
_VERSION: Final = 1
_KEYS: Final = {"version", "manifest", "labels", "shuffler"}
_LEAST_HIDING: Final = 2
"""A batch of one hides nobody."""
_MOST_HIDING: Final = 1 << 30


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectionSpec:
    """What every record of a collection looks like; see the module.

    ``shuffler_least`` is None where the collector itself takes the records; else a shuffler takes them, and
    passes them on in batches of at least so many.

    Guarantees:
        A spec that exists has a guarantee (`corpus_spec`), and a record of it fits into one body.
    """

    manifest: Manifest
    labels: Labels
    shuffler_least: int | None = None

    def __post_init__(self) -> None:
        if self.manifest.epsilons:
            given = f"{1 + len(self.manifest.epsilons)}"
            raise InvalidInput("manifest", "ask for one noise", given, "Use CollectionSpec.of.")
        self.corpus_spec(1, 1).guarantee()  # refuses labels that do not fit, and what cannot be promised
        if self.record_bytes > MOST_BODY_BYTES:
            rule = f"take at most {MOST_BODY_BYTES} bytes"
            raise InvalidInput("record", rule, self.record_bytes, "Cut where less crosses, or use 8 bits.")
        if self.shuffler_least is not None:
            remedy, least = "One record alone is not hidden.", self.shuffler_least
            if count("shuffler_least", least, at_least=_LEAST_HIDING, remedy=remedy) > _MOST_HIDING:
                rule = f"be at most {_MOST_HIDING}"
                raise InvalidInput("shuffler_least", rule, "more", "Nobody waits so long.")

    @classmethod
    def of(cls, manifest: Manifest, labels: Labels, *, shuffler_least: int | None = None) -> CollectionSpec:
        """The form for what a server answers: its own epsilon, and none of the smaller ones."""
        return cls(manifest=replace(manifest, epsilons=()), labels=labels, shuffler_least=shuffler_least)

    def with_shuffler(self, least: int | None) -> CollectionSpec:
        """The same records, towards a shuffler (or without one)."""
        return replace(self, shuffler_least=least)

    @property
    def record_bytes(self) -> int:
        """How long every record is."""
        return self.manifest.frame_bytes + RECORD_LABEL_BYTES

    @property
    def label_count(self) -> int | None:
        """How many labels there are; None where none are collected. For `parse_record`."""
        return None if self.labels == "none" else len(self.manifest.release.labels)

    @property
    def body_records(self) -> int:
        """How many records fit into one body."""
        return min(MOST_BODY_RECORDS, MOST_BODY_BYTES // self.record_bytes)

    def corpus_spec(self, records: int, shard_records: int) -> CorpusSpec:
        """The spec of a corpus of so many of these records."""
        return CorpusSpec(
            release=self.manifest.release, labels=self.labels, records=records, shard_records=shard_records
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        least = self.shuffler_least
        return {
            "version": _VERSION,
            "manifest": self.manifest.as_dict(),
            "labels": labels_as_dict(self.labels),
            "shuffler": None if least is None else {"least": least},
        }

    @classmethod
    def from_dict(cls, settings: object) -> CollectionSpec:
        """From what a collector sent, as JSON reads it; anything but a sound form is a `WireError`."""
        if not isinstance(settings, Mapping) or set(settings) != _KEYS:
            rule = f"A collection has the keys {', '.join(sorted(_KEYS))} and no others"
            raise WireError("collection", rule)
        if type(settings["version"]) is not int or settings["version"] != _VERSION:
            raise WireError("version", f"Version {_VERSION} of collections is spoken here, not the server's")
        manifest = Manifest.from_dict(settings["manifest"])
        try:
            labels = labels_from_dict(settings["labels"], len(manifest.release.labels))
            shuffler = settings["shuffler"]
            least = None if shuffler is None else shuffler["least"]
            made = cls(manifest=manifest, labels=labels, shuffler_least=least)
            if made.as_dict() != dict(settings):
                raise ValueError("written otherwise")
        except DpForwardError as error:
            name = getattr(error, "name", "labels")
            raise WireError("collection", f"The collection is not sound: see its {name}") from None
        except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError):
            raise WireError("collection", "The collection holds a value that makes no sense") from None
        return made

    def __repr__(self) -> str:
        how = labels_as_dict(self.labels)["how"]
        by = "" if self.shuffler_least is None else f", shuffled {self.shuffler_least} or more at a time"
        return f"CollectionSpec({self.manifest!r}, labels {how}{by})"
