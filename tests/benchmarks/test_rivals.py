"""The rivals' laws are the published ones, their promises hold where they are claimed, and leak where not."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

import tiny_corpus
from benchmarks.masked_model import Batches, train
from benchmarks.rivals import crossing, keep_parts, main
from benchmarks.tables import rivals as rivals_table
from benchmarks.text_sanitizers import (
    Choices,
    CustomSets,
    MaskedRewriting,
    Vocabulary,
    WordReplacement,
    ceiling,
    draw_text,
    exponential_law,
    sanitize,
    split_words,
)
from dp_forward.train.pretrain.masked_lm import MaskedLM

WORDS = [f"w{number}" for number in range(12)]
DRAWS = 4000


def vectors_of(words: Sequence[str]) -> np.ndarray:
    """Any vectors: a word's own, the same each time."""
    return np.stack([np.random.default_rng(list(word.encode())).normal(size=3) for word in words])


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(WORDS, vectors_of)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> MaskedRewriting:
    """A random masked model that heeds its context, its logits spread out so that a clip matters."""
    start = MaskedLM(tiny_corpus.make_checkpoint(tmp_path_factory.mktemp("masked")))
    for parameter in start.model.base_model.parameters():
        parameter.data.mul_(10 if parameter.dim() > 1 else 1)
    start.model.cls.predictions.transform.dense.weight.data.mul_(10)
    made = MaskedRewriting(start.model, start.tokenizer)
    made.clip_from(["w1 w2 w3 w4", "w5 w6 w7 w8"])
    return made


def formula(distances: np.ndarray, epsilon: float) -> np.ndarray:
    """The published law, written out: exp(-epsilon / 2 * distance), normalised."""
    weights = [math.exp(-epsilon / 2 * distance) for distance in distances]
    return np.array(weights) / sum(weights)


def log_ratio(rows: np.ndarray) -> float:
    """The largest log ratio of two rows' probabilities of the same candidate."""
    return float((np.log(rows).max(axis=0) - np.log(rows).min(axis=0)).max())


def fits(drawn: Sequence[str], candidates: Sequence[str], law: np.ndarray) -> bool:
    counts, exact = Counter(drawn), law.astype(np.float64)
    expected = exact / exact.sum() * len(drawn)
    return bool(chisquare([counts[word] for word in candidates], expected).pvalue > 1e-4)


def test_word_replacement_draws_by_the_distance_of_the_vectors(vocabulary: Vocabulary) -> None:
    sanitizer, rng, epsilon = WordReplacement(vocabulary), np.random.default_rng(0), 3.0
    vectors = vectors_of(WORDS)
    distances = np.linalg.norm(vectors - vectors[4], axis=1)
    drawn = [draw_text(sanitizer.choices(["w4"]), epsilon * sanitizer.largest, rng) for _ in range(DRAWS)]
    assert fits(drawn, WORDS, formula(distances, epsilon))
    assert not fits(drawn, WORDS, formula(distances, 1.5 * epsilon))
    assert not fits(drawn, WORDS, formula(distances, epsilon / 1.5))


def test_the_epsilon_of_a_text_is_split_over_its_words(vocabulary: Vocabulary) -> None:
    sanitizer, rng = WordReplacement(vocabulary), np.random.default_rng(1)
    choices = sanitizer.choices(["w4", "w7", "w4"])
    second = [draw_text(choices, 12.0, rng).split()[1] for _ in range(DRAWS)]
    assert fits(second, WORDS, exponential_law(choices.scores, 4.0)[1])
    assert not fits(second, WORDS, exponential_law(choices.scores, 12.0)[1])


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_no_two_words_differ_by_more_than_epsilon_under_word_replacement(
    vocabulary: Vocabulary, epsilon: float
) -> None:
    sanitizer = WordReplacement(vocabulary)
    scores = sanitizer.choices(WORDS).scores
    found = log_ratio(exponential_law(scores, epsilon))
    assert epsilon / 2 <= found <= epsilon
    assert sanitizer.exact_epsilons([epsilon]) == [pytest.approx(found, rel=1e-5)]
    assert log_ratio(exponential_law(scores * sanitizer.largest, epsilon)) > found  # the metric parameter


def test_the_metric_parameter_promises_epsilon_times_the_distance(vocabulary: Vocabulary) -> None:
    vectors, epsilon = vectors_of(WORDS), 2.0
    sanitizer = WordReplacement(vocabulary)
    law = exponential_law(sanitizer.choices(WORDS).scores, epsilon * sanitizer.largest)
    for one in range(len(WORDS)):
        for other in range(len(WORDS)):
            distance = float(np.linalg.norm(vectors[one] - vectors[other]))
            assert log_ratio(law[[one, other]]) <= epsilon * distance + 1e-4


def test_custom_sets_part_the_vocabulary_most_frequent_word_first(vocabulary: Vocabulary) -> None:
    made = CustomSets(vocabulary, size=4)
    assert sorted(made.sets.ravel()) == list(range(len(WORDS)))
    first = np.linalg.norm(vectors_of(WORDS) - vectors_of(WORDS[:1]), axis=1)
    assert set(made.sets[0]) == set(np.argsort(first)[:4])


def test_custom_sets_keep_epsilon_within_a_set_and_tell_the_set_at_any_epsilon(
    vocabulary: Vocabulary,
) -> None:
    made, epsilon = CustomSets(vocabulary, size=4), 2.0
    for members in made.sets:
        law = exponential_law(made.choices([WORDS[place] for place in members]).scores, epsilon)
        assert epsilon / 2 <= log_ratio(law) <= epsilon
    rng = np.random.default_rng(2)
    for word in WORDS:
        drawn = {draw_text(made.choices([word]), 0.0, rng) for _ in range(200)}
        assert drawn == {WORDS[place] for place in made.sets[made.set_of[WORDS.index(word)]]}


def test_custom_sets_draw_by_the_distance_within_the_set(vocabulary: Vocabulary) -> None:
    made, rng, vectors = CustomSets(vocabulary, size=4), np.random.default_rng(3), vectors_of(WORDS)
    members = made.sets[1]
    word = int(members[2])
    distances = np.linalg.norm(vectors[members] - vectors[word], axis=1)
    drawn = [draw_text(made.choices([WORDS[word]]), 5.0, rng) for _ in range(DRAWS)]
    candidates = [WORDS[place] for place in members]
    assert fits(drawn, candidates, formula(distances / distances.max(), 5.0))
    assert not fits(drawn, candidates, formula(distances, 5.0))


def test_masked_rewriting_draws_by_the_clipped_logits(masked: MaskedRewriting) -> None:
    text, rng = ["w1", "w2", "w3"], np.random.default_rng(4)
    assert masked.clip is not None
    low, high = masked.clip
    logits = masked.logits(text)[1].astype(float)
    assert logits.min() < low  # so the clip does something
    temperature = 2 * (high - low) / 6.0  # a text of 18 has 6 for each of its three words
    weights = np.exp(np.clip(logits, low, high) / temperature)
    choices = masked.choices(text)
    drawn = [draw_text(choices, 18.0, rng).split()[1] for _ in range(DRAWS)]
    candidates = choices.candidates.tolist()
    assert fits(drawn, candidates, weights / weights.sum())
    unclipped = np.exp(logits / temperature)
    assert not fits(drawn, candidates, unclipped / unclipped.sum())


def test_no_two_texts_differ_by_more_than_epsilon_under_masked_rewriting(masked: MaskedRewriting) -> None:
    rng, epsilon = np.random.default_rng(5), 3.0
    texts = [[f"w{word}" for word in row] for row in rng.integers(0, tiny_corpus.WORDS, (40, 4))]
    logits = np.stack([masked.logits(text)[2] for text in texts])
    middle, width = float(np.median(logits)), float(logits.std()) / 10
    narrow = MaskedRewriting(masked.model, masked.tokenizer, clip=(middle, middle + width))
    scores = np.stack([narrow.choices(text).scores[2] for text in texts])
    assert epsilon / 2 <= log_ratio(exponential_law(scores, epsilon)) <= epsilon
    unclipped = logits / width
    assert log_ratio(exponential_law(unclipped, epsilon)) > epsilon


def test_without_noise_the_best_candidate_is_taken(vocabulary: Vocabulary) -> None:
    rng = np.random.default_rng(6)
    for sanitizer in (WordReplacement(vocabulary), CustomSets(vocabulary, size=4)):
        assert draw_text(sanitizer.choices(WORDS), math.inf, rng).split() == WORDS
    assert draw_text(Choices(np.array(WORDS), np.zeros((0, 12))), 4.0, rng) == ""


def test_a_word_outside_the_vocabulary_counts_as_the_nearest_one(vocabulary: Vocabulary) -> None:
    distances = np.linalg.norm(vectors_of(WORDS) - vectors_of(["strange"]), axis=1)
    assert vocabulary.places(["strange", "w3"]).tolist() == [int(distances.argmin()), 3]


def test_every_generator_and_total_gives_a_text_of_as_many_words(vocabulary: Vocabulary) -> None:
    generators = [np.random.default_rng(seed) for seed in (0, 1)]
    found = list(sanitize(WordReplacement(vocabulary), ["w1, w2!", "w3"], [1.0, 9.0, 99.0], generators))
    assert np.array(found).shape == (2, 2, 3)
    assert [len(text.split()) for text in np.array(found)[0].ravel()] == [2] * 6


def test_words_are_cut_as_the_treebank_cuts_them() -> None:
    assert split_words("It doesn't work, they're well-made.") == [
        *("it", "does", "n't", "work", "they", "'re", "well-made")
    ]
    assert split_words("does n't film 's") == ["does", "n't", "film", "'s"]


def test_a_crossing_lies_between_the_measured_points() -> None:
    rows = [
        {"epsilon": epsilon, "accuracy": accuracy}
        for epsilon, accuracy in ((4.0, 0.5), (64.0, 0.6), (256.0, 0.8), (None, 0.9))
    ]
    assert crossing(rows, 0.7) == pytest.approx(128.0)
    assert crossing(rows, 0.5) == 4.0
    assert crossing(rows, 0.85) is None  # only without any noise


def test_no_classifier_exceeds_the_ceiling() -> None:
    rng, epsilon = np.random.default_rng(7), 1.5

    def right(scores: np.ndarray, words: int) -> float:
        """The best guess between two texts whose words have these two rows of scores."""
        one, other = exponential_law(scores, epsilon)
        if words == 2:
            one, other = np.outer(one, one), np.outer(other, other)
        return float((1 + np.abs(one - other).sum() / 2) / 2)

    worst = np.array([[1.0] * 5 + [0.0] * 5, [0.0] * 5 + [1.0] * 5])
    for words in (1, 2):
        (bound,) = ceiling(np.array([words]), epsilon * words)
        assert all(right(scores, words) <= bound for scores in (worst, *rng.random((50, 2, 10))))
        assert right(2 * worst, words) > bound
    assert right(worst, 1) > ceiling(np.array([1]), epsilon)[0] - 0.01  # it is nearly reached


@pytest.mark.parametrize("pairs", [False, True])
def test_a_masked_model_learns(tmp_path: Path, pairs: bool) -> None:
    start = MaskedLM(tiny_corpus.make_checkpoint(tmp_path / "model"))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(tiny_corpus.one_word_each()), encoding="utf-8")
    batches = Batches(start.tokenizer, str(corpus), most=1000, length=20)
    before, after = (
        train(start.model, batches, steps=steps, batch=16, pairs=pairs, rate=5e-3) for steps in (0, 100)
    )
    assert after < before - 0.5


def test_a_pair_holds_the_text_beside_itself(tmp_path: Path) -> None:
    start = MaskedLM(tiny_corpus.make_checkpoint(tmp_path / "model"))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(tiny_corpus.any_words()), encoding="utf-8")
    batches = Batches(start.tokenizer, str(corpus), most=100, length=24)
    drawn = batches.draw(np.random.default_rng(0), 8, pairs=True)
    ids, labels, types = (drawn[name] for name in ("input_ids", "labels", "token_type_ids"))
    body = (ids.shape[1] - 3) // 2
    chosen = labels[:, body + 2 : -1] >= 0
    assert bool((labels[:, : body + 2] < 0).all())
    assert bool((ids[:, 1 : body + 1][chosen] == labels[:, body + 2 : -1][chosen]).all())
    assert bool((ids[:, 1 : body + 1] == ids[:, body + 2 : -1])[~chosen].all())
    assert types.sum(dim=1).tolist() == [body + 1] * 8


def test_only_what_is_measured_again_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    rows = [{"rival": "SanText"}, {"rival": "DP-MLM"}]
    path.write_text(
        json.dumps({"commit": "a", "rivals": rows, "ours": 1, "masked_model": 2}), encoding="utf-8"
    )
    kept = keep_parts(path, ["masked"])
    assert kept == {"ours": 1, "rivals": rows[:1], "commits": {"ours": "a", "words": "a"}}


@pytest.mark.slow
def test_the_smoke_run_measures_every_rival(tmp_path: Path) -> None:
    target = tmp_path / "rivals.json"
    assert main(["--smoke", "--json", str(target)]) == 0, "so few questions miss goals by chance"
    record = json.loads(target.read_text(encoding="utf-8"))
    assert record["complete"]
    assert {row["rival"] for row in record["rivals"]} == {"SanText", "CusText", "DP-MLM"}
    assert record["setup"]["task"] == "rotten-tomatoes"
    assert {"commit", "versions", "machine", "targets", "reached_at"} <= record.keys()
    assert "SanText" in rivals_table(record)
