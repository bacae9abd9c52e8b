"""Upload of a stored release to a collector or a shuffler, record by record.

    OUT/                       the released corpus (`corpus.reader`); what is pushed is what lies here
    OUT.private/push.secret    32 random bytes: they make the ids of the records
    OUT.private/push.json      which servers were sent to, and how many records each has acknowledged

Nothing is drawn or charged here. A record's bytes are a function of the corpus, its number and the secret, so
an interrupted upload is started again, and the server knows what it has. The id of record i is the first 16
bytes of HMAC-SHA256(secret, "dp-forward/push/1", 0, i): without the secret it tells nothing, not even i.

Guarantees:
    Before a record is read, the corpus is compared with the ledger: only a release that was charged and is
    complete, with the very manifest that the ledger stored, is pushed. Before a record is sent, what the
    server collects is compared with the corpus, field by field: `ProtocolMismatch` where they differ. A
    record that is sent again is the same integers under the same id: one record, and one release.
Edges:
    A server that forgot what it had (another disk) looks like one that has it all: use ``again``.
    The records go in the order of the corpus; the server sees that, and from where they come. Only a
    shuffler forgets it: in vain for records that went elsewhere too (`UploadResult.elsewhere`).
"""

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Unpack

from dp_forward.corpus.corpus_spec import Labels
from dp_forward.corpus.reader import MANIFEST, ReleasedCorpus
from dp_forward.corpus.writer import ledger_of, private_folder
from dp_forward.errors import InvalidInput, LedgerUnavailable, refuse_if
from dp_forward.ledger import Ledger, State
from dp_forward.progress import Count
from dp_forward.service.client.transport import Call, Connection, Transport, send_records
from dp_forward.service.protocol.collection import ID_BYTES, CollectionSpec, pack_record
from dp_forward.service.protocol.frame import WireError
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.protocol.policy import ProtocolMismatch, shown
from dp_forward.split.artifacts import UserSide
from dp_forward.storage.files import lock_folder, make_secret, read_secret
from dp_forward.storage.json_files import write_json

__all__ = ["UploadResult", "check_collector", "pack_release", "push_corpus"]

_BODY_BYTES: Final = 1 << 20  # of one request: slow lines take a whole one within the time that servers allow


@dataclass(frozen=True, slots=True)
class UploadResult:
    """Outcome of an upload: ``pushed`` records are new to the server, ``known`` it had before."""

    server: str
    pushed: int
    known: int
    spec: CollectionSpec
    """What the server collects; it agrees with the corpus, so it can be believed but for its shuffler."""
    elsewhere: bool
    """Whether the records may have gone to another server too: then no shuffler hides them."""
    least: int | None
    """The smallest batch that this server promised when records were sent to it; None if it once did not."""


def push_corpus(
    out: str | os.PathLike[str],
    *,
    server: str,
    cut: str,
    ledger: str | os.PathLike[str] | None = None,
    again: bool = False,
    progress: Count | None = None,
    **connection: Unpack[Connection],
) -> UploadResult:
    """Send every record of the release in ``out`` to ``server``; see the module for what is promised.

    Args:
        cut: That of the user's front.
        ledger: Where the release was charged (OUT.private/ledger).
        again: Send the acknowledged records, too.
        progress: Called with the number of records that the server has.
        connection: How the server is spoken to; see `Connection`.

    Edges:
        `InvalidInput` for a release that is incomplete or not in the ledger, `ProtocolMismatch` for a server
        that collects something else, `ServerRefused` and `ServerUnavailable` as in asking. After any of them,
        and after a crash, the same call resumes.
    """
    with contextlib.closing(Transport(server, **connection)) as collector:
        corpus = _charged_corpus(Path(out).absolute(), ledger)
        manifest = Manifest(release=replace(corpus.release, cut=cut))
        own, log = CollectionSpec.of(manifest, corpus.spec.labels), _UploadLog(corpus, collector.address)
        spec = _agreed_spec(collector, own)
        done = 0 if again else log.here()[0]
        log.note(done, spec.shuffler_least)  # before the first byte leaves
        pushed, at_once = 0, max(1, min(spec.body_records, _BODY_BYTES // own.record_bytes))
        if done and progress is not None:
            progress(done)
        while done < len(corpus):
            span = range(done, min(done + at_once, len(corpus)))
            body = _body(corpus, own, log.secret, span)
            pushed += send_records(collector, "/v1/records", body, len(span))
            done = span.stop
            log.note(done, spec.shuffler_least)  # a crash before costs sending one body, and nothing else
            if progress is not None:
                progress(done)
    return UploadResult(log.server, pushed, len(corpus) - pushed, spec, log.elsewhere(), log.here()[1])


def check_collector(
    user: UserSide, labels: Labels, *, bits: int, server: str, **connection: Unpack[Connection]
) -> CollectionSpec:
    """Ask a server whether it would take a release of this front, before anything is drawn or charged.

    ``labels`` is what is sent of them; ``connection`` as of `Client`. Errors are those of `push_corpus`.
    """
    user.spec.required_noise()
    own = CollectionSpec(manifest=Manifest(release=replace(user.spec, bits=bits)), labels=labels)
    with contextlib.closing(Transport(server, **connection)) as collector:
        return _agreed_spec(collector, own)


def pack_release(
    out: str | os.PathLike[str], own: CollectionSpec, *, server: str, ledger: str | os.PathLike[str]
) -> bytes:
    """Every record of the release in ``out``, one after another: the same bytes whenever it is called.

    For another way than HTTP; it costs nothing, as the release was charged in ``ledger`` when it was made.

    Args:
        own: what is sent; that of the corpus.
        server: noted beside the release as one that it was sent to, before this returns.
    """
    corpus = _charged_corpus(Path(out).absolute(), ledger)
    log = _UploadLog(corpus, server)
    log.note(0, None)
    return _body(corpus, own, log.secret, range(len(corpus)))


def record_id(secret: bytes, number: int) -> bytes:
    """The id of a record of a corpus; the same for ever."""
    told = b"dp-forward/push/1\0" + number.to_bytes(8, "little")
    return hmac.digest(secret, told, hashlib.sha256)[:ID_BYTES]


def _charged_corpus(place: Path, ledger: str | os.PathLike[str] | None) -> ReleasedCorpus:
    """The corpus, whole, and exactly as the ledger knows it."""
    found, remedy = "one without its private folder", "Push from where it was made."
    refuse_if(not private_folder(place).is_dir(), "out", "be a release of your own", found, remedy)
    corpus = ReleasedCorpus.open(place, raw=True)
    key = b""
    with contextlib.suppress(ValueError):
        key = bytes.fromhex(corpus.key)
    with Ledger.open(ledger or ledger_of(place)) as book:
        entry = book.find(key) if len(key) == hashlib.sha256().digest_size else None
        if entry is None:
            rule = "be the one that this release was charged in"
            raise InvalidInput("ledger", rule, "another", "Name it with --ledger.")
        if entry.state is State.RESERVED:
            raise InvalidInput("out", "be complete", "a release that was not finished", "Resume it first.")
        if book.payload(entry.id) != (place / MANIFEST).read_bytes():
            raise InvalidInput(MANIFEST, "be as it was released", "changed", "Bring it back.")
    return corpus


def _agreed_spec(collector: Transport, own: CollectionSpec) -> CollectionSpec:
    """What the server collects, if it is this corpus; all is compared before anything is calibrated."""
    theirs = collector.send(Call("GET", "/v1/collection", kept="Nothing was sent.")).json()
    if isinstance(theirs, dict) and isinstance(theirs.get("manifest"), dict):
        mine = own.as_dict()
        for name in mine["manifest"]:
            _compare(name, mine["manifest"][name], theirs["manifest"].get(name))
        _compare("labels", mine["labels"], theirs.get("labels"))
        with contextlib.suppress(WireError):
            spec = CollectionSpec.from_dict(theirs)
            # Once more on what was read, so that no two spellings of a value can differ.
            if {**spec.as_dict(), "shuffler": None} == mine:
                return spec
    told = "What the server collects is not said as in this version of dp-forward. Nothing was sent."
    raise ProtocolMismatch(told)


def _compare(name: str, mine: Any, theirs: Any) -> None:
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for part in mine:
            _compare(f"{name}: {part}", mine[part], theirs[part])
    elif theirs != mine or isinstance(theirs, bool) != isinstance(mine, bool):  # True equals 1
        there = "other keys" if isinstance(theirs, dict) else shown(theirs)
        here = "others" if isinstance(mine, dict) else shown(mine)
        told = f"The collector wants another release: {name} {there} where the corpus has {here}"
        raise ProtocolMismatch(f"{told}. Nothing was sent.")


def _body(corpus: ReleasedCorpus, own: CollectionSpec, secret: bytes, span: range) -> bytes:
    batch = corpus.__getitems__(span)
    values, body = batch["values"].numpy().astype(corpus.release.integers, copy=False), bytearray()
    labels = batch["labels"].tolist() if "labels" in batch else [None] * len(span)
    for noisy, label, number in zip(values, labels, span, strict=True):
        header = own.manifest.header(request=record_id(secret, number))
        body += pack_record(header.pack() + noisy.tobytes(), label)
    return bytes(body)


class _UploadLog:
    """Upload log in the private folder: the secret of the ids, and how far each server has come.

    Without the secret every record would go out under a second id, so where there is a log and no secret,
    nothing is sent. Uploads side by side take turns at the log.
    """

    def __init__(self, corpus: ReleasedCorpus, server: str) -> None:
        self._folder, self._corpus, self.server = private_folder(corpus.folder), corpus.key, server
        self._path, secret = self._folder / "push.json", self._folder / "push.secret"
        with _writable(), lock_folder(self._folder):
            if not secret.exists() and not self._path.exists():
                make_secret(secret)
                self._write({}, lost=False)
        remedy = "Bring it back: without it every record would be sent as a second one."
        self.secret = read_secret(secret, remedy=remedy)

    def here(self) -> tuple[int, int | None]:
        """How many records are on the server's disk, and the smallest batch that it ever promised."""
        return self._entry(self._read()[0])

    def elsewhere(self) -> bool:
        """Whether another server was sent to, or may have been: a log that is lost says nothing."""
        servers, lost = self._read()
        return lost or any(server != self.server for server in servers)

    def note(self, records: int, least: int | None) -> None:
        """Store how many records a server has, and the smallest batch that it promises now."""
        with _writable(), lock_folder(self._folder):
            servers, lost = self._read()
            if self.server in servers:
                before = self._entry(servers)[1]
                least = None if before is None or least is None else min(before, least)
            servers[self.server] = {"records": records, "least": least}
            self._write(servers, lost=lost)

    def _entry(self, servers: dict[str, Any]) -> tuple[int, int | None]:
        match servers.get(self.server):
            case {"records": int(records), "least": least} if records >= 0:
                return records, least if type(least) is int else None
        return 0, None

    def _read(self) -> tuple[dict[str, Any], bool]:
        """What each server has, and whether a log was lost: damaged, of another corpus, or deleted."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            match json.loads(self._path.read_text(encoding="utf-8")):
                case {"format": 2, "corpus": self._corpus, "servers": dict(servers), "lost": bool(lost)}:
                    return servers, lost
        return {}, True

    def _write(self, servers: dict[str, Any], *, lost: bool) -> None:
        content = {"format": 2, "corpus": self._corpus, "servers": servers, "lost": lost}
        write_json(self._path, content, private=True)


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        told = f"Nothing can be written to the private folder: {error.strerror}. Nothing is lost: push again."
        raise LedgerUnavailable(told) from None
