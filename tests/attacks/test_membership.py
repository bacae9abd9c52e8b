"""Membership: the attack finds what is there, reports it honestly, and finds nothing in nothing."""

import math

import numpy as np
import pytest
import torch

from corpus.release_cases import pair, texts
from dp_forward.attacks.membership import (
    SCORES,
    answers,
    confidence,
    drop_words,
    entropy,
    modified_entropy,
    roc,
    threshold_attack,
)
from dp_forward.data import Record
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.split import split_model
from tiny_models import LABELS, tiny


def _phi(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def test_a_shift_is_found_as_often_as_theory_says_and_no_shift_is_not() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.standard_normal(8000) + 1.0, rng.standard_normal(6000)
    found = threshold_attack(members, others, seed=1, ceiling=0.9)
    assert found.success == pytest.approx(_phi(0.5), abs=0.02)
    assert found.low < found.success < found.high
    assert found.trials == 6000
    assert found.details["members_score"] == "high"
    assert found.details["auc"] == pytest.approx(_phi(1 / math.sqrt(2)), abs=0.02)
    assert 0.02 < found.details["tpr_at_0.1_percent_fpr"] < found.details["tpr_at_1_percent_fpr"] < 0.2
    assert found.within_ceiling
    assert not threshold_attack(members, others, seed=1, ceiling=0.6).within_ceiling
    control = threshold_attack(others[:3000], others[3000:], seed=1)
    assert control.success == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(control.trials))


def test_members_may_score_low() -> None:
    rng = np.random.default_rng(0)
    found = threshold_attack(rng.standard_normal(2000) - 2.0, rng.standard_normal(2000), seed=0)
    assert found.success > 0.8
    assert found.details["members_score"] == "low"
    assert found.details["auc"] > 0.9
    wrong_way = threshold_attack(
        rng.standard_normal(2000) - 2.0, rng.standard_normal(2000), seed=0, direction="high"
    )
    assert wrong_way.success < 0.55


@pytest.mark.slow
def test_a_threshold_is_never_judged_on_the_texts_that_chose_it() -> None:
    """Twenty texts without any difference: fitted and judged on the same, the mean would be near 0.65."""
    rng = np.random.default_rng(5)
    runs = [
        threshold_attack(rng.standard_normal(20), rng.standard_normal(20), seed=seed).success
        for seed in range(100)
    ]
    assert np.mean(runs) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(20 * 100))


def test_scores_that_say_nothing_are_a_coin() -> None:
    found = threshold_attack(np.ones(40), np.ones(40), seed=0)
    assert found.success == 0.5
    assert found.details["auc"] == 0.5
    assert found.details["tpr_at_1_percent_fpr"] == 0.0


@pytest.mark.parametrize("size", [0, 1, 19])
def test_too_few_texts_are_refused(size: int) -> None:
    with pytest.raises(InvalidInput, match=r"20 texts|at least one"):
        threshold_attack(np.zeros(size), np.zeros(50), seed=0)
    with pytest.raises(InvalidInput, match=r"20 texts|at least one"):
        threshold_attack(np.zeros(50), np.zeros(size), seed=0)


def test_scores_by_hand() -> None:
    told = [[0.75, 0.25], [1.0, 0.0]]
    assert confidence(told, [1, 0]).tolist() == [0.25, 1.0]
    assert entropy(told) == pytest.approx([0.75 * math.log(4 / 3) + 0.25 * math.log(4), 0.0])
    by_hand = [-0.75 * math.log(0.25) - 0.75 * math.log(0.25), 0.0]
    assert modified_entropy(told, [1, 0]) == pytest.approx(by_hand)
    assert modified_entropy(told, [0, 1])[1] > 30  # sure, and wrong
    assert set(SCORES) == {"entropy", "confidence", "modified-entropy"}
    for wrong in ([0, 2], [-1, 0], [0], [0.0, 1.0]):
        with pytest.raises(InvalidInput, match="labels"):
            confidence(told, wrong)
    with pytest.raises(InvalidInput, match="probabilities"):
        entropy([[0.5, 0.6]])


def test_the_roc_by_hand() -> None:
    found = roc(np.array([3.0, 2.0, 0.0, 5.0]), np.array([1.0, 2.0, 4.0, 0.5]))
    assert found["auc"] == (3 + 2.5 + 0 + 4) / 16
    assert found["tpr_at_1_percent_fpr"] == 0.25


def test_undefended_answers_are_those_of_the_whole_model_in_the_order_of_the_texts() -> None:
    model, some = tiny("bert", blocks=2), texts(90)
    halves = split_model(model, "output")
    seen: list[int] = []
    told = answers(halves.front, halves.back, None, some, device="cpu", progress=seen.append)
    batch = some.batch(range(90))
    batch.pop("labels")
    with torch.inference_mode():
        whole = torch.softmax(model(**batch).logits.double(), dim=-1).numpy()
    assert told == pytest.approx(whole, abs=1e-5)
    assert seen[-1] == 90


@pytest.mark.slow
@pytest.mark.parametrize("name", ["privunit", "matrix-gaussian", "mvg"])
def test_noisy_answers_are_drawn_anew_and_averaged(name: str) -> None:
    halves, some = pair("encoder.1"), texts(30)
    mechanism = NoiseSpec(mechanism=name, epsilon=4.0, rows=6, columns=32).build()
    first, again = (answers(halves.front, halves.back, mechanism, some, device="cpu") for _ in range(2))
    assert first.shape == (30, LABELS)
    assert first.sum(axis=1) == pytest.approx(np.ones(30))
    assert np.abs(first - again).max() > 1e-3
    many, more = (
        answers(halves.front, halves.back, mechanism, some, draws=60, device="cpu") for _ in range(2)
    )
    assert np.abs(many - more).mean() < 0.4 * np.abs(first - again).mean()
    still, same = (
        answers(halves.front, halves.back, mechanism, some, noiseless=True, device="cpu") for _ in range(2)
    )
    assert np.array_equal(still, same)
    assert np.abs(still - first).max() > 1e-3


@pytest.mark.slow
def test_a_model_that_learned_by_heart_gives_its_texts_away_and_only_those() -> None:
    rng = np.random.default_rng(0)
    everyone = texts(360, seed=3)
    everyone = everyone.with_labels(
        rng.integers(LABELS, size=360)
    )  # labels that can only be learned by heart
    members = everyone.subset(range(120))
    model = tiny("bert", blocks=2)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(60):
        for some in torch.randperm(120, generator=torch.Generator().manual_seed(0)).split(40):
            optimiser.zero_grad()
            model(**members.batch(some.numpy())).loss.backward()
            optimiser.step()
    halves = split_model(model.eval(), "encoder.1")
    told = answers(halves.front, halves.back, None, everyone, device="cpu")
    for name, score in SCORES.items():
        scores = score(told, everyone.labels)
        assert threshold_attack(scores[:120], scores[120:240], seed=0).low > 0.55, name
        control = threshold_attack(scores[120:240], scores[240:], seed=0)
        assert control.low <= 0.5 <= control.high, name


def test_a_promise_per_token_does_not_fit_a_cut_where_rows_mix() -> None:
    per_token = NoiseSpec(mechanism="privunit", epsilon=1.0, unit="token", rows=6).build()
    mixing = pair("encoder.1")
    with pytest.raises(InvalidInput, match="whole texts"):
        answers(mixing.front, mixing.back, per_token, texts(30), device="cpu")
    local = pair("embeddings")
    assert answers(local.front, local.back, per_token, texts(30), device="cpu").shape == (30, LABELS)


def test_words_are_dropped_and_one_is_kept() -> None:
    records = [Record(" ".join(map(str, range(1000))), None, 1), Record("alone", "two words", 0)]
    dropped = list(drop_words(records, share=0.25, seed=0))
    kept = dropped[0].text.split()
    assert 700 < len(kept) < 800
    assert kept == sorted(kept, key=int)
    assert dropped[1].text == "alone"
    assert set(dropped[1].second.split()) <= {"two", "words"}
    assert [record.label for record in dropped] == [1, 0]
    assert dropped == list(drop_words(records, share=0.25, seed=0))
    with pytest.raises(InvalidInput, match="share"):
        list(drop_words(records, share=1.0, seed=0))
