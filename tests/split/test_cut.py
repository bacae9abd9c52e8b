"""The grammar of cuts."""

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.split import Cut, parse_cut

WORDS = [
    "embeddings",
    "output",
    "encoder.1.qkv",
    *(f"encoder.{k}" for k in (1, 7, 12, 120)),
    *(f"encoder.{k}.{p}" for k in (1, 24) for p in ("attention", "attention_norm", "ffn", "ffn_norm")),
]


@pytest.mark.parametrize("word", WORDS)
def test_a_cut_is_its_word(word: str) -> None:
    assert str(parse_cut(word)) == word
    assert parse_cut(str(parse_cut(word))) == parse_cut(word)
    assert parse_cut(parse_cut(word)) == parse_cut(word)


@pytest.mark.parametrize(
    "word",
    [
        *("", "embedding", "Encoder.1", "encoder", "encoder.0", "encoder.01", "encoder.-1", "encoder.1.5"),
        *("encoder.2.qkv", "encoder.1.norm", "encoder.1.attention.", " encoder.1", "encoder.1\n", "outputs"),
        *("encoder.\N{ARABIC-INDIC DIGIT ONE}", 3, None),
    ],
)
def test_anything_else_is_refused_in_one_line(word: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_cut(word)  # type: ignore[arg-type]
    assert "`cut` must" in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_the_nearest_words_are_suggested() -> None:
    with pytest.raises(InvalidInput, match=r"Did you mean .*embeddings"):
        parse_cut("embeding")
    with pytest.raises(InvalidInput, match=r"encoder\.2\.attention_norm"):
        parse_cut("encoder.2.attn_norm")


def test_a_cut_outside_the_grammar_cannot_be_built() -> None:
    for parts in [("encoder",), ("encoder", 0), ("output", 1), ("encoder", 2, "qkv"), ("middle",)]:
        with pytest.raises(InvalidInput):
            Cut(*parts)  # type: ignore[arg-type]


def test_the_residual_is_dropped_where_two_tensors_would_cross() -> None:
    dropped = {word for word in WORDS if parse_cut(word).drops_residual}
    assert dropped == {w for w in WORDS if w.endswith((".attention", ".ffn", ".qkv"))}


def test_only_rows_before_the_first_attention_are_local() -> None:
    assert {word for word in WORDS if parse_cut(word).row_local} == {"embeddings", "encoder.1.qkv"}
