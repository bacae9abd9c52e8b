"""An accuracy comes with an interval that covers texts and noise."""

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

import tiny_models
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.privacy import KaryResponse, NoiseSpec
from dp_forward.split import split_model
from dp_forward.train.evaluation import accuracy_of, accuracy_over_draws
from dp_forward.train.noisy_model import NoisyModel


class _Records:
    pads_left = True

    def __init__(self, size: int) -> None:
        random = torch.Generator().manual_seed(0)
        self._ids = torch.randint(2, 60, (size, 8), generator=random)
        self._labels = torch.randint(0, 3, (size,), generator=random)

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: list[int], *, trim: bool = False) -> dict[str, torch.Tensor]:
        ids = self._ids[indices]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": self._labels[indices]}


def _module(epsilon: float) -> NoisyModel:
    pair = split_model(tiny_models.tiny("bert"), "encoder.1")
    return NoisyModel(pair, Sanitizer(NoiseSpec(epsilon=epsilon).build(), seed=3), rows=8, labels=3)


def test_every_text_is_answered_once_per_draw() -> None:
    found = accuracy_over_draws(_module(8.0), _Records(70), draws=7)
    assert (found.draws, found.texts, len(found.by_draw)) == (7, 70, 7)
    assert len(set(found.by_draw)) > 1, "the draws differ"
    assert found.low <= found.mean <= found.high
    assert np.mean(found.by_draw) == pytest.approx(found.mean)


def test_a_decision_is_right_as_often_as_its_response_lets_it() -> None:
    class ReadsTheRow(torch.nn.Module):
        def forward(self, noisy: torch.Tensor) -> SequenceClassifierOutput:
            return SequenceClassifierOutput(logits=noisy[:, 0])

    response = KaryResponse(1.5, 3)
    pair = split_model(tiny_models.tiny("bert"), "output", width=3)
    module = NoisyModel(pair, Sanitizer(response, seed=3), rows=8, labels=3)
    module.back = ReadsTheRow()  # type: ignore[assignment]
    records, draws = _Records(200), 100
    texts = records.batch(list(range(len(records))))
    del texts["labels"]
    with torch.inference_mode():
        decided = module.eval().hidden(**texts)[:, 0].argmax(dim=-1)
    records._labels = torch.where(torch.arange(len(records)) % 4 == 0, (decided + 1) % 3, decided)
    found = accuracy_over_draws(module, records, draws=draws).mean
    error = 5 * (0.25 / (draws * len(records))) ** 0.5
    for keep, fits in ((response.keep, True), (KaryResponse(1.5 / 0.9, 3).keep, False)):
        assert (abs(found - (0.75 * keep + 0.25 * (1 - keep) / 2)) < error) is fits
    module.clean = True
    assert accuracy_over_draws(module, records).mean == 0.75


def test_without_noise_one_pass_is_enough() -> None:
    module = _module(8.0)
    module.clean = True
    first, second = (accuracy_over_draws(module, _Records(20), draws=9) for _ in range(2))
    assert first == second
    assert first.draws == 1


def test_the_module_is_left_as_it_was() -> None:
    module = _module(8.0).train()
    accuracy_over_draws(module, _Records(5), draws=2)
    assert module.training


def test_no_records_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        accuracy_over_draws(_module(8.0), _Records(0), draws=2)


def test_the_interval_covers_the_truth_about_19_times_in_20() -> None:
    random = np.random.default_rng(4)
    covered, naive = 0, 0
    for _ in range(400):
        chance = random.beta(2, 1, size=200)  # how often each text is answered right; the mean is 2/3
        right = (random.random((200, 10)) < chance[:, None]).astype(float)
        found = accuracy_of(right)
        covered += found.low <= 2 / 3 <= found.high
        half = 1.96 * np.sqrt(found.mean * (1 - found.mean) / right.size)
        naive += abs(found.mean - 2 / 3) <= half
    assert covered / 400 > 0.925
    assert naive / 400 < 0.9, "the control: counting draws as texts covers too rarely"


def test_all_right_is_not_certainty() -> None:
    found = accuracy_of(np.ones((30, 10)))
    assert found.mean == 1.0
    assert found.low < 0.9
