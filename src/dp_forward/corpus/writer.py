r"""Release a corpus: one stored release of every record, charged once, on which a back trains.

    OUT/           manifest.json, shard-00000.safetensors, ...   may be handed over (`reader`)
    OUT.private/   draws, ledger                                 stays with the user: never hand it over

What a record spends. Write a corpus as records x_1 .. x_N and its release as (M(x_1), .., M(x_N)), the noise
drawn for each by itself. Two corpora that differ in record i alone give the same distribution for every other
part, so for all events the two differ by what M(x_i) and M(x_i') differ: the whole release has the curve of M
(with the label, of M and the label mechanism together), however large N is. Parallel composition: disjoint
records do not add up. Releases of the *same* corpus do, since every record is in each of them.

So there is one ledger per corpus, and one reservation per release of it, charged what one record spends. The
register (`ledger.text_register`) charges it to each text first, and refuses texts beyond the budget, unless a
ledger was asked for, which then bounds what is charged in it alone.

* `reserve` comes before any noise is drawn, under a keyed digest (HMAC) of corpus, front, noise, label
  mechanism and bits. Its secret lies in the private folder, so the key is the same for that release resumed,
  new for any other, and tells nothing about a text.
* `ready` holds the bytes of the manifest, once every shard is on disk under its name.
* `delivered` is noted when the manifest is on disk too.

A release that is resumed, or asked again when it is complete, costs nothing and gives the same bytes
(`draw_log` has the argument). Another one (other folder, front, noise, bits) is charged again, and refused
beyond the cap, which is by default exactly one release.

Guarantees:
    The steps above hold at every instant at which the process may be killed. `OUT` never holds two draws of a
    record. No text, token, hidden value or true label (where labels are randomized) is written, logged or put
    into an error.
Edges:
    A ledger adds corpora as if they shared their records.
    If OUT is lost, the release is lost: its budget is spent.
Paper: the frozen-front regime; one stored release per record serves any number of epochs.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dp_forward.corpus.corpus_spec import CorpusSpec, LabelMechanism, Labels, shard_size
from dp_forward.corpus.draw_log import DrawLog, Shard
from dp_forward.corpus.drawing import Engine, RecordDrawer, ReleaseDrawer
from dp_forward.corpus.reader import MANIFEST, ReleasedCorpus, manifest_bytes, shard_bytes, shard_name
from dp_forward.data import EncodedTexts
from dp_forward.errors import BudgetExhausted, DpForwardError, InvalidInput, refuse_if
from dp_forward.ledger import Cap, Ledger, Release, State
from dp_forward.ledger.text_register import FROM_ELSEWHERE, TextRegister
from dp_forward.noise import release, release_labels, serialise
from dp_forward.privacy import Budget
from dp_forward.progress import Count
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split.artifacts import UserSide
from dp_forward.storage.digests import bytes_digest, file_digest
from dp_forward.storage.files import write_file
from dp_forward.storage.stores import Place

__all__ = ["choose_labels", "ledger_of", "private_folder", "release_corpus", "write_shard"]


def private_folder(out: Place) -> Path:
    """Where the user's side of a release lies: beside ``out``, which can be handed over without it."""
    place = Path(out).absolute()
    return place.with_name(place.name + ".private")


def ledger_of(out: Place) -> Path:
    """The ledger of a release into ``out`` where none was named."""
    return private_folder(out) / "ledger"


def release_corpus(
    user: UserSide,
    texts: EncodedTexts,
    out: Place,
    *,
    label_mechanism: LabelMechanism | None = None,
    publish_labels: bool = True,
    bits: int = 8,
    shard_records: int | None = None,
    ledger: Place | None = None,
    budget: float | None = None,
    register: Path | None = None,
    resume: bool = False,
    progress: Count | None = None,
    say: Callable[[str], None] | None = None,
    device: str | torch.device = "cpu",
    engine: Engine | None = None,
) -> ReleasedCorpus:
    """One release of every record into ``out``; see the module for what is promised.

    Labels are stored as they are (``publish_labels``), randomized (``label_mechanism``), or not at all; a
    front whose noise protects records has them in the release itself.
    ``budget`` is the cap on what each record may spend, in a new ledger and (without a ``ledger``) in all
    releases that the register knows; by default, exactly this release. A new ledger holds the kind of
    this release: pure, Gaussian, or both in the proportion of one record's charge.
    ``progress`` is called with the number of records whose draws are on disk, ``say`` with what texts that
    were released before have spent. ``register`` is by default the owner's. ``engine`` draws elsewhere than
    in this process, and belongs to a release: no other one continues it.

    Edges:
        A complete release of the same corpus by the same settings is returned as it is. An incomplete one is
        continued with ``resume`` and refused without; any other one is refused. Nothing is overwritten.
        ``shard_records`` is by default what fits in 64 MiB, and for a release that was begun, what it has.
    """
    place, path = Path(out).absolute(), private_folder(out) / "draws"
    labels = choose_labels(user.spec, texts, label_mechanism, publish=publish_labels)
    with contextlib.ExitStack() as open_things:
        known = open_things.enter_context(TextRegister(register))
        log = open_things.enter_context(DrawLog(path)) if path.exists() else None
        begun = None if log is None else int(log.settings["shard_records"])
        spec = _make_spec(user, texts, labels, bits, begun if shard_records is None else shard_records)
        # What it is of; never leaves memory but under a key.
        identity = f"{texts.fingerprint()}\n{json.dumps(spec.as_dict(), sort_keys=True)}".encode()
        identity += b"" if engine is None else f"\n{engine.name}".encode()
        if log is None or not log.is_of(identity):
            log = open_things.enter_context(_begin(place, path, spec, identity, log))
        with _withdrawn_if_refused(known, log, path):
            book_path = Path(ledger or ledger_of(place)).absolute()
            bounds = {"ledger": str(book_path), "budget": budget, "bounded": ledger is None}
            said = [] if log.charged else _enter(known, user, texts, spec, log.key, **bounds)
            book = open_things.enter_context(_open_ledger(place, book_path, spec, budget))
            reserved = _charge(book, spec, log, resume)
        for sentence in said:
            if say is not None:
                say(sentence)
        if reserved.state is State.RESERVED:
            count = progress or (lambda records: None)
            if engine is None:
                here = ReleaseDrawer(user, texts, spec, torch.device(device))
                shards = _write_shards(place, spec, log, here, count)
            else:
                with engine.drawer(spec, name=log.name, first=log.next_record) as there:
                    shards = _write_shards(place, spec, log, there, count)
            book.ready(reserved.id, manifest_bytes(spec, shards, name=log.name, corpus=log.key.hex()))
        _deliver(place, book, reserved)
    return ReleasedCorpus.open(place)


@contextlib.contextmanager
def _withdrawn_if_refused(known: TextRegister, log: DrawLog, path: Path) -> Iterator[None]:
    """Charge in this block; what is refused in it, so that nothing is charged, leaves nothing behind."""
    try:
        yield
    except DpForwardError:
        if not log.charged:
            known.withdraw(log.key)
            log.discard()
            with contextlib.suppress(OSError):  # where something else lies in it, it stays
                path.parent.rmdir()
        raise
    if not log.charged:
        log.mark_charged()


def choose_labels(
    spec: ReleaseSpec, texts: EncodedTexts, mechanism: LabelMechanism | None, *, publish: bool
) -> Labels:
    """What is stored of the labels: randomized, as they are (``publish``) or nothing; or refused."""
    if spec.folded:
        if mechanism is not None or not publish or texts.labels is None:
            found = "none in the records" if texts.labels is None else "another way for them"
            raise InvalidInput("labels", "be folded into the release", found, "The front decided that.")
        return "folded"
    if mechanism is None:
        return "public" if publish and texts.labels is not None else "none"
    rule = "be left out where no labels are stored"
    refuse_if(not publish, "label_mechanism", rule, "one", "Or publish randomized labels.")
    refuse_if(texts.labels is None, "label_mechanism", "have labels to randomize", "none", "Check the task.")
    return mechanism


def _make_spec(
    user: UserSide, texts: EncodedTexts, labels: Labels, bits: int, shard_records: int | None
) -> CorpusSpec:
    """The settings of the release, checked against the front and the texts."""
    rule = f"have the {user.spec.rows} rows of the front"
    refuse_if(texts.length != user.spec.rows, "texts", rule, texts.length, "Encode with user.tokens.")
    known = texts.labels if labels != "none" else None
    if known is not None and not 0 <= known.min() <= known.max() < len(user.spec.labels):
        rule = f"fit the {len(user.spec.labels)} labels of the front"
        raise InvalidInput("labels", rule, "a label outside", "Check the task, or the front.")
    release_spec = replace(user.spec, bits=bits)
    if shard_records is None:
        shard_records = shard_size(release_spec)
    spec = CorpusSpec(release=release_spec, labels=labels, records=len(texts), shard_records=shard_records)
    # What cannot be promised is refused before anything is made, and what cannot be drawn.
    spec.guarantee()
    blank = release(np.zeros(release_spec.shape), release_spec.mechanism(), bits=bits)
    if len(serialise(blank)) != release_spec.payload_bytes:
        raise AssertionError("a release has another size than its spec says")
    if isinstance(labels, LabelMechanism):
        release_labels(np.zeros(1, dtype=np.int64), labels)
    return spec


def _begin(place: Path, path: Path, spec: CorpusSpec, identity: bytes, other: DrawLog | None) -> DrawLog:
    """The log of a release that begins now; ``other``, which lies in its place, is of another one."""
    if other is not None and other.charged:
        differ = [name for name, value in spec.as_dict().items() if other.settings.get(name) != value]
        found = f"one of other {', '.join(differ)}" if differ else "one of another corpus or engine"
        raise InvalidInput("out", "be new or hold this same release", found, "Choose another folder.")
    if other is not None:
        other.discard()  # begun, and neither charged nor drawn
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        rule = "be new or empty"
        raise InvalidInput("out", rule, f"{place.name}, which holds something else", "Choose another folder.")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return DrawLog.create(path, spec.as_dict(), identity)


def _enter(
    known: TextRegister, user: UserSide, texts: EncodedTexts, spec: CorpusSpec, key: bytes, **settings: Any
) -> list[str]:
    """This release in the register, unless its front or its texts forbid it; what to say of them."""
    promised, prints, seen = spec.guarantee(), texts.prints, user.front.plain.seen_texts
    said = [FROM_ELSEWHERE] if known.unknown(seen) else []
    known.refuse_seen(prints, seen, name="front", rule="not have been trained on the raw texts")
    settings |= {"unit": str(promised.mechanism.unit), "delta": promised.delta}
    epsilon, before, near = known.charge(key, prints, spec.charge(), **settings)
    if before or near:
        said.append(
            f"{before} of {len(prints)} texts were released before, {near} more nearly; with this one up to "
            f"epsilon {epsilon} is charged to one of them in all ledgers."
        )
    return said


def _open_ledger(place: Path, path: Path, spec: CorpusSpec, budget: float | None) -> Ledger:
    if path.is_relative_to(place):
        raise InvalidInput("ledger", "lie outside of out", "one in it", "What is in out is handed over.")
    if path.exists() and budget is None:
        return Ledger.open(path)
    charge, delta = spec.charge(), spec.guarantee().delta
    alone = Cap.of(charge, delta)
    cap = alone if budget is None else Cap.like(charge, Budget(budget, delta))
    if not path.exists() and not charge <= cap.shares:  # no ledger is made that could never hold this release
        raise BudgetExhausted(
            f"The cap of epsilon {cap.epsilon} (delta {cap.delta}) would be passed: this release costs "
            f"{alone.epsilon} for every record. Nothing was charged."
        )
    return Ledger.open_or_create(path, cap=cap)


def _charge(book: Ledger, spec: CorpusSpec, log: DrawLog, resume: bool) -> Release:
    """This release in the ledger, charged; only from here on may noise be drawn."""
    known = book.find(log.key)
    rule = "be the one that this release was charged in"
    refuse_if(log.charged and known is None, "ledger", rule, "another", "Name that one to resume.")
    if log.charged and known is not None and known.state is State.RESERVED and not resume:
        rule = "be new, or resumed"
        raise InvalidInput("out", rule, "a release that was not finished", "Add resume=True to continue it.")
    unit, protected = spec.release.mechanism().unit, spec.guarantee().mechanism.unit
    label = " + label" if isinstance(spec.labels, LabelMechanism) else ""
    name = f"corpus: {spec.release.mechanism().name} per {unit}{label}"
    return book.reserve(log.key, spec.charge(), mechanism=name, unit=protected)


def _write_shards(
    place: Path, spec: CorpusSpec, log: DrawLog, source: RecordDrawer, progress: Count
) -> list[Shard]:
    """Every shard on disk: finished ones checked, the others drawn and written."""
    place.mkdir(parents=True, exist_ok=True)
    for shard in log.shards:
        path = place / shard_name(shard.number)
        if not path.is_file() or path.stat().st_size != shard.bytes or file_digest(path) != shard.sha256:
            remedy = "It is never drawn again: bring it back, or pay for another release."
            raise InvalidInput(path.name, "be as it was finished", "missing or changed", remedy)
    if log.next_record:
        progress(log.next_record)
    pieces = spec.pieces(log.next_record)
    for number in range(len(log.shards), spec.shards):
        while log.next_record < spec.span(number).stop:
            records = next(pieces)
            log.add(records, *source.draw(records))
            progress(log.next_record)
        log.finish(write_shard(place, spec, *log.draws(), name=log.name, number=number))
    return log.shards


def write_shard(
    place: Path, spec: CorpusSpec, noisy: bytes, labels: bytes, *, name: str, number: int
) -> Shard:
    """Put shard ``number`` (``noisy``, ``labels``) into ``place`` as ``name``, once; also after a crash."""
    path = place / shard_name(number)
    data = shard_bytes(spec, noisy, labels, name=name, number=number)
    digest = bytes_digest(data)
    if not path.exists():
        write_file(path, data)
    elif file_digest(path) != digest:
        raise InvalidInput(path.name, "be made of the draws", "something else", "Remove it, and resume.")
    return Shard(number, len(spec.span(number)), len(data), digest)


def _deliver(place: Path, book: Ledger, reserved: Release) -> None:
    """Put the manifest under its name, if it is not there, and note it."""
    for draft in place.glob("*.new"):  # of a process that was killed; the file of draws keeps others out
        draft.unlink()
    path, manifest = place / MANIFEST, book.payload(reserved.id)
    if not path.exists() and place.is_dir():
        write_file(path, manifest)
    if not path.is_file() or path.read_bytes() != manifest:
        raise InvalidInput(MANIFEST, "be as it was released", "missing or changed", "Bring it back.")
    book.delivered(reserved.id)
