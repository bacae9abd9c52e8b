r"""Released noise: what may leave the machine, as a type of its own.

A `Released` is made by `release` alone and is the only thing that `serialise` turns into bytes. A tensor of
the `Sanitizer` is simulated noise: its low bits tell the signal apart (docs/adr/0002); it cannot become one.

Proof of the promise. Let C be the norm of the bound, h the step of the signal's grid, and q the integer
matrix of one text, so that ``h q`` has norm at most C: `grid.quantise` checks ``sum(q^2) <= floor((C/h)^2)``
in integers.

1. q is a function of the hidden matrix, and any two such ``h q`` lie at most 2C apart (row by row, where the
   bound is by row: 2C for each row that differs). This is the sensitivity that the mechanism was made with.
2. ``Y = h (q + Z)`` with Z i.i.d. N(0, (sigma/h)^2) is the ideal Gaussian mechanism on ``h q``; its curve is
   that of the mechanism's mu, a theorem about real numbers. h is a power of two, so ``sigma/h`` is exact.
3. For an integer q, ``round(q + Z) = q + round(Z)``. So adding an *exactly rounded* Gaussian to q, then
   rounding to the coarse step and clamping to int16, gives a function of Y and of nothing else.

Post-processing costs nothing, so the release carries the mechanism's guarantee with no numerical slack: no
float ever holds signal and noise together. (What "exactly" rests on is said in `exact_normal`.)

Guarantees:
    ``release`` never raises for the values of a hidden matrix (NaN, Inf, 1e300, denormals, zeros), and its
    bytes number 2 * rows * width, always.
Edges:
    Refused: shaped noise, PrivUnit and the baselines, which are simulated only so far. Each call draws fresh
    noise and is one release: to send a text again, send the stored bytes.
Paper: the noise layer, as it must be drawn where somebody reads the result.
"""

from __future__ import annotations

import os
from dataclasses import InitVar, dataclass
from functools import lru_cache
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, float64

from dp_forward.errors import InvalidInput
from dp_forward.noise.exact_normal import Entropy, rounded_normal
from dp_forward.noise.grid import Grid, quantise
from dp_forward.privacy import AnalyticGaussian, Guarantee, MatrixGaussian, Mechanism, NormBound

__all__ = ["Released", "release", "serialise"]

_BY_RELEASE = object()
_ENTROPY = "the random numbers of the operating system are uniform and secret"


@final
@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Released:
    """One noisy matrix that may leave: int16 multiples of ``step``, and what they promise.

    Guarantees:
        Every instance came out of `release`; its values cannot be changed, pickled or seen in a repr.
    """

    values: NDArray[np.int16]
    step: float
    guarantee: Guarantee
    made_by: InitVar[object] = None

    def __post_init__(self, made_by: object) -> None:
        if made_by is not _BY_RELEASE:
            raise InvalidInput(
                "Released",
                "come out of release()",
                type(self.values).__name__,
                "Call release(hidden, mechanism).",
            )
        # An array on immutable bytes stays read-only whatever its flags are set to.
        fixed = np.frombuffer(self.values.astype("<i2").tobytes(), dtype="<i2")
        object.__setattr__(self, "values", fixed.reshape(self.values.shape))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        rows, width = self.values.shape
        return rows, width

    def as_floats(self) -> NDArray[np.float32]:
        """The noisy matrix itself, ``values * step``; exact in float32, because step is a power of two."""
        return self.values.astype(np.float32) * np.float32(self.step)

    def to_bytes(self) -> bytes:
        """Little-endian int16, row by row: 2 * rows * width bytes."""
        return self.values.tobytes()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("A Released is never pickled or copied; send to_bytes().")

    def __repr__(self) -> str:
        rows, width = self.shape
        return f"Released({rows} x {width}, step={self.step:g}) -> {self.guarantee.promise}"


def release(
    hidden: NDArray[Any] | Tensor, mechanism: Mechanism, *, entropy: Entropy = os.urandom
) -> Released:
    """One release of one text's hidden matrix [rows, width]: bound, integers, exact noise; see the module."""
    sigma, bound = _uniform_gaussian(mechanism)
    matrix = _matrix(hidden)
    grid = Grid.for_noise(sigma, norm=bound.norm)
    signal = quantise(matrix, bound=bound, step=grid.signal_step)
    noise = rounded_normal(signal.shape, scale=sigma / grid.signal_step, entropy=entropy)
    noisy = grid.coarsened(signal + noise)
    return Released(noisy, grid.step, _guarantee(mechanism), made_by=_BY_RELEASE)


def serialise(thing: object) -> bytes:
    """The bytes of a `Released`; everything else is refused."""
    if type(thing) is not Released:
        raise InvalidInput(
            "thing", "be a Released", type(thing).__name__, "Simulated noise stays here: use release()."
        )
    return thing.to_bytes()


@lru_cache(maxsize=16)
def _guarantee(mechanism: Mechanism) -> Guarantee:
    return Guarantee(mechanism, more_assumptions=(_ENTROPY,))


def _uniform_gaussian(mechanism: Mechanism) -> tuple[float, NormBound]:
    """Sigma and bound of a mechanism that can be released; a refusal for any other."""
    # Exact types: a subclass could draw something else than it promises.
    if type(mechanism) is not AnalyticGaussian and type(mechanism) is not MatrixGaussian:
        raise _refused(f"{getattr(mechanism, 'name', type(mechanism).__name__)}, simulated only so far")
    if isinstance(mechanism, MatrixGaussian) and not (
        mechanism.row_factor.entries is None and mechanism.column_factor.entries is None
    ):
        raise _refused("shaped noise, simulated only so far")
    bound = mechanism.sensitivity.bound
    if not isinstance(bound, NormBound):
        raise _refused("no norm bound" if bound is None else f"{type(bound).__name__}, simulated only so far")
    return mechanism.sigma, bound


def _refused(value: str) -> InvalidInput:
    return InvalidInput(
        "mechanism",
        "be uniform Gaussian noise within a norm bound to be released",
        value,
        "Calibrate a MatrixGaussian with bound=normalise(1.0), unit=TEXT.",
    )


def _matrix(hidden: NDArray[Any] | Tensor) -> NDArray[np.float64]:
    """The hidden matrix in float64; only its type and shape can be refused."""
    array: object = hidden
    if isinstance(hidden, Tensor) and hidden.is_floating_point():
        array = hidden.detach().to("cpu", float64).numpy()
    if not (isinstance(array, np.ndarray) and np.issubdtype(array.dtype, np.floating)) or array.ndim != 2:
        what = type(hidden).__name__
        shape = tuple(getattr(hidden, "shape", ()))
        raise InvalidInput(
            "hidden",
            "be one floating-point matrix [rows, width]",
            f"{what} of shape {shape}",
            "Loop over texts.",
        )
    with np.errstate(over="ignore"):
        return array.astype(np.float64)
