"""The user's side: a stored release goes to a collector, or to a shuffler, record by record.

    OUT/                       the released corpus (`release.corpus`); what is pushed is what lies here
    OUT.private/push.secret    32 random bytes: they make the ids of the records
    OUT.private/push.json      which servers were sent to, and how many records each has acknowledged

Nothing is drawn here. A record's bytes are a function of the corpus, its number and the secret, so whoever
was interrupted starts again, and the server knows what it has. The id of record i is the first 16 bytes of
HMAC-SHA256(secret, "dp-forward/push/1", 0, i): without the secret it tells nothing, not even i.

Guarantees:
    Before a record is read, the corpus is held against the ledger: only a release that was charged and is
    complete, with the very manifest that the ledger stored, is pushed. Before a record is sent, what the
    server collects is held against the corpus, field by field: `ProtocolMismatch` where they differ. Every
    time that a record is sent, it is the same integers under the same id: it stays one record, and one
    release. It costs nothing: the release was charged when it was made.
Edges:
    A server that forgot what it had (another disk) is not told apart from one that has it all: use ``again``.
    The records go in the order of the corpus; whoever takes them sees that, and from where they come. Only a
    shuffler forgets it, and that is worth nothing for records that went to another server too
    (`Pushed.elsewhere`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dp_forward.corpus.corpus_spec import Labels
from dp_forward.corpus.reader import MANIFEST, ReleasedCorpus
from dp_forward.corpus.writer import ledger_of, private_folder
from dp_forward.errors import InvalidInput, LedgerUnavailable
from dp_forward.ledger import Ledger, State
from dp_forward.service.client.answer_cache import SECRET_BYTES, make_secret
from dp_forward.service.client.transport import Line
from dp_forward.service.protocol.collection_spec import CollectionSpec
from dp_forward.service.protocol.frame import Header, WireError
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.protocol.policy import ProtocolMismatch, shown
from dp_forward.service.protocol.record import ID_BYTES, pack_record
from dp_forward.service.protocol.sansio import (
    Call,
    Patience,
    ServerRefused,
    ServerUnavailable,
    Steps,
    json_of,
    sent,
)
from dp_forward.split.artifacts import UserSide

__all__ = ["Pushed", "check_collector", "push_corpus", "record_id"]

_DOMAIN: Final = b"dp-forward/push/1\0"
_FORM_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 1 << 12
_BODY_BYTES: Final = 1 << 20
"""Of one request: slow lines take a whole one within the time that servers allow."""
_SECRET: Final = "push.secret"
_STATE: Final = "push.json"
_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class Pushed:
    """What came of it: ``pushed`` records are new to the server, ``known`` it had before."""

    server: str
    pushed: int
    known: int
    form: CollectionSpec
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
    token: str | None = None,
    ledger: str | os.PathLike[str] | None = None,
    again: bool = False,
    patience: Patience | None = None,
    transport: Any = None,
    progress: Callable[[int], None] | None = None,
) -> Pushed:
    """Send every record of the release in ``out`` to ``server``; see the module for what is promised.

    ``cut`` is that of the user's front, ``ledger`` where the release was charged (OUT.private/ledger).
    ``progress`` is called with the number of records that the server has. ``again`` sends those that were
    acknowledged, too.

    Edges:
        `InvalidInput` for a release that is incomplete or not in the ledger, `ProtocolMismatch` for a server
        that collects something else, `ServerRefused` and `ServerUnavailable` as in asking. After any of them,
        and after a crash, the same call goes on.
    """
    patience = patience or Patience()
    with Line(server, token=token, patience=patience, transport=transport) as line:
        corpus = _charged_corpus(Path(out).absolute(), ledger)
        own = _own_form(corpus, cut)
        notes = _Notes(corpus, line.address)
        steps = _steps(corpus, own, notes, patience, again=again, progress=progress)
        try:
            return line.drive(steps)
        except ServerUnavailable as error:
            told = str(error).partition(" What was charged")[0]
            raise ServerUnavailable(f"{told} What it has is kept: push again to go on.") from None


def check_collector(
    user: UserSide,
    labels: Labels,
    *,
    bits: int,
    server: str,
    token: str | None = None,
    patience: Patience | None = None,
    transport: Any = None,
) -> CollectionSpec:
    """Ask a server whether it would take a release of this front, before anything is drawn or charged.

    Edges:
        As `push_corpus`: `ProtocolMismatch` where it collects something else.
    """
    user.spec.required_noise()
    manifest = Manifest(release=replace(user.spec, bits=bits))
    own, patience = CollectionSpec.of(manifest, labels), patience or Patience()
    with Line(server, token=token, patience=patience, transport=transport) as line:
        return line.drive(_greeted(own, patience))


def _greeted(own: CollectionSpec, patience: Patience) -> Steps[CollectionSpec]:
    reply = yield from sent(Call("GET", "/v1/collection", _FORM_BYTES), patience)
    return _agreed(json_of(reply), own)


def record_id(secret: bytes, number: int) -> bytes:
    """The id of a record of a corpus; the same for ever."""
    return hmac.digest(secret, _DOMAIN + number.to_bytes(8, "little"), hashlib.sha256)[:ID_BYTES]


def _charged_corpus(place: Path, ledger: str | os.PathLike[str] | None) -> ReleasedCorpus:
    """The corpus, whole, and exactly as the ledger knows it."""
    if not private_folder(place).is_dir():
        raise InvalidInput(
            "out",
            "be a release of your own",
            "one without its private folder",
            "Push from where it was made.",
        )
    corpus = ReleasedCorpus.open(place, raw=True)
    try:
        key = bytes.fromhex(corpus.key)
    except ValueError:
        key = b""
    with Ledger.open(ledger or ledger_of(place)) as book:
        found = book.find(key) if len(key) == hashlib.sha256().digest_size else None
        if found is None:
            raise InvalidInput(
                "ledger", "be the one that this release was charged in", "another", "Name it with --ledger."
            )
        if found.state is State.RESERVED:
            raise InvalidInput("out", "be complete", "a release that was not finished", "Resume it first.")
        if book.payload(found.id) != (place / MANIFEST).read_bytes():
            raise InvalidInput(MANIFEST, "be as it was released", "changed", "Bring it back.")
    return corpus


def _own_form(corpus: ReleasedCorpus, cut: str) -> CollectionSpec:
    """What a collector of this corpus must want, from the user's side alone."""
    manifest = Manifest(release=replace(corpus.release, cut=cut))
    return CollectionSpec.of(manifest, corpus.spec.labels)


def _agreed(found: object, own: CollectionSpec) -> CollectionSpec:
    """What the server collects, if it is this corpus; all is compared before anything is calibrated."""
    if not isinstance(found, dict) or not isinstance(found.get("manifest"), dict):
        raise _unreadable()
    mine, theirs = own.as_dict(), found
    for name in mine["manifest"]:
        _compare(name, mine["manifest"][name], theirs["manifest"].get(name))
    _compare("labels", mine["labels"], theirs.get("labels"))
    try:
        form = CollectionSpec.from_dict(theirs)
    except WireError:
        raise _unreadable() from None
    # Once more on what was read, so that no two spellings of a value can differ.
    read = form.as_dict()
    if any(read[name] != mine[name] for name in ("version", "manifest", "labels")):
        raise _unreadable()
    return form


def _compare(name: str, mine: Any, theirs: Any) -> None:
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for part in mine:
            _compare(f"{name}: {part}", mine[part], theirs[part])
    elif theirs != mine or isinstance(theirs, bool) != isinstance(mine, bool):  # True equals 1
        there = "other keys" if isinstance(theirs, dict) else shown(theirs)
        here = "others" if isinstance(mine, dict) else shown(mine)
        raise ProtocolMismatch(
            f"The collector wants another release: {name} {there} where the corpus has {here}. "
            "Nothing was sent."
        )


def _unreadable() -> ProtocolMismatch:
    return ProtocolMismatch(
        "What the server collects is not said as in this version of dp-forward. Nothing was sent."
    )


def _steps(
    corpus: ReleasedCorpus,
    own: CollectionSpec,
    notes: _Notes,
    patience: Patience,
    *,
    again: bool,
    progress: Callable[[int], None] | None,
) -> Steps[Pushed]:
    form = yield from _greeted(own, patience)
    done = 0 if again else notes.acknowledged
    notes.begin(done, form.shuffler_least)  # before the first byte leaves
    pushed = 0
    at_once = max(1, min(own.body_records, _BODY_BYTES // own.record_bytes))
    if progress is not None and done:
        progress(done)
    while done < len(corpus):
        span = range(done, min(done + at_once, len(corpus)))
        call = Call("POST", "/v1/records", _ANSWER_BYTES, _body(corpus, own.manifest, notes.secret, span))
        pushed += _stored((yield from sent(call, patience)), len(span))
        done = span.stop
        notes.acknowledge(done)
        if progress is not None:
            progress(done)
    return Pushed(notes.server, pushed, len(corpus) - pushed, form, notes.elsewhere, notes.least)


def _stored(reply: Any, records: int) -> int:
    """How many records were new to the server; an answer that does not add up is refused."""
    answer = json_of(reply)
    match answer:
        case {"stored": int(stored), "known": int(known), **rest} if not rest:
            if stored >= 0 and known >= 0 and stored + known == records:
                return stored
    raise ServerRefused("The server's answer to records makes no sense. It is not asked again.")


def _body(corpus: ReleasedCorpus, manifest: Manifest, secret: bytes, span: range) -> bytes:
    """The records of a span, one after another; the same bytes whenever it is called."""
    batch = corpus.__getitems__(span)
    values, labels = batch["values"].numpy(), batch.get("labels")
    records = []
    for place, number in enumerate(span):
        header = Header.as_asked(manifest, request=record_id(secret, number))
        label = None if labels is None else int(labels[place])
        noisy = values[place].astype(corpus.release.integers, copy=False)
        records.append(pack_record(header.pack() + noisy.tobytes(), label))
    return b"".join(records)


class _Notes:
    """What lies in the private folder about pushing: the secret, and how far each server has come.

    The secret is made before the first record leaves. Without it every record would go out under a second id,
    so where there are notes and no secret, nothing is sent.
    """

    def __init__(self, corpus: ReleasedCorpus, server: str) -> None:
        folder = private_folder(corpus.folder)
        self._path, self._corpus = folder / _STATE, corpus.key
        self._first = not (folder / _SECRET).exists()
        self.server, self.secret = server, _secret(folder)

    @property
    def acknowledged(self) -> int:
        """So many records, from the first, are on the server's disk."""
        return self._here()[0]

    @property
    def least(self) -> int | None:
        """The smallest batch that was promised at any time of sending here."""
        return self._here()[1]

    def _here(self) -> tuple[int, int | None]:
        match self._read()[0].get(self.server):
            case {"records": int(records), "least": least} if records >= 0:
                return records, least if type(least) is int else None
        return 0, None

    @property
    def elsewhere(self) -> bool:
        """Whether another server was sent to, or may have been: notes that are lost say nothing."""
        servers, lost = self._read()
        return lost or any(server != self.server for server in servers)

    def begin(self, records: int, least: int | None) -> None:
        """Note a server, and what it promises, before it gets a byte."""
        if self.server in self._read()[0]:
            before = self.least
            least = None if before is None or least is None else min(before, least)
        self._write(records, least)

    def acknowledge(self, records: int) -> None:
        """Note it; a crash before that costs the sending of one body, and nothing else."""
        self._write(records, self.least)

    def _write(self, records: int, least: int | None) -> None:
        servers, lost = self._read()
        notes = {"servers": {**servers, self.server: {"records": records, "least": least}}, "lost": lost}
        text = json.dumps({"format": _FORMAT, "corpus": self._corpus, **notes}, indent=1)
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        with _writable():
            descriptor = os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path)

    def _read(self) -> tuple[dict[str, Any], bool]:
        """What each server has, and whether notes were lost: damaged, of another corpus, or deleted."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            match json.loads(self._path.read_text(encoding="utf-8")):
                case {"format": 2, "corpus": self._corpus, "servers": dict(servers), "lost": bool(lost)}:
                    return servers, lost
        return {}, not self._first

    def __repr__(self) -> str:
        return f"_Notes({self.server})"


def _secret(folder: Path) -> bytes:
    """The secret of a corpus, made if nothing was ever pushed."""
    place = folder / _SECRET
    if not place.exists() and not (folder / _STATE).exists():
        with contextlib.suppress(FileExistsError), _writable():
            make_secret(place)
    try:
        mode, secret = stat.S_IMODE(place.stat().st_mode), place.read_bytes()
    except FileNotFoundError:
        mode, secret = 0o600, b""
    if len(secret) != SECRET_BYTES:
        raise InvalidInput(
            _SECRET,
            f"be {SECRET_BYTES} bytes in the private folder",
            "none, or another file",
            "Bring it back: without it every record would be sent as a second one.",
        )
    if os.name == "posix" and mode & 0o077:
        raise InvalidInput(_SECRET, "be readable by its owner only", oct(mode), "Use chmod 600.")
    return secret


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise LedgerUnavailable(
            f"Nothing can be written to the private folder: {error.strerror}. Nothing is lost: push again."
        ) from None
