"""The bound in torch is total, per text, and the same function as the reference."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dp_forward.noise.bounding import apply_bound
from dp_forward.privacy import NormBound, clip, clip_rows, normalise, normalise_rows

BOUNDS = [normalise(1.0), clip(1.0), normalise_rows(2.0), clip_rows(0.5), clip(1e20)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WEIRD = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1e-45, 1e-39, 1e30, 3e38, -3e38, 65504.0]),
)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _lengths(x: torch.Tensor, bound: NormBound) -> list[float]:
    vectors = x.double().flatten(1) if bound.over == "matrix" else x.double().flatten(0, 1)
    return [math.sqrt(math.fsum(v**2 for v in row)) for row in vectors.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@given(hidden=arrays(np.float32, (2, 3, 4), elements=WEIRD))
def test_no_input_leaves_any_bound(device: str, hidden: np.ndarray) -> None:
    for bound, dtype in itertools.product(BOUNDS, DTYPES):
        inside = apply_bound(torch.tensor(hidden, device=device).to(dtype), bound)
        assert inside.dtype == torch.float32
        assert torch.isfinite(inside).all()
        lengths = _lengths(inside, bound)
        assert max(lengths) <= bound.norm, (bound, dtype)
        if bound.how == "normalise":
            assert min(lengths) >= bound.norm * (1 - 3e-6), (bound, dtype)


@pytest.mark.slow
def test_a_large_matrix_stays_within_its_bound_too() -> None:
    torch.manual_seed(0)
    inside = apply_bound(torch.randn(3, 128, 768) ** 3, normalise(1.0))
    assert 1 - 3e-6 <= min(_lengths(inside, normalise(1.0))) <= max(_lengths(inside, normalise(1.0))) <= 1.0


def test_without_the_shrinking_the_norm_would_pass_the_bound() -> None:
    """Negative control: plain float32 normalisation lands above the norm about half the time."""
    torch.manual_seed(1)
    x = torch.randn(50, 4, 8)
    plain = x / x.flatten(1).norm(dim=1)[:, None, None]
    assert max(_lengths(plain, normalise(1.0))) > 1.0
    assert max(_lengths(apply_bound(x, normalise(1.0)), normalise(1.0))) <= 1.0


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_it_is_the_reference_function(bound: NormBound) -> None:
    rng = np.random.default_rng(3)
    hidden = rng.standard_normal((5, 3, 4)) * np.array([1e-3, 0.1, 1, 10, 0])[:, None, None]
    hidden[2, 1, 1] = np.nan
    inside = apply_bound(torch.tensor(hidden, dtype=torch.float32), bound)
    for text, found in zip(hidden, inside, strict=True):
        assert np.allclose(found.numpy(), bound.apply(text.astype(np.float32)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_one_text_never_moves_another(bound: NormBound) -> None:
    torch.manual_seed(2)
    hidden = torch.randn(4, 3, 5)
    other = hidden.clone()
    other[1] = 1e30
    other[2] = torch.nan
    assert torch.equal(apply_bound(hidden, bound)[[0, 3]], apply_bound(other, bound)[[0, 3]])


@pytest.mark.parametrize("bound", [normalise(1.0), clip(1.0), normalise_rows(1.0), clip_rows(1.0)], ids=str)
def test_the_gradient_is_that_of_the_function_and_always_finite(bound: NormBound) -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 3, 4, requires_grad=True)
    weight = torch.randn(2, 3, 4)
    (apply_bound(x, bound) * weight).sum().backward()
    with torch.no_grad():
        step = torch.randn_like(x)
        ahead = (apply_bound(x + 1e-3 * step, bound) * weight).sum()
        behind = (apply_bound(x - 1e-3 * step, bound) * weight).sum()
    assert float((x.grad * step).sum()) == pytest.approx(float(ahead - behind) / 2e-3, rel=2e-2, abs=2e-3)
    for value in (0.0, float("nan"), 1e30, 1e-40):
        odd = torch.full((1, 2, 2), value, requires_grad=True)
        apply_bound(odd, bound).sum().backward()
        assert torch.isfinite(odd.grad).all()
