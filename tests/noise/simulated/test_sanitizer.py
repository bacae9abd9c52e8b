"""The sanitizer draws what the reference mechanism draws, text by text."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from audit.two_point import audit_gaussian, audit_privunit
from dp_forward.errors import InvalidInput, Unproved
from dp_forward.noise import Sanitizer
from dp_forward.noise.simulated import simulated_draws as draws
from dp_forward.privacy import (
    MVG,
    TEXT,
    TOKEN,
    AnalyticGaussian,
    Budget,
    ClassicalGaussian,
    Factor,
    KaryResponse,
    LinearImage,
    MatrixGaussian,
    PrivUnit,
    RandomizedResponse,
    calibrate,
    clip,
    normalise,
    normalise_rows,
)
from reference_samplers import sample

BUDGET = Budget(8.0, 1e-5)
BOUND = normalise(1.0)
MECHANISMS = {
    "analytic": calibrate(AnalyticGaussian, BUDGET, bound=BOUND, unit=TEXT),
    "matrix": calibrate(MatrixGaussian, BUDGET, bound=BOUND, unit=TEXT),
    "clipped": calibrate(MatrixGaussian, BUDGET, bound=clip(1.0), unit=TEXT),
    "shaped": calibrate(
        MatrixGaussian,
        BUDGET,
        bound=BOUND,
        unit=TEXT,
        row_factor=Factor([0.5, 2.0, 1.0]),
        column_factor=Factor(np.linalg.cholesky(np.eye(4) + 0.3)),
    ),
    "classical": ClassicalGaussian.baseline(BUDGET, sensitivity=BOUND.sensitivity(TEXT)),
    "mvg": calibrate(MVG, BUDGET, bound=BOUND, unit=TEXT, rows=3, columns=4),
    "privunit": calibrate(PrivUnit, BUDGET, bound=BOUND, unit=TEXT),
    "privunit rows": calibrate(PrivUnit, BUDGET, bound=normalise_rows(1.0), unit=TOKEN),
    "gaussian rows": calibrate(MatrixGaussian, BUDGET, bound=normalise_rows(1.0, rows=3), unit=TOKEN),
}
HIDDEN = torch.tensor(np.random.default_rng(0).standard_normal((2, 3, 4)), dtype=torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_mean_and_covariance_are_those_of_the_reference(name: str) -> None:
    mechanism = MECHANISMS[name]
    many, few = 100_000, 8000  # the reference draws one by one, so it draws less often
    ours = Sanitizer(mechanism, seed=3)(HIDDEN[:1], draws=many).double().flatten(1).numpy()
    rng = np.random.default_rng(4)
    theirs = np.stack([sample(mechanism, HIDDEN[0].numpy(), rng).ravel() for _ in range(few)])
    spread, error = theirs.std(axis=0), math.sqrt(1 / many + 1 / few)
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 5 * spread * error).all()
    outer = np.outer(spread, spread)
    difference = (np.cov(ours.T) - np.cov(theirs.T)) / outer
    assert np.abs(difference).max() < 6 * math.sqrt(2) * error
    # Negative control: 10 % less noise is seen by the same comparison.
    less = theirs.mean(axis=0) + 0.9 * (ours - theirs.mean(axis=0))
    assert np.abs((np.cov(less.T) - np.cov(theirs.T)) / outer).max() > 6 * math.sqrt(2) * error


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 8.0, 16.0])
def test_the_two_point_audit_passes_and_would_catch_less_noise(epsilon: float) -> None:
    rng = np.random.default_rng(5)
    gaussian = calibrate(MatrixGaussian, Budget(epsilon, 1e-5), bound=BOUND, unit=TEXT)
    plus = BOUND.apply(HIDDEN[0].numpy())
    for factor, caught in ((1.0, False), (0.5, True)):
        sanitizer = Sanitizer(MatrixGaussian(factor * gaussian.sigma, gaussian.sensitivity), seed=6)
        pool = {sign: _pool(sanitizer, sign * plus, 4000) for sign in (1, -1)}

        def draw(x, _, pool=pool):
            return next(pool[1 if np.sum(x * plus) > 0 else -1])

        assert audit_gaussian(gaussian, draw, plus, -plus, draws=4000, rng=rng).refuted is caught
    privunit = calibrate(PrivUnit, Budget(epsilon), bound=BOUND, unit=TEXT)
    for mechanism, caught in ((privunit, False), (calibrate(PrivUnit, Budget(2 * epsilon)), True)):
        stream = _pool(Sanitizer(mechanism, seed=7), plus, 4000)
        sigma = mechanism.sigma
        audit = audit_privunit(privunit, lambda *_, s=stream, m=sigma: next(s) / m, plus, draws=4000, rng=rng)
        assert audit.refuted is caught


def test_a_decision_is_answered_as_its_transition_says() -> None:
    response, many = KaryResponse(1.5, 4), 40_000
    scores = torch.tensor([[[0.0, -1.0, 3.0, 1.0]], [[math.nan, -1.0, -1.0, -2.0]]])
    noisy = Sanitizer(response, seed=3)(scores, draws=many)
    assert noisy.shape == (2 * many, 1, 4)
    assert torch.equal(noisy.sum(dim=-1), torch.ones(2 * many, 1))
    for text, decision in enumerate((2, 0)):
        shares = noisy[text * many : (text + 1) * many, 0].double().mean(dim=0).numpy()
        error = 5 * math.sqrt(0.25 / many)
        assert np.abs(shares - response.transition()[decision]).max() < error
        assert np.abs(shares - KaryResponse(1.5 / 0.9, 4).transition()[decision]).max() > error


def test_a_decision_gives_the_front_a_gradient_of_zero() -> None:
    scores = torch.randn(3, 1, 4, requires_grad=True)
    (Sanitizer(KaryResponse(1.0, 4), seed=1)(scores, draws=2) * torch.arange(4.0)).sum().backward()
    assert torch.equal(scores.grad, torch.zeros_like(scores))
    for shape in ((2, 1, 3), (2, 2, 4)):
        with pytest.raises(InvalidInput, match="hidden"):
            Sanitizer(KaryResponse(1.0, 4))(torch.zeros(shape))


def _pool(sanitizer: Sanitizer, hidden: np.ndarray, size: int):
    noisy = sanitizer(torch.tensor(hidden, dtype=torch.float32)[None], draws=size)
    return iter(noisy.double().numpy())


@pytest.mark.parametrize("name", MECHANISMS)
def test_draws_stand_text_by_text_and_differ(name: str) -> None:
    noisy = Sanitizer(MECHANISMS[name], seed=1)(HIDDEN, draws=3)
    assert noisy.shape == (6, 3, 4)
    assert len({float(matrix.sum()) for matrix in noisy}) == 6
    weak = Sanitizer(MatrixGaussian(1e-4, BOUND.sensitivity(TEXT)), seed=1)(HIDDEN, draws=3)
    assert torch.allclose(weak[:3], weak[:1].expand(3, 3, 4), atol=1e-3)
    assert not torch.allclose(weak[2], weak[3], atol=1e-3)


@pytest.mark.parametrize("name", MECHANISMS)
def test_one_text_never_moves_another(name: str) -> None:
    other = HIDDEN.clone()
    other[1] = 1e30
    first = Sanitizer(MECHANISMS[name], seed=2)(HIDDEN)
    second = Sanitizer(MECHANISMS[name], seed=2)(other)
    assert torch.equal(first[0], second[0])


def test_a_seed_repeats_and_its_absence_does_not() -> None:
    mechanism = MECHANISMS["matrix"]
    assert torch.equal(Sanitizer(mechanism, seed=5)(HIDDEN), Sanitizer(mechanism, seed=5)(HIDDEN))
    assert not torch.equal(Sanitizer(mechanism, seed=5)(HIDDEN), Sanitizer(mechanism, seed=6)(HIDDEN))
    torch.manual_seed(0)
    first = Sanitizer(mechanism)(HIDDEN)
    torch.manual_seed(0)
    assert not torch.equal(first, Sanitizer(mechanism)(HIDDEN))
    sanitizer = Sanitizer(mechanism, seed=5)
    assert not torch.equal(sanitizer(HIDDEN), sanitizer(HIDDEN))


def test_ranks_draw_different_noise_from_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for rank in (0, 1, 2):
        monkeypatch.setattr(draws, "_rank", lambda rank=rank: rank)
        drawn.append(Sanitizer(MECHANISMS["matrix"], seed=5)(HIDDEN))
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_runs_in_float32_and_returns_what_came_in(dtype: torch.dtype) -> None:
    sanitizer = Sanitizer(MECHANISMS["privunit"], seed=1)
    exact = Sanitizer(MECHANISMS["privunit"], seed=1)(HIDDEN.to(dtype).float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        noisy = sanitizer(HIDDEN.to(dtype))
    assert noisy.dtype == dtype
    assert torch.equal(noisy, exact.to(dtype))


@pytest.mark.parametrize("name", MECHANISMS)
def test_gradients_reach_the_front(name: str) -> None:
    hidden = HIDDEN.clone().requires_grad_()
    (Sanitizer(MECHANISMS[name], seed=1)(hidden, draws=2) * torch.arange(4.0)).sum().backward()
    assert torch.isfinite(hidden.grad).all()
    assert hidden.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["matrix", "clipped", "privunit", "privunit rows"])
def test_the_gradient_is_that_of_one_draw(name: str) -> None:
    torch.manual_seed(0)
    weight, step = torch.randn_like(HIDDEN), 1e-3 * torch.randn_like(HIDDEN)

    def loss(hidden: torch.Tensor) -> torch.Tensor:
        return (Sanitizer(MECHANISMS[name], seed=1)(hidden) * weight).double().sum()

    hidden = HIDDEN.clone().requires_grad_()
    loss(hidden).backward()
    found = float((hidden.grad * step).sum())
    assert found == pytest.approx(float(loss(HIDDEN + step) - loss(HIDDEN - step)) / 2, rel=2e-2, abs=2e-6)


def test_a_sanitizer_that_first_met_inference_still_trains() -> None:
    sanitizer = Sanitizer(MECHANISMS["privunit"], seed=1)
    with torch.inference_mode():
        sanitizer(HIDDEN)
    hidden = HIDDEN.clone().requires_grad_()
    sanitizer(hidden).sum().backward()
    assert torch.isfinite(hidden.grad).all()


def test_no_signal_is_used_twice() -> None:
    generators, mechanism = draws.Generators(1), MECHANISMS["privunit"]
    sizes = [1, 1000, 3000, 5000, 7]
    found = torch.cat([generators.signals(mechanism, size, torch.device("cpu"))[0] for size in sizes])
    assert len(found) == sum(sizes)
    assert len(found.unique()) > 0.99 * len(found)  # float32: a few of many coincide by chance
    in_cap = (found >= 0.999 * mechanism.threshold * mechanism.sigma).double().mean()
    error = 5 * math.sqrt(0.25 / len(found))
    assert abs(float(in_cap) - mechanism.cap_probability) < error


class _Launches(TorchDispatchMode):
    """Counts operations that compute: each is a kernel or more on a GPU; views and new memory are none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.name()
        self.count += not (func.is_view or name.startswith(("aten::empty", "aten::detach", "aten::lift")))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [("matrix", 10, 6), ("clipped", 8, 8), ("privunit", 13, 10), ("privunit rows", 13, 10)],
)
def test_a_step_launches_few_operations(name: str, forward: int, backward: int) -> None:
    """A step on a GPU waits for launches: as a chain of autograd's own operations these were 25 to 44
    forward and 21 to 31 backward, a tenth of a step of MiniLM. One more is seen here."""
    sanitizer, hidden = Sanitizer(MECHANISMS[name], seed=1), HIDDEN.clone().requires_grad_()
    sanitizer(hidden)  # the first call draws signals ahead
    with _Launches() as there:
        noisy = sanitizer(hidden)
    with _Launches() as back:
        (found,) = torch.autograd.grad(noisy, hidden, torch.ones_like(noisy))
    assert found.shape == hidden.shape
    assert there.count <= forward
    assert back.count - 1 <= backward  # less the ones above


@pytest.mark.slow
def test_it_compiles() -> None:
    sanitizer = Sanitizer(MECHANISMS["matrix"], seed=1)
    compiled = torch.compile(Sanitizer(MECHANISMS["matrix"], seed=1), backend="aot_eager")
    assert torch.allclose(compiled(HIDDEN), sanitizer(HIDDEN), atol=1e-6)


def test_the_guarantee_is_the_mechanisms() -> None:
    sanitizer = Sanitizer(MECHANISMS["privunit"])
    assert sanitizer.guarantee().epsilon == pytest.approx(8.0)
    assert sanitizer.mechanism is MECHANISMS["privunit"]
    assert sanitizer.bound == BOUND
    assert "8.0-LDP per text" in repr(sanitizer)
    with pytest.raises(Unproved):
        Sanitizer(MECHANISMS["classical"]).guarantee()
    with pytest.raises(AttributeError):
        sanitizer.mechanism = MECHANISMS["matrix"]


@pytest.mark.parametrize(
    "mechanism",
    [
        calibrate(MatrixGaussian, BUDGET, sensitivity=2.0),
        calibrate(MatrixGaussian, BUDGET, bound=LinearImage(normalise_rows(1.0), np.eye(3)), unit=TOKEN),
        RandomizedResponse(1.0, 2),
    ],
    ids=repr,
)
def test_a_mechanism_without_a_norm_bound_is_refused(mechanism) -> None:
    with pytest.raises(InvalidInput, match="norm bound"):
        Sanitizer(mechanism)


def test_wrong_shapes_are_refused() -> None:
    sanitizer = Sanitizer(MECHANISMS["gaussian rows"])
    for hidden in (HIDDEN[0], HIDDEN.long(), HIDDEN[:, :2]):
        with pytest.raises(InvalidInput, match="hidden"):
            sanitizer(hidden)
    with pytest.raises(InvalidInput, match="draws"):
        sanitizer(HIDDEN, draws=0)
    with pytest.raises(InvalidInput, match="seed"):
        Sanitizer(MECHANISMS["matrix"], seed=-1)
    with pytest.raises(InvalidInput, match="row_factor"):
        Sanitizer(MECHANISMS["shaped"])(HIDDEN[:, :2])
