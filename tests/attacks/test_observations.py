"""What an attacker is given is what would cross: real releases, drawn anew, in the order of the texts."""

import numpy as np
import pytest
import torch

from corpus.release_cases import ROWS, pair, texts
from dp_forward.attacks.observations import each_batch, hidden_rows, kind_of_noise, observe_texts
from dp_forward.noise.released.released_matrix import release
from dp_forward.privacy import NoiseSpec

RELEASED = [
    {"mechanism": "privunit"},
    {"mechanism": "matrix-gaussian"},
    {"mechanism": "gaussian"},
    {"mechanism": "privunit", "unit": "token", "rows": ROWS},
]


@pytest.mark.parametrize("choice", RELEASED)
def test_releases_are_whole_multiples_of_the_public_step(choice: dict[str, object]) -> None:
    mechanism, front = NoiseSpec(**choice).build(), pair("embeddings").front
    step = release(np.ones((ROWS, 32)), mechanism).step
    assert kind_of_noise(mechanism) == "released"
    seen = torch.cat(list(observe_texts(front, mechanism, texts(), draws=3, device="cpu")))
    assert seen.shape == (22, 3, ROWS, 32)
    cells = seen.double() / float(np.float32(step))
    assert torch.allclose(cells, cells.round(), atol=1e-4)
    assert (seen[:, 0] != seen[:, 1]).double().mean() > 0.8


@pytest.mark.parametrize("choice", [{"mechanism": "mvg", "columns": 32}, {"mechanism": "classical-gaussian"}])
def test_what_cannot_be_released_is_simulated(choice: dict[str, object]) -> None:
    mechanism = NoiseSpec(rows=ROWS, **choice).build()
    assert kind_of_noise(mechanism) == "simulated"
    (seen,) = observe_texts(pair().front, mechanism, texts(), draws=2, device="cpu")
    assert seen.shape == (22, 2, ROWS, 32)


def test_without_noise_it_is_the_hidden_matrix_or_the_bounded_one() -> None:
    front, told = pair().front, []
    hidden = torch.cat([hidden_rows(front, b, device="cpu") for b, _ in each_batch(texts(70), 64)])
    seen = torch.cat(list(observe_texts(front, None, texts(70), draws=5, device="cpu", progress=told.append)))
    assert torch.equal(seen[:, 0], hidden)
    assert told == [64, 70]
    mechanism = NoiseSpec(mechanism="privunit").build()
    inside = torch.cat(list(observe_texts(front, mechanism, texts(70), noiseless=True, device="cpu")))[:, 0]
    lengths = hidden.flatten(1).norm(dim=1)
    assert torch.allclose(inside, hidden / lengths[:, None, None], atol=1e-5)


def test_the_mean_of_many_releases_is_the_bounded_matrix_of_the_same_text() -> None:
    front, mechanism = pair("output").front, NoiseSpec(mechanism="privunit", epsilon=16.0).build()
    mean = torch.cat(list(observe_texts(front, mechanism, texts(), draws=400, device="cpu"))).mean(dim=1)
    inside = torch.cat(list(observe_texts(front, mechanism, texts(), noiseless=True, device="cpu")))[:, 0]
    likeness = torch.nn.functional.normalize(mean.flatten(1)) @ inside.flatten(1).T
    assert likeness.diagonal().min() > 0.95
