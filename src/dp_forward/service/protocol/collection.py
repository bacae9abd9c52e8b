"""Collection of training records: what a collector wants, and one record on the wire (docs/wire-format.md).

A record is one frame, and its label behind it:

    header (128 bytes, time 0) | rows * width integers | label (int32, little-endian; -1: none)

A `CollectionSpec` says which releases are collected, with which labels, and whether a shuffler takes them. It
holds the *choice* of noise (the manifest) and of the labels' noise, never a sigma: both parties calibrate it.

Guarantees:
    `parse_record` gives a `Record` or raises `WireError`, for any bytes whatever. What parses tells no time.
Edges:
    The id of a record is the ``request`` of its header. Two records are the same where id, integers and label
    are (`Record.digest`): the header's budget may differ in its last digits between two machines.
    One corpus has one noise: a collection takes its manifest's own epsilon alone. What comes from the network
    goes through `CollectionSpec.from_dict`: every defect is a `WireError` that repeats nothing of it.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from dp_forward.corpus.corpus_spec import CorpusSpec, Labels, labels_as_dict, labels_from_dict
from dp_forward.errors import DpForwardError, refuse_if
from dp_forward.privacy.checks import count
from dp_forward.service.protocol.frame import HEADER_BYTES, Frame, WireError, parse_frame
from dp_forward.service.protocol.manifest import Manifest

__all__ = ["CollectionSpec"]

MOST_BODY_BYTES: Final = 8 << 20
RECORD_LABEL_BYTES: Final = 4
ID_BYTES: Final = 16

_LABEL: Final = struct.Struct("<i")
ID_AT: Final = slice(96, 96 + ID_BYTES)  # where the id lies in a header
_VERSION: Final = 1
_KEYS: Final = {"version", "manifest", "labels", "shuffler"}
_MOST_HIDING: Final = 1 << 30


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectionSpec:
    """What every record of a collection looks like: a ``manifest`` and its ``labels``; see the module.

    ``shuffler_least`` is None where the collector itself takes the records; else a shuffler takes them, and
    passes them on in batches of at least so many. Where it knows its users, a batch has records of at least
    ``least_users`` of them, and at most ``records_per_user`` of each.

    Guarantees:
        A spec that exists has a guarantee (`corpus_spec`), and a record of it fits into one body.
    """

    manifest: Manifest
    labels: Labels
    shuffler_least: int | None = None
    least_users: int | None = None
    records_per_user: int | None = None

    def __post_init__(self) -> None:
        given = str(1 + len(self.manifest.epsilons))
        refuse_if(self.manifest.epsilons, "manifest", "ask for one noise", given, "Use CollectionSpec.of.")
        self.corpus_spec(1, 1).guarantee()  # refuses labels that do not fit, and what cannot be promised
        size, rule = self.record_bytes, f"take at most {MOST_BODY_BYTES} bytes"
        refuse_if(size > MOST_BODY_BYTES, "record", rule, size, "Cut where less crosses, or use 8 bits.")
        if self.shuffler_least is not None:
            remedy, rule = "One record alone is not hidden.", f"be at most {_MOST_HIDING}"
            least = count("shuffler_least", self.shuffler_least, at_least=2, remedy=remedy)
            refuse_if(least > _MOST_HIDING, "shuffler_least", rule, "more", "Nobody waits so long.")
        if (self.least_users, self.records_per_user) != (None, None):
            count("records_per_user", self.records_per_user, remedy="One is the clearest promise.")
            users = count("least_users", self.least_users, at_least=2, remedy="One user alone is not hidden.")
            rule = "be at most the fewest records of a batch"
            refuse_if(users > (self.shuffler_least or 0), "least_users", rule, users, "Raise the records.")

    @classmethod
    def of(cls, manifest: Manifest, labels: Labels, *, shuffler_least: int | None = None) -> Self:
        """The form for what a server answers: its own epsilon, and none of the smaller ones."""
        return cls(manifest=replace(manifest, epsilons=()), labels=labels, shuffler_least=shuffler_least)

    @property
    def record_bytes(self) -> int:
        """How long every record is."""
        return self.manifest.frame_bytes + RECORD_LABEL_BYTES

    @property
    def label_count(self) -> int | None:
        """How many labels there are; None where none are collected."""
        return None if self.labels in ("none", "folded") else len(self.manifest.release.labels)

    @property
    def body_records(self) -> int:
        """How many records fit into one body."""
        return min(256, MOST_BODY_BYTES // self.record_bytes, self.records_per_user or 256)

    def corpus_spec(self, records: int, shard_records: int) -> CorpusSpec:
        """The spec of a corpus of so many of these records."""
        return CorpusSpec(
            release=self.manifest.release, labels=self.labels, records=records, shard_records=shard_records
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        shuffler = {"least": self.shuffler_least}
        if self.least_users is not None:
            shuffler |= {"least_users": self.least_users, "records_per_user": self.records_per_user}
        return {
            "version": _VERSION,
            "manifest": self.manifest.as_dict(),
            "labels": labels_as_dict(self.labels),
            "shuffler": None if self.shuffler_least is None else shuffler,
        }

    @classmethod
    def from_dict(cls, settings: object) -> Self:
        """From what a collector sent, as JSON reads it; anything but a sound form is a `WireError`."""
        if not isinstance(settings, Mapping) or set(settings) != _KEYS:
            keys = ", ".join(sorted(_KEYS))
            raise WireError("collection", f"A collection has the keys {keys} and no others")
        if type(settings["version"]) is not int or settings["version"] != _VERSION:
            raise WireError("version", f"Version {_VERSION} of collections is spoken here, not the server's")
        manifest = Manifest.from_dict(settings["manifest"])
        try:
            labels = labels_from_dict(settings["labels"], len(manifest.release.labels))
            told = {} if settings["shuffler"] is None else settings["shuffler"]
            users = {name: told.get(name) for name in ("least_users", "records_per_user")}
            made = cls(manifest=manifest, labels=labels, shuffler_least=told.get("least"), **users)
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


@dataclass(frozen=True, slots=True, eq=False)
class Record(Frame):
    """A record as it was received; ``data`` is all of it."""

    label: int | None = field(repr=False)
    data: bytes = field(repr=False)

    @property
    def noisy(self) -> bytes:
        """The integers, as they lie in a corpus."""
        return self.data[HEADER_BYTES:-RECORD_LABEL_BYTES]

    @property
    def digest(self) -> bytes:
        """SHA-256 of id, integers and label."""
        return record_digest(self.header.request, self.noisy, self.label)


def record_digest(request: bytes, noisy: bytes, label: int | None) -> bytes:
    """What `Record.digest` is, from the parts."""
    return hashlib.sha256(b"dp-forward/record/1\0" + request + _label_bytes(label) + noisy).digest()


def pack_record(frame: bytes, label: int | None) -> bytes:
    """The record of a frame whose time is 0 and whose request is the record's id; None for no label."""
    return frame + _label_bytes(label)


def parse_record(data: bytes, *, labels: int | None) -> Record:
    """The record in these bytes; ``labels`` is how many there are, None where none are collected.

    Edges:
        The codes of a `WireError` are those of a frame, and "label".
    """
    if not isinstance(data, bytes):
        raise WireError("type", f"A record comes as bytes, not as {type(data).__name__}")
    if len(data) < HEADER_BYTES + RECORD_LABEL_BYTES:
        raise WireError("length", f"A record has more than {HEADER_BYTES} bytes, not {len(data)}")
    frame = parse_frame(data[:-RECORD_LABEL_BYTES])
    if frame.header.time != 0:
        raise WireError("time", "A record tells no time: its header has the time 0")
    (label,) = _LABEL.unpack(data[-RECORD_LABEL_BYTES:])
    if labels is None:
        if label != -1:
            raise WireError("label", "No labels are collected: the label of a record is -1")
    elif not 0 <= label < labels:
        raise WireError("label", f"The label of a record lies in 0 to {labels - 1}")
    return Record(frame.header, frame.values, None if labels is None else label, data)


def with_new_id(data: bytes, request: bytes) -> bytes:
    """The same integers and label under another id."""
    return data[: ID_AT.start] + request + data[ID_AT.stop :]


def _label_bytes(label: int | None) -> bytes:
    return _LABEL.pack(-1 if label is None else label)
