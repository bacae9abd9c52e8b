"""Shuffle in memory: the bodies of many senders, all at hand, become one batch in a corpus.

For a server that collects by another way than HTTP and shuffles itself. It sees who sent what, so against it
there is the local promise alone; the batch is for whoever sees the corpus.

Guarantees:
    Every record is checked as a collector checks it, is in the corpus once, and stands at a place that tells
    nothing: the order is drawn uniformly from operating-system entropy before anything is written. No name of
    a sender is.
Edges:
    A sender with one unsound record is left out whole.
"""

import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from dp_forward.corpus.corpus_spec import shard_size
from dp_forward.corpus.shuffle_guarantee import ShuffledBatch
from dp_forward.errors import InvalidInput
from dp_forward.service.collector.collector_routes import RecordReader
from dp_forward.service.collector.corpus_export import write_collected
from dp_forward.service.protocol.collection import CollectionSpec, Record
from dp_forward.service.server.request_limits import Refused

__all__ = ["shuffle_bodies"]


def shuffle_bodies(bodies: Mapping[str, bytes], spec: CollectionSpec, out: Path) -> Counter[str]:
    """Write the records of all ``bodies`` (by sender) to ``out``, a new folder; why senders were left out.

    Args:
        spec: what is collected; without public labels, of which a batch would have to be told.
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
    if len(found) < 2:
        rule, got = "hold two sound records or more", f"{len(found)}, senders refused: {dict(refused)}"
        raise InvalidInput("releases", rule, got, "Ask more senders, with the front that they have.")
    mixed = list(found.values())
    secrets.SystemRandom().shuffle(mixed)
    out.mkdir(parents=True)
    corpus = spec.corpus_spec(len(mixed), shard_size(spec.manifest.release))
    rows = ((record.noisy, record.label) for record in mixed)
    write_collected(out, corpus, rows, secrets.token_hex(32), [ShuffledBatch(len(mixed))])
    return refused
