r"""Released noise: what may leave the machine, as a type of its own.

A `Released` is made by `release` and `release_batch` alone; it and `ReleasedLabels` are all that `serialise`
turns into bytes. A tensor of the `Sanitizer` is simulated noise: its low bits tell the signal apart
(docs/adr/0002); it cannot become one.

Proof of the promise for PrivUnit: in `released_privunit`; for K-ary response: in `released_label`. For the
Gaussian, let C be the norm of the bound, h the step of the signal's grid, and q the integer matrix of one
text, so that ``h q`` has norm at most C: `grid.quantise` checks ``sum(q^2) <= floor((C/h)^2)`` in integers.

1. q is a function of the hidden matrix, and any two such ``h q`` lie at most 2C apart (row by row, where the
   bound is by row: 2C for each row that differs). This is the sensitivity that the mechanism was made with.
2. ``Y = h (q + Z)`` with Z i.i.d. N(0, (sigma/h)^2) is the ideal Gaussian mechanism on ``h q``; its curve is
   that of the mechanism's mu, a theorem about real numbers. h is a power of two, so ``sigma/h`` is exact.
3. For an integer q, ``round(q + Z) = q + round(Z)``. So adding an *exactly rounded* Gaussian to q, then
   rounding to the coarse step and clamping to int16 or int8, gives a function of Y and of nothing else.

Post-processing costs nothing, so the release carries the mechanism's guarantee with no numerical slack: no
float ever holds signal and noise together. (What "exactly" rests on is said in `exact_normal`.)

A batch is as private as a loop: every text has its own bound and its own independent noise.

Hidden numbers come as a NumPy array or a torch tensor; the same code bounds both, and torch is not loaded for
it. Which front made them, torch or ONNX (`split.onnx_front`), does not matter to the proof: step 1 holds for
any matrix.

Guarantees:
    ``release`` never raises for the values of a hidden matrix (NaN, Inf, 1e300, denormals, zeros), and its
    bytes number ``bits / 8 * rows * width``, always.
Edges:
    Refused: shaped noise and the baselines, which are simulated only so far. 8 bits are refused where the
    signal would leave too little room for the noise. Each call draws fresh noise and is one release: to send
    a text again, send the stored bytes.
Paper: the noise layer, as it must be drawn where somebody reads the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.noise.released.entropy import keystream
from dp_forward.noise.released.exact_normal import Entropy, rounded_normal
from dp_forward.noise.released.grid import Grid, Integers, held, quantise
from dp_forward.noise.released.released_label import (
    BY_RELEASE,
    ReleasedLabels,
    draw_decisions,
    guarantee_of,
    seal,
)
from dp_forward.noise.released.released_privunit import draw_privunit, privunit_step
from dp_forward.privacy import (
    AnalyticGaussian,
    Guarantee,
    KaryResponse,
    MatrixGaussian,
    Mechanism,
    NormBound,
    PrivUnit,
)

if TYPE_CHECKING:
    from torch import Tensor


_BLOCK = 1 << 16
"""Entries that are drawn at once: few enough for the cache of a core."""

Values = NDArray[np.int16] | NDArray[np.int8]


@final
@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Released:
    """One noisy matrix that may leave: ``values`` in int16 or int8 multiples of ``step``, and their promise.

    Guarantees:
        Every instance came out of `release` or `release_batch`; its values cannot be changed, pickled or seen
        in a repr.
    """

    values: Values
    step: float
    guarantee: Guarantee
    made_by: InitVar[object] = None

    def __post_init__(self, made_by: object) -> None:
        sealed = seal("Released", "release(hidden, mechanism)", self.values, made_by)
        object.__setattr__(self, "values", sealed)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        rows, width = self.values.shape
        return rows, width

    @property
    def bits(self) -> int:
        """Bits per entry: 16 or 8."""
        return 8 * self.values.itemsize

    def as_floats(self) -> NDArray[np.float32]:
        """The noisy matrix itself, ``values * step``: the bounded matrix with noise, on its scale."""
        return _scaled(self.values, self.step)

    def to_bytes(self) -> bytes:
        """Little-endian integers, row by row: bits / 8 * rows * width bytes."""
        return self.values.tobytes()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("A Released is never pickled or copied; send to_bytes().")

    def __repr__(self) -> str:
        rows, width = self.shape
        return f"Released({rows} x {width}, step={self.step:g}) -> {self.guarantee.promise}"


def release(
    hidden: NDArray[Any] | Tensor, mechanism: Mechanism, *, bits: int = 16, entropy: Entropy | None = None
) -> Released:
    """One release of one text's hidden matrix [rows, width]: bound, integers, exact noise; see the module.

    >>> from dp_forward.privacy import NoiseSpec
    >>> release(np.ones((4, 8)), NoiseSpec(mechanism="matrix-gaussian", epsilon=8.0).build())
    Released(4 x 8, step=0.125) -> (8.0, 1e-05)-LDP per text
    """
    _check(hidden, axes=2, remedy="Loop over texts, or use release_batch().")
    return release_batch(hidden[None], mechanism, bits=bits, entropy=entropy)[0]


def release_batch(
    hidden: NDArray[Any] | Tensor, mechanism: Mechanism, *, bits: int = 16, entropy: Entropy | None = None
) -> list[Released]:
    """One release of each text of [texts, rows, width], each with noise of its own; faster than a loop."""
    way = _way(mechanism, bits)
    _check(hidden, axes=3, remedy="Use release() for one text.")
    at_once = max(1, _BLOCK // max(1, math.prod(hidden.shape[1:])))
    entropy = keystream() if entropy is None else entropy
    done: list[Released] = []
    for start in range(0, len(hidden), at_once):
        done += _released(hidden[start : start + at_once], way, mechanism, bits, entropy)
    return done


def dequantise(values: NDArray[Any], mechanism: Mechanism, bits: int = 16) -> NDArray[np.float32]:
    """What `as_floats` gives, from stored ``values`` of ``bits`` and any shape: for whoever receives them.

    Nothing secret is needed: the step follows from the public mechanism.
    """
    way = _way(mechanism, bits)
    if not isinstance(values, np.ndarray) or values.dtype.kind != "i" or 8 * values.itemsize != bits:
        what = getattr(values, "dtype", type(values).__name__)
        raise InvalidInput("values", f"be int{bits}", what, "Read them in the bits they were sent in.")
    return _scaled(values, way.step)


def serialise(thing: object) -> bytes:
    """The bytes of a ``thing`` that is a `Released` or `ReleasedLabels`; everything else is refused."""
    if type(thing) is Released or type(thing) is ReleasedLabels:
        return thing.to_bytes()
    remedy = "Simulated noise stays here: use release()."
    raise InvalidInput("thing", "be a Released or ReleasedLabels", type(thing).__name__, remedy)


class _Way(NamedTuple):
    """How a mechanism is released: rows of hidden numbers in, whole multiples of ``step`` out."""

    bound: NormBound
    step: float
    draw: Callable[[NDArray[np.float64], Entropy], Integers]


def _released(
    hidden: NDArray[Any] | Tensor, way: _Way, mechanism: Mechanism, bits: int, entropy: Entropy
) -> list[Released]:
    """A release of each text: one vector per text, or one per row, as the bound says."""
    texts, bound = _floats(hidden), way.bound
    if bound.rows is not None and texts.shape[1] != bound.rows:
        raise InvalidInput("hidden", f"have {bound.rows} rows", texts.shape[1], "Pad to the length n.")
    vectors = texts.reshape(-1, texts.shape[2]) if bound.over == "row" else texts.reshape(len(texts), -1)
    values = held(way.draw(vectors, entropy), bits=bits).reshape(texts.shape)
    guarantee = guarantee_of(mechanism)
    return [Released(value, way.step, guarantee, made_by=BY_RELEASE) for value in values]


def _way(mechanism: Mechanism, bits: int) -> _Way:
    """How a mechanism is released, where it can be; a refusal for any other."""
    refuse_if(bits not in (8, 16), "bits", "be 8 or 16", bits, "Use 16.")
    # Exact types: a subclass could draw something else than it promises.
    if type(mechanism) is PrivUnit:
        step = privunit_step(mechanism, bits)
        return _Way(mechanism.bound, step, partial(draw_privunit, mechanism))
    if type(mechanism) is KaryResponse:
        return _Way(mechanism.bound, 1.0, partial(draw_decisions, mechanism))
    if type(mechanism) is not AnalyticGaussian and type(mechanism) is not MatrixGaussian:
        raise _refused(f"{getattr(mechanism, 'name', type(mechanism).__name__)}, simulated only so far")
    if isinstance(mechanism, MatrixGaussian) and mechanism.shaped:
        raise _refused("shaped noise, simulated only so far")
    bound = mechanism.sensitivity.bound
    if not isinstance(bound, NormBound):
        raise _refused("no norm bound" if bound is None else f"{type(bound).__name__}, simulated only so far")
    grid = Grid.for_noise(mechanism.sigma, norm=bound.norm, bits=bits)
    return _Way(bound, grid.step, partial(_draw_gaussian, mechanism.sigma, bound, grid))


def _draw_gaussian(
    sigma: float, bound: NormBound, grid: Grid, vectors: NDArray[np.float64], entropy: Entropy
) -> Integers:
    """One release of each row: bounded, on integers, with exact noise, on the coarse grid."""
    fine = grid.signal_step
    signal = quantise(vectors, bound=replace(bound, over="row", rows=None), step=fine)
    signal += rounded_normal(signal.shape, scale=sigma / fine, entropy=entropy)
    return grid.coarsened(signal)


def _refused(value: str) -> InvalidInput:
    rule = "be PrivUnit, K-ary response or uniform Gaussian noise within a norm bound, to be released"
    return InvalidInput("mechanism", rule, value, "Use PrivUnit for a text, normalised to norm 1.")


def _scaled(values: NDArray[Any], step: float) -> NDArray[np.float32]:
    """One rounding to float32 at most, and none where the step is a power of two."""
    return values.astype(np.float32) * np.float32(step)


def _check(hidden: object, *, axes: int, remedy: str) -> None:
    """Only the type and the shape of hidden numbers can be refused, never a value."""
    if isinstance(hidden, np.ndarray):
        floating = np.issubdtype(hidden.dtype, np.floating)
    else:
        floating = bool(getattr(hidden, "is_floating_point", bool)())  # of a tensor
    shape = tuple(getattr(hidden, "shape", ()))
    if not floating or len(shape) != axes or 0 in shape[-2:]:
        layout = (
            "one floating-point matrix [rows, width]" if axes == 2 else "floating point [texts, rows, width]"
        )
        raise InvalidInput("hidden", f"be {layout}", f"{type(hidden).__name__} of shape {shape}", remedy)


def _floats(hidden: NDArray[Any] | Tensor) -> NDArray[np.float64]:
    if not isinstance(hidden, np.ndarray):
        return np.asarray(hidden.detach().cpu().double().numpy())
    with np.errstate(over="ignore"):
        return np.asarray(hidden.astype(np.float64))
