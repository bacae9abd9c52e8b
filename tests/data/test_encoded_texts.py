"""Token ids of a split, in memory and in batches."""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

import tiny_models
from dp_forward.data import EncodedTexts, FixedLength, Record, collate, encoded_texts
from dp_forward.errors import InvalidInput

RECORDS = [
    Record("a quiet film", None, 1),
    Record("an endless , loud and joyless film that never ends " * 3, None, 0),
    Record("bad", None, 0),
    Record("a film about a film", None, 1),
    Record("good", None, 1),
]
PAIRS = [Record("Who is it?", "Who?", 1), Record("Why?", "When is it going to be?", 0)]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny_models.minilm_folder())


@pytest.fixture(scope="module")
def encoded(tokenizer) -> EncodedTexts:
    return EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, 16))


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_a_batch_is_what_the_tokenizer_gives(
    tokenizer, causal: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded_texts, "_CHUNK", chunk)
    fixed = FixedLength(tokenizer, 16, causal=causal)
    encoded = EncodedTexts.from_records(iter(RECORDS), fixed)
    wanted = fixed.encode([record.text for record in RECORDS]) | {"labels": torch.tensor([1, 0, 0, 1, 1])}
    assert same(encoded.batch(range(5)), wanted)
    assert same(encoded[3], {name: value[3] for name, value in wanted.items()})
    assert same(encoded[-1], encoded[4])
    with pytest.raises(IndexError):
        encoded[5]


def test_a_pair_keeps_its_segments(tokenizer) -> None:
    fixed = FixedLength(tokenizer, 16)
    batch = EncodedTexts.from_records(PAIRS, fixed).batch([0, 1])
    assert same(
        batch,
        fixed.encode(["Who is it?", "Why?"], ["Who?", PAIRS[1].second]) | {"labels": torch.tensor([1, 0])},
    )
    assert batch["token_type_ids"].sum(dim=1).tolist() == [3, 8]


def test_a_loader_takes_ready_batches(encoded: EncodedTexts) -> None:
    batches = list(DataLoader(encoded, batch_size=2, collate_fn=collate))
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(2, 16), (2, 16), (1, 16)]
    assert same(batches[1], encoded.batch([2, 3]))
    assert {value.dtype for value in batches[0].values()} == {torch.int64}


@pytest.mark.parametrize("causal", [False, True])
def test_trimming_drops_padding_only(tokenizer, causal: bool) -> None:
    encoded = EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, 16, causal=causal))
    full, cut = encoded.batch([0, 2, 3]), encoded.batch([0, 2, 3], trim=True)
    assert cut["input_ids"].shape == (3, 7)
    rows = slice(-7, None) if causal else slice(0, 7)
    assert same({name: v if name == "labels" else v[:, rows] for name, v in full.items()}, cut)
    assert cut["attention_mask"].sum() == full["attention_mask"].sum()
    assert same(encoded.batch([0, 1], trim=True), encoded.batch([0, 1]))


def test_nothing_of_the_texts_is_shown(encoded: EncodedTexts) -> None:
    assert repr(encoded) == "EncodedTexts(5 records of 16 rows, labelled)"


def test_labels_can_be_replaced_but_not_changed_in_place(encoded: EncodedTexts) -> None:
    other = encoded.with_labels([0, 0, 0, 0, 1])
    assert other.labels.tolist() == [0, 0, 0, 0, 1]
    assert encoded.labels.tolist() == [1, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        encoded.labels[0] = 0
    for labels in ([1, 0], [[1, 0, 0, 1, 1]], [0.5] * 5, ["a"] * 5):
        with pytest.raises(InvalidInput, match="5 whole numbers"):
            encoded.with_labels(labels)


def test_a_subset_keeps_the_order_asked_for(encoded: EncodedTexts) -> None:
    part = encoded.subset([4, 1])
    assert same(part.batch([0, 1]), encoded.batch([4, 1]))
    for indices in ([], [5], [-1]):
        with pytest.raises(InvalidInput, match="indices"):
            encoded.subset(indices)


def test_what_is_split_off_is_gone_from_the_rest(tokenizer) -> None:
    many = EncodedTexts.from_records([Record("x", None, i) for i in range(100)], FixedLength(tokenizer, 4))
    for part, held in ((0.25, 25), (0.01, 1), (0.99, 99)):
        rest, out = many.split_off(part, seed=7)
        assert len(out) == held
        assert sorted([*rest.labels, *out.labels]) == list(range(100))
    again, other = (many.split_off(0.25, seed=seed)[1].labels.tolist() for seed in (7, 8))
    assert again == many.split_off(0.25, seed=7)[1].labels.tolist() != other
    for part in (0, 100, 0.0, 1.0, 0.001, -1, True):
        with pytest.raises(InvalidInput, match="part"):
            many.split_off(part, seed=7)


def test_the_fingerprint_tells_every_change(tokenizer, encoded: EncodedTexts) -> None:
    fixed = FixedLength(tokenizer, 16)
    same_again = EncodedTexts.from_records(RECORDS, fixed)
    assert same_again.fingerprint() == encoded.fingerprint()
    changed = [
        encoded.with_labels([0] * 5),
        encoded.subset([0, 1, 2, 3]),
        encoded.subset([1, 0, 2, 3, 4]),
        EncodedTexts.from_records([record._replace(label=None) for record in RECORDS], fixed),
        EncodedTexts.from_records([*RECORDS[:-1], Record("poor", None, 1)], fixed),
        EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, 17)),
        EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, 16, causal=True)),
        EncodedTexts.from_records([record._replace(second="x") for record in RECORDS], fixed),
    ]
    one_segment_more = encoded.columns["types"].copy()
    one_segment_more[0, 0] = 1
    columns = {**encoded.columns, "types": one_segment_more}
    changed.append(EncodedTexts(columns, pads_left=False))
    assert len({encoded.fingerprint(), *(other.fingerprint() for other in changed)}) == 1 + len(changed)


def test_progress_counts_the_records(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_texts, "_CHUNK", 2)
    seen: list[int] = []
    EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, 8), progress=seen.append)
    assert seen == [2, 4, 5]


def test_records_must_agree(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, unlabelled = FixedLength(tokenizer, 8), Record("x")
    with pytest.raises(InvalidInput, match="at least one"):
        EncodedTexts.from_records([], fixed)
    for chunk in (1, 8):
        monkeypatch.setattr(encoded_texts, "_CHUNK", chunk)
        with pytest.raises(InvalidInput, match="a label each, or none"):
            EncodedTexts.from_records([*RECORDS, unlabelled], fixed)
        with pytest.raises(InvalidInput, match="all pairs or all single"):
            EncodedTexts.from_records([*RECORDS, *PAIRS], fixed)
    assert EncodedTexts.from_records([unlabelled], fixed).labels is None
    assert "labels" not in EncodedTexts.from_records([unlabelled], fixed)[0]


@pytest.mark.slow
def test_texts_are_not_kept(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 bytes of ids and 1 of token types a row stay, and 136 of fingerprints; the texts do not."""
    monkeypatch.setattr(encoded_texts, "_CHUNK", 100)

    def records(number: int) -> Iterator[Record]:
        for i in range(number):
            yield Record(f"{i} " + "x" * 400, None, i % 2)

    fixed = FixedLength(tokenizer, 4)
    EncodedTexts.from_records(records(2), fixed)
    tracemalloc.start()
    try:
        kept = EncodedTexts.from_records(records(3000), fixed)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept) == 3000
    assert now < 3000 * 215
    assert peak < 3000 * 450


def test_ids_are_compact(encoded: EncodedTexts) -> None:
    assert encoded.lengths.dtype == np.int32
    assert encoded.columns["ids"].dtype == np.int32
    assert encoded.columns["types"].dtype == np.uint8
