r"""Sanitizers: bound, then noise, in one call that cannot be taken apart.

A `Sanitizer` applies the bound of the mechanism that it is built from: there is no second place where a norm,
a sensitivity or a sigma could be typed. The bounded matrix itself is never handed out.

Guarantees:
    Each text of a batch goes through the reference mechanism by itself (tests/noise compares the two in
    distribution), so a *released* draw of the same mechanism carries `guarantee`. A simulated draw is for
    training and experiments: it is a plain tensor, and no part of this package puts a tensor on a wire.
Edges:
    Runs in float32 also inside autocast and returns the dtype that came in. Differentiable to the front: the
    noise counts as a constant; the answers of K-ary response are discrete, so there the gradient is zero.
    ``draws=R`` gives R noisy matrices per text for one pass of the front, text by text: [a, a, a, b, b, b,
    ...].
Paper: the normalisation and noise between the pre-noise and post-noise layers (DP-Forward itself).
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dp_forward.errors import InvalidInput
from dp_forward.noise.bounding import apply_bound
from dp_forward.noise.simulated.simulated_draws import Generators, add_shaped, draw_privunit, draw_response
from dp_forward.privacy import (
    MVG,
    Deployment,
    Guarantee,
    KaryResponse,
    MatrixGaussian,
    Mechanism,
    NormBound,
    PrivUnit,
)
from dp_forward.privacy.checks import count
from dp_forward.privacy.gaussian import GaussianNoise


class Sanitizer(nn.Module):
    """Bound and noise of one mechanism, fixed for its life, on hidden matrices [batch, rows, width]."""

    def __init__(self, mechanism: Mechanism, *, seed: int | None = None) -> None:
        bound: object = None
        if isinstance(mechanism, PrivUnit | KaryResponse):
            bound = mechanism.bound
        elif isinstance(mechanism, GaussianNoise):
            bound = mechanism.sensitivity.bound
        if not isinstance(bound, NormBound):
            rule = "release hidden matrices within a norm bound"
            remedy = "Use PrivUnit for a text, normalised to norm 1."
            raise InvalidInput("mechanism", rule, type(mechanism).__name__, remedy)
        super().__init__()
        self._bound, self._mechanism = bound, mechanism
        if seed is not None:
            count("seed", seed, at_least=0, remedy="Leave it out for fresh entropy.")
        self._generators = Generators(seed)

    @property
    def bound(self) -> NormBound:
        """The bound on a text or on each row."""
        return self._bound

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism whose noise this is."""
        return self._mechanism

    def guarantee(self, **details: Any) -> Guarantee:
        """What a release through this mechanism promises; `Unproved` for a baseline without a theorem."""
        return Deployment(self.mechanism).guarantee(**details)

    def forward(self, hidden: Tensor, draws: int = 1) -> Tensor:
        """Noisy matrices: ``draws`` of them for each text."""
        if hidden.ndim != 3 or not hidden.is_floating_point():
            rule = "be floating point with axes batch, rows, width"
            found = f"{hidden.dtype} with shape {tuple(hidden.shape)}"
            raise InvalidInput("hidden", rule, found, "Take it from a front.")
        rows = self._bound.rows
        if rows is not None and hidden.shape[1] != rows:
            raise InvalidInput("hidden", f"have {rows} rows", hidden.shape[1], "Pad to the length n.")
        if draws != 1:
            count("draws", draws, remedy="Use 1, or more to train on several draws of one text.")
        place = hidden.device.type
        with torch.autocast(place, enabled=False) if torch.is_autocast_enabled(place) else nullcontext():
            inside = apply_bound(hidden, self._bound)
            if draws > 1:
                inside = inside.repeat_interleave(draws, dim=0)
            return self._noisy(inside).to(hidden.dtype)  # type: ignore[no-any-return]

    # Random streams of our own cannot be traced; the bound before and the back after it can.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _noisy(self, inside: Tensor) -> Tensor:
        mechanism = self.mechanism
        if isinstance(mechanism, PrivUnit):
            return draw_privunit(inside, mechanism, self._generators)
        if isinstance(mechanism, KaryResponse):
            return draw_response(inside, mechanism, self._generators)
        if isinstance(mechanism, MVG | MatrixGaussian):
            shaped = mechanism.exact if isinstance(mechanism, MVG) else mechanism
            return add_shaped(inside, shaped, self._generators)
        sigma: float = mechanism.sigma  # type: ignore[attr-defined]
        return self._generators.normal(inside, sigma).add_(inside)

    def extra_repr(self) -> str:
        return repr(self._mechanism)
