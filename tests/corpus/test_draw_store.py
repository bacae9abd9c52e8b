"""Charges and draws by record: each once, whoever tries again."""

from __future__ import annotations

import threading

import pytest

from dp_forward.corpus.draw_store import DrawStore
from dp_forward.errors import DpForwardError
from dp_forward.privacy.charge import Charge

COST = Charge(4_000_000_000, 0)


def drawn(record: int, word: bytes) -> tuple[int, bytes, bytes]:
    return record, word, b"l"


def test_a_record_is_charged_and_drawn_once(place: str) -> None:
    with DrawStore(place, "one") as store:
        assert store.charge([3, 4, 5], COST) == [3, 4, 5]
        store.add([drawn(3, b"first")])
        assert store.charge([5, 3, 4], COST) == [5, 4]  # a task that runs again has the rest to draw
        store.add([drawn(3, b"other"), drawn(4, b"four")])  # a second draw of record 3 is dropped
        assert store.read(range(3, 5)) == (b"firstfour", b"ll")
        assert store.counts() == (3, 2)
        assert store.read(range(3, 6)) is None  # while one is missing


def test_a_draw_without_a_charge_is_refused(place: str) -> None:
    with DrawStore(place, "one") as store:
        with pytest.raises(DpForwardError):
            store.add([drawn(0, b"free")])
        assert store.counts() == (0, 0)


def test_what_was_emptied_is_still_drawn(place: str) -> None:
    with DrawStore(place, "one") as store:
        store.charge([0, 1], COST)
        store.add([drawn(0, b"zero"), drawn(1, b"one")])
        store.empty(range(1))
    with DrawStore(place, "one") as store:  # and it survives
        assert store.charge([0, 1], COST) == []
        assert store.read(range(2)) == (b"one", b"l")


def test_releases_in_one_place_do_not_meet(place: str) -> None:
    with DrawStore(place, "one") as store, DrawStore(place, "two") as other:
        store.charge([0], COST)
        assert other.counts() == (0, 0)


def test_of_two_that_draw_the_same_records_one_is_stored(place: str) -> None:
    """Both find no draw, both draw: the records, the charges and the draws are as many, none is torn."""
    records, meet = range(6000), threading.Barrier(2)

    def work(word: bytes) -> None:
        with DrawStore(place, "one") as store:
            todo = store.charge(records, COST)
            meet.wait()
            store.add([(record, word, word) for record in todo])

    threads = [threading.Thread(target=work, args=(word,)) for word in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with DrawStore(place, "one") as store:
        assert store.counts() == (6000, 6000)
        noisy, labels = store.read(records) or (b"", b"")
    assert noisy == labels
    assert len(noisy) == 6000
