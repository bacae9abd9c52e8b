"""Nearest tokens: exact without noise where rows are local, and no better than chance in much noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import tiny_models
import tiny_task
from dp_forward.attacks.inversion.nearest_token import NearestTokens, Scale
from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.noise.released.released_matrix import release
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import split_model
from dp_forward.split.artifacts import UserSide

TEXT = "the lovely story with a grim and moving plot"


def user(cut: str = "embeddings", *, family: str = "bert", width: int | None = None) -> UserSide:
    """A user of a tiny random model, all in memory."""
    tokenizer = transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(tiny_task.WORDS)})
    words = {"vocab_size": len(tiny_task.WORDS), "pad_token_id": 0, "num_labels": 2}
    front = split_model(tiny_models.tiny(family, blocks=2, **words), cut, width=width).front
    fixed = FixedLength(tokenizer, 12, causal=front.pads_left, most_positions=front.max_rows)
    noise, labels = NoiseSpec(epsilon=8.0), ("bad", "good")
    return UserSide(front, fixed, ReleaseSpec.of(front, noise=noise, rows=12, labels=labels, front="ab" * 32))


@torch.inference_mode()
def hidden(of: UserSide, text: str) -> tuple[dict[str, Tensor], Tensor]:
    tokens = of.tokens.encode([text])
    return tokens, of.front(**tokens)[0]


@pytest.mark.parametrize(
    ("family", "cut", "width"),
    [
        ("bert", "embeddings", None),
        ("bert", "embeddings", 4),
        ("bert", "encoder.1.qkv", None),
        ("distilbert", "embeddings", None),
        ("gpt2", "embeddings", None),
        ("llama", "embeddings", None),
    ],
)
def test_a_matrix_of_local_rows_is_read_without_error(family: str, cut: str, width: int | None) -> None:
    of = user(cut, family=family, width=width)
    nearest = NearestTokens(of)
    tokens, matrix = hidden(of, TEXT)
    scales: list[tuple[Tensor, Scale]] = [(matrix, "known"), (0.37 * matrix, "matrix"), (7 * matrix, "row")]
    for reading in nearest.read(scales, tokens):
        assert [word for word, _ in reading.words] == TEXT.split()
        assert reading.recall == 1.0
    assert nearest.exact
    assert nearest.prepared == 1.0


@pytest.mark.parametrize("cut", ["encoder.1", "encoder.2"])
def test_a_text_of_one_token_is_read_behind_every_cut(cut: str) -> None:
    of = user(cut)
    nearest = NearestTokens(of)
    said: list[int] = []
    assert nearest.prepared == 0.0
    nearest.prepare(said.append)
    assert nearest.prepared == 1.0
    assert said[-1] == nearest.size
    for word in (*tiny_task.GOOD, *tiny_task.BAD):
        tokens, matrix = hidden(of, word)
        for reading in nearest.read([(matrix, "known"), (0.2 * matrix, "matrix")], tokens):
            assert reading.words[0][0] == word
            assert reading.recall == 1.0
    assert not nearest.exact


def test_where_one_row_crosses_no_token_is_named() -> None:
    with pytest.raises(InvalidInput, match="row for each token"):
        NearestTokens(user("output"))


def test_the_truth_says_only_which_guesses_are_right() -> None:
    of = user()
    nearest = NearestTokens(of)
    tokens, matrix = hidden(of, TEXT)
    others, _ = hidden(of, " ".join(reversed(TEXT.split())))
    for scale in ("known", "matrix", "row"):
        (told,), (untold,) = (nearest.read([(matrix, scale)], given) for given in (tokens, others))
        assert [word for word, _ in told.words] == [word for word, _ in untold.words]
        assert (told.recall, untold.recall) == (1.0, 1 / 9)  # only the word in the middle stays in place


def mean_recalls(epsilon: float, *scales: Scale, draws: int) -> list[float]:
    """Of the same releases, read under each scale."""
    of = user()
    nearest = NearestTokens(of)
    tokens, matrix = hidden(of, TEXT)
    mechanism = NoiseSpec(mechanism="matrix-gaussian", epsilon=epsilon).build()
    releases = [torch.from_numpy(release(matrix, mechanism).as_floats()) for _ in range(draws)]
    read = [nearest.read([(seen, scale) for seen in releases], tokens) for scale in scales]
    return [sum(reading.recall for reading in some) / draws for some in read]


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["matrix", "row"])
def test_a_release_is_read_no_better_than_chance(scale: Scale) -> None:
    """Of 18 tokens one is right; over 200 draws of 9 rows the mean has a standard error of 0.0054."""
    assert mean_recalls(1.0, scale, draws=200)[0] < 1 / 18 + 6 * 0.0054
    assert mean_recalls(3000.0, scale, draws=20)[0] > 0.9, "the control: with hardly any noise all is read"


@pytest.mark.slow
def test_rows_together_are_read_no_worse_than_one_by_one() -> None:
    # Both read the same releases. The mean difference has a deviation of 0.002.
    together, alone = mean_recalls(150.0, "matrix", "row", draws=600)
    assert 0.2 < alone < 0.95, "an epsilon at which it matters"
    assert together > alone - 0.03


def test_a_token_that_is_no_candidate_is_not_found() -> None:
    of = user()
    few = NearestTokens(of, vocabulary=4)  # the four good words
    assert few.size == 4
    tokens, matrix = hidden(of, "lovely moving plot")
    (reading,) = few.read([(matrix, "known")], tokens)
    assert [right for _, right in reading.words] == [True, True, False]
    assert reading.recall == pytest.approx(2 / 3)
    for wrong in (0, -1):
        with pytest.raises(InvalidInput, match="vocabulary"):
            NearestTokens(of, vocabulary=wrong)


def test_nothing_that_was_read_is_in_a_repr(tmp_path: Path) -> None:
    of = user()
    nearest = NearestTokens(of)
    tokens, matrix = hidden(of, TEXT)
    found: list[Any] = [nearest, *nearest.read([(matrix, "known")], tokens)]
    assert not any(word in repr(thing) for thing in found for word in ("lovely", "grim", "plot"))


def test_a_preparation_that_was_stopped_starts_anew() -> None:
    class Stop(Exception):
        pass

    def stop(done: int) -> None:
        raise Stop

    nearest = NearestTokens(user("encoder.1"))
    with pytest.raises(Stop):
        nearest.prepare(stop)
    nearest.prepare()
    assert nearest.prepared == 1.0
