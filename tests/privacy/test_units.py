"""What is protected."""

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.privacy import LABEL, RECORD, TEXT, TOKEN, Unit, parse_unit, phrase
from dp_forward.privacy.units import format_unit, refuse_where_rows_mix


@pytest.mark.parametrize("unit", [TEXT, TOKEN, LABEL, RECORD, phrase(5)], ids=str)
def test_a_unit_reads_back_its_own_name(unit: Unit) -> None:
    assert parse_unit(format_unit(unit)) == unit


def test_a_phrase_has_its_number_of_tokens() -> None:
    assert (str(phrase(5)), format_unit(phrase(5))) == ("phrase of 5 tokens", "phrase:5")


@pytest.mark.parametrize(
    "text", ["", "word", "phrase", "phrase:", "phrase:0", "phrase:-2", "phrase:x", "Text"]
)
def test_an_unknown_unit_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_unit(text)


@pytest.mark.parametrize(("kind", "tokens"), [("word", None), ("text", 3), ("token", None), ("phrase", None)])
def test_an_impossible_unit_cannot_be_made(kind: str, tokens: int | None) -> None:
    with pytest.raises(InvalidInput):
        Unit(kind, tokens)  # type: ignore[arg-type]


def test_a_promise_per_token_needs_rows_of_their_own() -> None:
    for unit in (TOKEN, phrase(3)):
        with pytest.raises(InvalidInput, match="whole texts at the cut encoder"):
            refuse_where_rows_mix("front", unit, row_local=False, cut="encoder.2")
        refuse_where_rows_mix("front", unit, row_local=True, cut="embeddings")
    for unit in (TEXT, None):
        refuse_where_rows_mix("front", unit, row_local=False, cut="encoder.2")
