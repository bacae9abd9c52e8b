"""Bodies that are all at hand become one batch, in an order that tells nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.shuffle_guarantee import ShuffledBatch
from dp_forward.errors import InvalidInput
from dp_forward.service.collector.corpus_export import shuffle_bodies
from service.collector.collect_cases import record, spec


def bodies(senders: int, records: int) -> dict[str, bytes]:
    return {
        str(sender): b"".join(record(sender * records + one, label=None) for one in range(records))
        for sender in range(senders)
    }


def noisy(data: bytes, size: int) -> list[bytes]:
    return [data[at + 128 : at + size - 4] for at in range(0, len(data), size)]


def test_every_sound_record_is_in_the_batch_once_and_in_another_order(tmp_path: Path) -> None:
    wanted, sent = spec("none"), bodies(4, 40)
    size = wanted.record_bytes
    again = {
        **sent,
        "the first, eight times": 8 * sent["0"],
        "damaged": sent["1"][:-1],
        "another": b"x" * size,
    }
    assert wanted.body_records < 8 * 40
    refused = shuffle_bodies(again, wanted, tmp_path / "mixed")
    assert refused.total() == 2
    corpus = ReleasedCorpus.open(tmp_path / "mixed", raw=True)
    assert corpus.shuffled == (ShuffledBatch(160),)
    came = [one for data in sent.values() for one in noisy(data, size)]
    stored = [corpus[number]["values"].numpy().tobytes() for number in range(160)]
    assert sorted(stored) == sorted(came)
    places = [came.index(one) for one in stored]
    stay = sum(place == number for number, place in enumerate(places))
    assert stay < 10, "a uniform order leaves one in its place, on average"
    assert sum(place < 80 for place in places[:80]) < 60, "nor does a half stay in its half"


def test_one_record_alone_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="two sound records"):
        shuffle_bodies(bodies(1, 1), spec("none"), tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()
