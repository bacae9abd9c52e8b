r"""The joint release of Q, K and V: rows bounded, projected by one public map, noise added once.

The token-level design of the paper's appendix adds noise to Q, K and V. Released one by one at full epsilon
they compose three times; released jointly they cost one release whose sensitivity is

.. math:: 2C\sqrt{c}\;\sigma_{\max}\bigl([W_Q \,|\, W_K \,|\, W_V]\bigr)

for a phrase of c tokens. The weights train, so the noise must follow them: the largest singular value is
certified from above (`privacy.spectral`) whenever they have changed, before anything is drawn, and the
mechanism is made anew from it. (Noise on the rows themselves, `Sanitizer` at the cut `embeddings`, is simpler
and never worse; both are offered.)

Guarantees:
    `mechanism` and every draw belong to the weights as they are at that moment; there is no stale sigma.
Paper: the token-level design for Q, K, V of the appendix, as one release.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_forward.errors import InvalidInput
from dp_forward.noise.bounding import apply_bound
from dp_forward.noise.simulated.simulated_draws import Generators, add_gaussian
from dp_forward.privacy import (
    TOKEN,
    Budget,
    Guarantee,
    LinearImage,
    MatrixGaussian,
    NormBound,
    Unit,
    calibrate,
)
from dp_forward.privacy.checks import count

__all__ = ["ProjectedSanitizer"]


class ProjectedSanitizer(nn.Module):
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
        super().__init__()
        if bound.over != "row" or unit.tokens is None:
            raise InvalidInput(
                "bound", "hold each row, for a token or phrase", f"{bound}, per {unit}", "Use normalise_rows."
            )
        self.projections = projections
        self._budget, self._bound, self._unit = budget, bound, unit
        self._generators = Generators(seed)
        self._made: tuple[NDArray[np.float64], MatrixGaussian] | None = None

    @property
    def bound(self) -> NormBound:
        """The bound on each row, before the projection."""
        return self._bound

    @property
    def mechanism(self) -> MatrixGaussian:
        """The mechanism for the weights as they are now."""
        # Compared by value: torch's version counters miss what is written through `.data`.
        weight = self._weight()
        if self._made is None or not np.array_equal(self._made[0], weight):
            image = LinearImage(self._bound, weight)
            self._made = (weight, calibrate(MatrixGaussian, self._budget, bound=image, unit=self._unit))
        return self._made[1]

    def _weight(self) -> NDArray[np.float64]:
        """[W_Q | W_K | W_V] as one map from a row, in float64."""
        parts = [_row_map(p).detach().double().cpu().numpy() for p in self.projections]
        return np.concatenate(parts, axis=1)

    def guarantee(self, **details: Any) -> Guarantee:
        """What a release with the present weights promises."""
        return Guarantee(self.mechanism, **details)

    def forward(self, rows: Tensor, draws: int = 1) -> Tensor:
        """Noisy [Q|K|V] for hidden rows [batch, rows, width], ``draws`` for each text."""
        if rows.ndim != 3 or not rows.is_floating_point():
            raise InvalidInput(
                "rows", "be floating point with axes batch, rows, width", tuple(rows.shape), "Use a front."
            )
        count("draws", draws, remedy="Use 1, or more to train on several draws of one text.")
        sigma = self.mechanism.sigma
        with torch.autocast(device_type=rows.device.type, enabled=False):
            inside = apply_bound(rows, self._bound).to(self._dtype())
            image = torch.cat([projection(inside) for projection in self.projections], dim=-1).float()
            if draws > 1:
                image = image.repeat_interleave(draws, dim=0)
            noisy: Tensor = self._noisy(image, sigma)
        return noisy.to(rows.dtype)

    def _dtype(self) -> torch.dtype:
        return next(self.projections.parameters()).dtype

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _noisy(self, image: Tensor, sigma: float) -> Tensor:
        return add_gaussian(image, sigma, self._generators)

    def extra_repr(self) -> str:
        return f"{self._bound}, per {self._unit}"


def _row_map(projection: nn.Module) -> Tensor:
    """The matrix W of ``row -> row W + bias``."""
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor):
        raise InvalidInput("projections", "be linear maps", type(projection).__name__, "Use the front's own.")
    return weight.T if isinstance(projection, nn.Linear) else weight
