"""Differential privacy: units, bounds, mechanisms, calibration, composition, guarantees.

Read in this order: `units` (what is protected), `bounds` (the sensitivity), `curve` (what Gaussian noise
proves), the mechanisms (`gaussian`, `matrix`, `mvg`, `privunit`, `response`), `calibrate` (from a budget to
noise), `noise_spec` (the same, by name), `compose` (several releases), `shuffling` (from local to central),
`deployment` (who sees what), `guarantee` (the promise in words), `charge` (what a release costs in a ledger),
`cap` (what a ledger promises) and `paper_mode` (S = C, the authors' experiments, beside S = 2C).

NumPy and SciPy only; nothing here loads torch.
"""

from dp_forward.privacy.bounds import (
    Bound,
    LinearImage,
    NormBound,
    Sensitivity,
    clip,
    clip_rows,
    normalise,
    normalise_rows,
)
from dp_forward.privacy.calibrate import calibrate
from dp_forward.privacy.compose import Composition, compose
from dp_forward.privacy.deployment import Deployment
from dp_forward.privacy.factor import UNIFORM, Factor
from dp_forward.privacy.gaussian import AnalyticGaussian, ClassicalGaussian
from dp_forward.privacy.guarantee import Guarantee, Notion
from dp_forward.privacy.matrix import MatrixGaussian
from dp_forward.privacy.mechanism import Budget, Mechanism
from dp_forward.privacy.mvg import MVG
from dp_forward.privacy.noise_spec import NoiseSpec
from dp_forward.privacy.paper_mode import PaperReading
from dp_forward.privacy.privunit import PrivUnit
from dp_forward.privacy.response import KaryResponse, Prior, RandomizedResponse, ResponseWithPrior
from dp_forward.privacy.units import LABEL, RECORD, TEXT, TOKEN, Unit, parse_unit, phrase

__all__ = [
    "LABEL",
    "MVG",
    "RECORD",
    "TEXT",
    "TOKEN",
    "UNIFORM",
    "AnalyticGaussian",
    "Bound",
    "Budget",
    "ClassicalGaussian",
    "Composition",
    "Deployment",
    "Factor",
    "Guarantee",
    "KaryResponse",
    "LinearImage",
    "MatrixGaussian",
    "Mechanism",
    "NoiseSpec",
    "NormBound",
    "Notion",
    "PaperReading",
    "Prior",
    "PrivUnit",
    "RandomizedResponse",
    "ResponseWithPrior",
    "Sensitivity",
    "Unit",
    "calibrate",
    "clip",
    "clip_rows",
    "compose",
    "normalise",
    "normalise_rows",
    "parse_unit",
    "phrase",
]
