r"""Certified upper bound on the largest singular value of a matrix.

Power iteration comes from below: with it, a Q/K/V release would be promised less noise than it
needs. Here a singular value decomposition is computed and then *checked*: with
:math:`E = W - U\,\mathrm{diag}(s)\,V^T` and possibly non-orthogonal computed factors,

.. math:: \|W\|_2 \;\le\; \|U\|_2\, s_1\, \|V\|_2 + \|E\|_F, \qquad
          \|U\|_2^2 \le 1 + \|U^T U - I\|_F .

That holds for *any* U, s, V, however bad the decomposition was, so only the rounding of three
matrix products must be allowed for. The standard bound for one entry of a product with inner
dimension k is ``gamma_k |A||B|``, ``gamma_k = k u / (1 - k u)``; summed in Frobenius norm, with
``gamma`` doubled for the norm itself.

Guarantees:
    The result is at least the true largest singular value of the given float64 matrix, and above
    it by a factor of about ``1 + 1e-10`` at most for the sizes met here.
Paper: Appendix A.2 (noise on Q, K and V, each with its own largest singular value); here for their joint map.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_forward.privacy import checks
from dp_forward.privacy.rounding import nudge_up

_UNIT_ROUNDOFF = 2.0**-53


def spectral_norm_upper(matrix: ArrayLike) -> float:
    """An upper bound on the largest singular value of ``matrix``."""
    w = checks.finite_array("matrix", matrix, ndim=2)
    largest = float(np.max(np.abs(w)))
    if largest == 0:
        return 0.0
    w = w / largest
    u, s, vt = np.linalg.svd(w, full_matrices=False)
    gamma = 2 * (max(w.shape) + 8) * _UNIT_ROUNDOFF
    size = float(np.linalg.norm(u) * s[0] * np.linalg.norm(vt))
    residual = float(np.linalg.norm(w - (u * s) @ vt)) + gamma * (size + float(np.linalg.norm(w)))
    stretch = _norm_upper(u.T @ u, u, gamma) * _norm_upper(vt @ vt.T, vt, gamma)
    return nudge_up(largest * nudge_up(float(s[0]) * stretch + residual))


def _norm_upper(gram: NDArray[np.float64], factor: NDArray[np.float64], gamma: float) -> float:
    """An upper bound on the 2-norm of a nearly orthogonal factor, from its Gram matrix."""
    defect = float(np.linalg.norm(gram - np.eye(len(gram))))
    defect += gamma * float(np.linalg.norm(factor)) ** 2
    return nudge_up(float(np.sqrt(1 + defect)))
