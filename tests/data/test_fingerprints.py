"""A text is recognised by its letters, and nearly by its runs of words."""

from __future__ import annotations

import numpy as np
import pytest

from dp_forward.data.fingerprints import PRINT_COLUMNS, fingerprint_texts, note_prints
from dp_forward.data.records import Record
from dp_forward.ledger.text_register import compare_texts

LONG = "the quiet film never quite finds its story but it is warm and very well acted by all of them in it"


def same(first: str, second: str) -> bool:
    found = fingerprint_texts([first, second])[:, 0]
    return bool(found[0] == found[1])


def test_a_text_is_known_by_its_letters_and_digits_without_case() -> None:
    assert same(". . . a pretentious mess . . .", "A Pretentious  mess")
    assert same("ﬁne", "FINE"), "compatible letters are the same"
    assert not same("a pretentious mess", "a pretentious mass")
    assert not same("!!!", "???"), "without a letter, all that is there counts"


@pytest.mark.parametrize(
    ("text", "near"),
    [
        (LONG.replace("quiet", "loud"), 1),
        (" ".join(LONG.split()[4:12]), 1),  # inside the other
        (" ".join(reversed(LONG.split())), 0),
        ("the quiet film", 0),  # too short for a run
    ],
)
def test_a_near_duplicate_shares_half_of_its_runs(text: str, near: int) -> None:
    others = fingerprint_texts([LONG, "something else entirely stands in this one"])
    assert compare_texts(fingerprint_texts([text]), others) == (0, near)
    assert compare_texts(fingerprint_texts([LONG]), others) == (1, 0), "exact ones are not counted twice"


def test_how_texts_are_grouped_does_not_matter() -> None:
    texts = [LONG, "", "a b c d", LONG.upper(), "word " * 200]
    together = fingerprint_texts(texts)
    apart = np.concatenate([fingerprint_texts([text]) for text in texts])
    assert np.array_equal(together, apart)
    assert together.shape == (5, PRINT_COLUMNS)
    assert (together[4, 1:] != 0).sum() == 1, "a run that is there again is one run"


def test_records_pass_and_are_noted_and_a_pair_is_one_text() -> None:
    prints: list[np.ndarray] = []
    records = [Record(f"text {number}") for number in range(2000)] + [Record("one", "two")]
    assert list(note_prints(iter(records), prints)) == records
    assert np.array_equal(np.concatenate(prints)[2000], fingerprint_texts(["One, two."])[0])
