"""Public statistics of a front: what they say, where they are kept, and whose they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dp_forward.errors import InvalidInput
from dp_forward.split import split_model
from dp_forward.split.front_statistics import (
    NO_TEXT,
    FrontStatistics,
    encoder_digest,
    find_shipped,
    random_statistics,
    statistics_of_rows,
)
from dp_forward.split.halves import Front
from dp_forward.split.pretrained import default_pooling, load_model
from tiny_models import WIDTH, tiny


def front(seed: int = 0) -> Front:
    made = split_model(tiny("bert", seed=seed), "output", pooling="mean").front
    assert isinstance(made, Front)
    return made


def rows(number: int = 4000) -> np.ndarray:
    """Around a mean, with a spectrum that falls."""
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    found = 2 * basis[:, 0] + rng.standard_normal((number, WIDTH)) * np.linspace(1.5, 0.1, WIDTH) @ basis.T
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_they_are_the_mean_and_the_leading_directions_of_the_rows() -> None:
    seen = rows()
    batches = iter(torch.from_numpy(seen[:, None]).split(1000))  # type: ignore[no-untyped-call]
    made = statistics_of_rows(batches, front(), source="a test")
    np.testing.assert_allclose(made.mean, seen.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(made.directions @ made.directions.T, np.eye(len(made.variances)), atol=1e-9)
    covariance = np.cov(seen.T, bias=True)
    np.testing.assert_allclose(made.covariance, covariance, atol=0.02 * np.trace(covariance))
    leading = made.directions[0] @ covariance @ made.directions[0]
    assert leading == pytest.approx(np.linalg.eigvalsh(covariance)[-1])


def test_a_file_gives_them_back(tmp_path: Path) -> None:
    made = statistics_of_rows(iter([torch.from_numpy(rows()[:, None])]), front(), source="a test")
    made.save(tmp_path / "some.safetensors")
    found = FrontStatistics.load(tmp_path / "some.safetensors")
    assert np.sum(found.directions * made.directions, axis=1).min() > 0.999
    np.testing.assert_allclose(found.mean, made.mean, atol=1e-6)
    np.testing.assert_allclose(found.variances, made.variances, rtol=1e-5)
    assert (found.encoder, found.pooling, found.source) == (made.encoder, "mean", "a test")
    (tmp_path / "some.safetensors").write_bytes(b"something else")
    with pytest.raises(InvalidInput, match="statistics"):
        FrontStatistics.load(tmp_path / "some.safetensors")


def test_too_little_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="texts or more"):
        statistics_of_rows(iter([torch.from_numpy(rows(10)[:, None])]), front(), source="a test")


def test_without_text_directions_are_random_the_same_and_said_to_be() -> None:
    one, other = random_statistics(front()), random_statistics(front())
    assert np.array_equal(one.directions, other.directions)
    assert one.source == NO_TEXT


@pytest.mark.slow
def test_those_of_the_package_belong_to_one_encoder_and_one_pooling() -> None:
    whole = load_model("minilm")
    pooling = default_pooling("minilm")
    shipped = find_shipped(split_model(whole, "output", pooling=pooling).front)  # type: ignore[arg-type]
    assert shipped is not None
    assert shipped.texts == 20_000
    assert shipped.variances[0] > 4 * shipped.variances[60] > shipped.remainder > 0
    assert find_shipped(split_model(whole, "output", pooling="cls").front) is None  # type: ignore[arg-type]
    assert find_shipped(front()) is None
    assert encoder_digest(front()) != encoder_digest(front(seed=1))


@pytest.mark.slow
def test_the_shipped_directions_carry_what_the_encoder_says() -> None:
    """A third of the variance of other sentences lies in 32 of 384 directions; of random ones, a twelfth."""
    from dp_forward.data import FixedLength
    from dp_forward.data.sources import read_reviews
    from dp_forward.split.pretrained import load_tokenizer

    made = split_model(load_model("minilm"), "output", pooling="mean2").front.eval()
    shipped = find_shipped(made)  # type: ignore[arg-type]
    assert shipped is not None
    texts = [
        str(row.fields["text"]) for row, _ in zip(read_reviews("rotten_tomatoes"), range(96), strict=False)
    ]
    with torch.inference_mode():
        batch = FixedLength(load_tokenizer("minilm"), 48).encode(texts)
        seen = torch.nn.functional.normalize(made(**batch)[:, 0], dim=-1).double().numpy()
    centred = seen - seen.mean(axis=0)

    def share(directions: np.ndarray) -> float:
        return float(((centred @ directions[:32].T) ** 2).sum() / (centred**2).sum())

    assert share(shipped.directions) > 0.25
    assert share(random_statistics(made).directions) < 0.15  # type: ignore[arg-type]
