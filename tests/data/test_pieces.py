"""Reviews are cut into pieces of sentence length; nothing is invented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.data import Record, pieces
from dp_forward.errors import InvalidInput

REVIEW = 'I liked it. "Was it good?" Yes!<br /><br />The end (of it all.) came late\nand went on'


def test_a_review_is_cut_at_the_ends_of_sentences() -> None:
    found = list(pieces([Record(REVIEW, None, 1)]))
    assert [piece.text for piece in found] == [
        "I liked it.",
        '"Was it good?"',
        "The end (of it all.)",
        "and went on",
    ]
    assert {piece.label for piece in found} == {1}


def test_a_long_sentence_is_cut_evenly() -> None:
    text = " ".join(map(str, range(33)))
    lengths = [len(piece.text.split()) for piece in pieces([Record(text)], most_words=32)]
    assert lengths == [16, 17]


@given(
    texts=st.lists(st.text("ab .!?\n\"'", max_size=200), max_size=5),
    most=st.integers(5, 12),
    least=st.integers(1, 3),
)
def test_every_piece_has_the_promised_length_and_order(texts: list[str], most: int, least: int) -> None:
    for text in texts:
        words = iter(text.split())
        for piece in pieces([Record(text, None, 0)], most_words=most, least_words=least):
            assert least <= len(piece.text.split()) <= most
            assert all(word in words for word in piece.text.split())  # eats up `words`: the order is kept


def test_pieces_are_lazy() -> None:
    def records():
        yield Record("one two three. four five six.")
        raise AssertionError("read too far")

    assert next(pieces(records())).text == "one two three."


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a pair"):
        next(pieces([Record("one two three", "four", 1)]))
    with pytest.raises(InvalidInput, match="at most half of most_words = 8"):
        pieces([], most_words=8, least_words=5)
    with pytest.raises(InvalidInput, match="most_words"):
        pieces([], most_words=0)
