"""Collected records as a corpus that a back trains on: the same folder as a user's own release.

The records of a collection are exported in the order of their ids, which are random: the order in which they
came is forgotten. Bodies that are all at hand are shuffled in memory (`shuffle_bodies`).

Guarantees:
    An export holds the whole corpus or is not there. The same state of a collection gives the same records in
    the same order. All records of a batch that is not sealed are left out. Each is checked by its digest.
    The corpus lists its batches (`ReleasedCorpus.shuffled`) only where *every* record came in a sealed one.
"""

import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from dp_forward.corpus.corpus_spec import CorpusSpec, shard_size
from dp_forward.corpus.reader import MANIFEST, ReleasedCorpus, manifest_bytes
from dp_forward.corpus.shuffle_guarantee import ShuffledBatch
from dp_forward.corpus.writer import write_shard
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.progress import Count
from dp_forward.service.collector.collection_store import RECORDS, Collection, counts
from dp_forward.service.collector.collector_routes import RecordReader
from dp_forward.service.protocol.collection import CollectionSpec, Record, record_digest
from dp_forward.service.server.request_limits import Refused
from dp_forward.storage.files import draft_of, write_file
from dp_forward.storage.stores import Connection, Place

__all__ = ["export_corpus", "shuffle_bodies"]

_COMPLETE: Final = """FROM records
WHERE batch IS NULL OR batch IN (SELECT batch FROM batches) ORDER BY request"""


def export_corpus(
    place: Place, out: str | os.PathLike[str], *, progress: Count | None = None
) -> ReleasedCorpus:
    """All records of a collection that are complete, as a corpus in ``out``, which must be new or empty.

    ``progress`` is called with the number of records so far. What comes meanwhile is not exported.
    """
    target = Path(out).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidInput("out", "be new or empty", target.name, "Choose another folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with Collection.open(place) as collection, collection.snapshot() as moment, draft_of(target) as draft:
        spec, found = collection.spec, counts(moment)
        waiting = f"none, and {found['waiting']} that wait for their batch to be sealed"
        refuse_if(not found["records"], "collection", "hold complete records", waiting, "Collect more first.")
        corpus = spec.corpus_spec(found["records"], shard_size(spec.manifest.release))
        # The corpus is known by a digest of all that is in it, as it is public to its owner anyway.
        digest = hashlib.sha256(b"dp-forward/collected/1\0")
        for row in moment.execute(f"SELECT digest {_COMPLETE}"):
            digest.update(row[0])
        draft.mkdir()
        rows, batches = _rows(moment, corpus), _batches(moment, spec)
        _write_corpus(draft, corpus, rows, digest.hexdigest(), batches, progress=progress)
        ReleasedCorpus.open(draft, verify=False)
    return ReleasedCorpus.open(target)


def shuffle_bodies(bodies: Mapping[str, bytes], spec: CollectionSpec, out: Path) -> Counter[str]:
    """Write the records of all ``bodies`` (by sender) to ``out``, a new folder; why senders were left out.

    For a server that collects by another way than HTTP and shuffles itself. It sees who sent what, so against
    it there is the local promise alone; the batch is for whoever sees the corpus.

    Args:
        spec: what is collected; without public labels, of which a batch would have to be told.

    Guarantees:
        Every record is checked as a collector checks it, is in the corpus once, and stands at a place that
        tells nothing: the order is drawn uniformly from operating-system entropy before anything is written.
        No name of a sender is.
    Edges:
        A sender with one unsound record is left out whole.
    """
    reader, found, refused = RecordReader(spec), dict[bytes, Record](), Counter[str]()
    step = spec.body_records * spec.record_bytes
    for sender, data in bodies.items():
        try:
            parts = [data[at : at + step] for at in range(0, len(data), step)]
            records = [one for part in parts for one in reader.body(part, sender)]
        except Refused as error:
            refused[error.code] += 1
            continue
        for record in records:
            found.setdefault(record.header.request, record)
    rule, got = "hold two sound records or more", f"{len(found)}, senders refused: {dict(refused)}"
    refuse_if(len(found) < 2, "releases", rule, got, "Ask more senders, with the front that they have.")
    mixed = list(found.values())
    secrets.SystemRandom().shuffle(mixed)
    out.mkdir(parents=True)
    corpus = spec.corpus_spec(len(mixed), shard_size(spec.manifest.release))
    rows = ((record.noisy, record.label) for record in mixed)
    _write_corpus(out, corpus, rows, secrets.token_hex(32), [ShuffledBatch(len(mixed))])
    return refused


def _write_corpus(
    folder: Path,
    corpus: CorpusSpec,
    rows: Iterator[tuple[bytes, int | None]],
    key: str,
    batches: list[ShuffledBatch] | None,
    *,
    progress: Count | None = None,
) -> None:
    """Write records, in the order given, as a ``corpus`` that is known as ``key``.

    ``rows`` are the integers and the label of each, ``batches`` those of a shuffler if they are the whole.
    """
    name, shards = key[:32], []
    for number in range(corpus.shards):
        span = corpus.span(number)
        taken = list(islice(rows, len(span)))
        labels = np.asarray([label for _, label in taken if label is not None], dtype="<i8")
        noisy = b"".join(values for values, _ in taken)
        shards.append(write_shard(folder, corpus, noisy, labels.tobytes(), name=name, number=number))
        if progress is not None:
            progress(span.stop)
    write_file(folder / MANIFEST, manifest_bytes(corpus, shards, name=name, corpus=key, shuffled=batches))


def _rows(moment: Connection, corpus: CorpusSpec) -> Iterator[tuple[bytes, int | None]]:
    """The integers and the label of each record, in the order of the ids."""
    labelled = corpus.stores_labels
    for request, digest, label, noisy in moment.execute(f"SELECT request, digest, label, noisy {_COMPLETE}"):
        sound = len(noisy) == corpus.release.payload_bytes and (label is not None) == labelled
        if not sound or record_digest(request, noisy, label) != digest:
            raise InvalidInput(RECORDS, "hold each record as it came", "a damaged one", "Bring it back.")
        yield noisy, label


def _batches(moment: Connection, spec: CollectionSpec) -> list[ShuffledBatch] | None:
    """The batches, where every record is in one."""
    if moment.execute("SELECT EXISTS (SELECT 1 FROM records WHERE batch IS NULL)").fetchone()[0]:
        return None
    listed = []
    for batch, records in moment.execute("SELECT batch, records FROM batches ORDER BY batch").fetchall():
        by_label = None
        if spec.labels == "public":
            query = "SELECT label, count(*) FROM records WHERE batch = ? GROUP BY label"
            found = dict(moment.execute(query, (batch,)).fetchall())
            by_label = tuple(found.get(label, 0) for label in range(len(spec.manifest.release.labels)))
        listed.append(ShuffledBatch(records, by_label))
    return listed
