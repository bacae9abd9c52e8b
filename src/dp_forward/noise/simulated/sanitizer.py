r"""Sanitizers: bound, then noise, in one call that cannot be taken apart.

A `Sanitizer` is built from a mechanism of the core, and the mechanism's own bound is what it applies: there
is no second place where a norm, a sensitivity or a sigma could be typed. What it returns has been through
both steps; the bounded matrix itself is never handed out.

A `ProjectedSanitizer` is the joint release of Q, K and V: rows bounded, projected by one public map, noise
added once. Appendix A.2 of the paper adds noise to each of the three and does not say how they share epsilon.
Released one by one at full epsilon they compose three times; jointly they cost one release, of sensitivity

.. math:: 2C\sqrt{c}\;\sigma_{\max}\bigl([W_Q \,|\, W_K \,|\, W_V]\bigr)

for a phrase of c tokens. The weights train, so the noise must follow them: the largest singular value is
certified from above (`privacy.spectral`) whenever they have changed, before anything is drawn, and the
mechanism is made anew from it. (Noise on the rows themselves, `Sanitizer` at the cut `embeddings`, is simpler
and never worse; both are offered.)

Guarantees:
    Each text of a batch goes through the reference mechanism by itself (tests/noise compares the two in
    distribution), so a *released* draw of the same mechanism carries `guarantee`. A simulated draw is for
    training and experiments: it is a plain tensor, and no part of this package puts a tensor on a wire.
    `ProjectedSanitizer.mechanism` and every draw belong to the weights as they are at that moment; there is
    no stale sigma.
Edges:
    Runs in float32 also inside autocast and returns the dtype that came in. Differentiable to the front: the
    noise counts as a constant; the answers of K-ary response are discrete, so there the gradient is zero.
    ``draws=R`` gives R noisy matrices per text for one pass of the front, text by text: [a, a, a, b, b, b,
    ...].
Paper: the normalisation and noise between the pre-noise and post-noise layers (DP-Forward itself), and the
token-level design for Q, K, V of the appendix, as one release.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_forward.errors import InvalidInput
from dp_forward.noise.bounding import apply_bound
from dp_forward.noise.simulated.simulated_draws import (
    Generators,
    add_shaped,
    draw_privunit,
    draw_response,
)
from dp_forward.privacy import (
    MVG,
    TOKEN,
    Budget,
    Deployment,
    Guarantee,
    KaryResponse,
    LinearImage,
    MatrixGaussian,
    Mechanism,
    NormBound,
    PrivUnit,
    Unit,
    calibrate,
)
from dp_forward.privacy.checks import count
from dp_forward.privacy.gaussian import GaussianNoise


class _Noise(nn.Module):
    """Bound and noise for batches of hidden matrices [batch, rows, width]."""

    def __init__(self, bound: NormBound, seed: int | None) -> None:
        super().__init__()
        self._bound = bound
        if seed is not None:
            count("seed", seed, at_least=0, remedy="Leave it out for fresh entropy.")
        self._generators = Generators(seed)

    @property
    def bound(self) -> NormBound:
        """The bound on a text or on each row."""
        return self._bound

    @property
    @abstractmethod
    def mechanism(self) -> Mechanism:
        """The mechanism whose noise this is."""

    def guarantee(self, **details: Any) -> Guarantee:
        """What a release through this mechanism promises; `Unproved` for a baseline without a theorem."""
        return Deployment(self.mechanism).guarantee(**details)

    def forward(self, hidden: Tensor, draws: int = 1) -> Tensor:
        """Noisy matrices: ``draws`` of them for each text."""
        if hidden.ndim != 3 or not hidden.is_floating_point():
            raise InvalidInput(
                "hidden",
                "be floating point with axes batch, rows, width",
                f"{hidden.dtype} with shape {tuple(hidden.shape)}",
                "Take it from a front.",
            )
        if self._bound.rows is not None and hidden.shape[1] != self._bound.rows:
            raise InvalidInput(
                "hidden", f"have {self._bound.rows} rows", hidden.shape[1], "Pad to the length n."
            )
        if draws != 1:
            count("draws", draws, remedy="Use 1, or more to train on several draws of one text.")
        place = hidden.device.type
        with torch.autocast(place, enabled=False) if torch.is_autocast_enabled(place) else nullcontext():
            inside = self._project(apply_bound(hidden, self._bound))
            if draws > 1:
                inside = inside.repeat_interleave(draws, dim=0)
            noisy: Tensor = self._noisy(inside)
            return noisy.to(hidden.dtype)

    def _project(self, inside: Tensor) -> Tensor:
        return inside

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


class Sanitizer(_Noise):
    """Bound and noise of one mechanism, which is fixed for the life of the object."""

    def __init__(self, mechanism: Mechanism, *, seed: int | None = None) -> None:
        bound: object = None
        if isinstance(mechanism, PrivUnit | KaryResponse):
            bound = mechanism.bound
        elif isinstance(mechanism, GaussianNoise):
            bound = mechanism.sensitivity.bound
        if not isinstance(bound, NormBound):
            raise InvalidInput(
                "mechanism",
                "release hidden matrices within a norm bound",
                type(mechanism).__name__,
                "Calibrate with bound=normalise(1.0), unit=TEXT.",
            )
        super().__init__(bound, seed)
        self._mechanism = mechanism

    @property
    def mechanism(self) -> Mechanism:
        return self._mechanism

    def extra_repr(self) -> str:
        return repr(self._mechanism)


class ProjectedSanitizer(_Noise):
    """Bound rows, project them by ``projections`` side by side, add noise for the budget.

    ``projections`` are the modules that map a row to Q, K and V (`nn.Linear`, or the Conv1D of GPT-2), taken
    out of the front; they stay on the user's side and keep training.
    """

    def __init__(
        self,
        projections: nn.ModuleList,
        budget: Budget,
        *,
        bound: NormBound,
        unit: Unit = TOKEN,
        seed: int | None = None,
    ) -> None:
        if bound.over != "row" or unit.tokens is None:
            raise InvalidInput(
                "bound", "hold each row, for a token or phrase", f"{bound}, per {unit}", "Use normalise_rows."
            )
        super().__init__(bound, seed)
        self.projections = projections
        self._budget, self._unit = budget, unit
        self._made: tuple[NDArray[np.float64], MatrixGaussian] | None = None

    @property
    def mechanism(self) -> MatrixGaussian:
        """The mechanism for the weights as they are now."""
        # [W_Q | W_K | W_V] as one map from a row, compared by value: torch's version counters miss what is
        # written through `.data`.
        parts = []
        for projection in self.projections:
            part = getattr(projection, "weight", None)
            if not isinstance(part, Tensor):
                found = type(projection).__name__
                raise InvalidInput("projections", "be linear maps", found, "Use the front's own.")
            across = part.T if isinstance(projection, nn.Linear) else part
            parts.append(across.detach().double().cpu().numpy())
        weight = np.concatenate(parts, axis=1)
        if self._made is None or not np.array_equal(self._made[0], weight):
            image = LinearImage(self._bound, weight)
            self._made = (weight, calibrate(MatrixGaussian, self._budget, bound=image, unit=self._unit))
        return self._made[1]

    def _project(self, inside: Tensor) -> Tensor:
        inside = inside.to(next(self.projections.parameters()).dtype)
        return torch.cat([projection(inside) for projection in self.projections], dim=-1).float()

    def extra_repr(self) -> str:
        return f"{self._bound}, per {self._unit}"
