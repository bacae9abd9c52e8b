"""Calibration: the least noise of a mechanism that meets a budget.

Guarantees:
    The result was checked: accounted for, it meets the budget.
    ``releases=k`` calibrates for k fresh releases of the same input together.
"""

from typing import Any, TypeVar

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy.bounds import Bound, Sensitivity
from dp_forward.privacy.mechanism import Budget, Mechanism
from dp_forward.privacy.privunit import PrivUnit
from dp_forward.privacy.response import KaryResponse, RandomizedResponse, ResponseWithPrior
from dp_forward.privacy.units import TEXT, Unit

M = TypeVar("M", bound=Mechanism)


def calibrate(
    mechanism: type[M],
    budget: Budget,
    *,
    bound: Bound | None = None,
    unit: Unit | None = None,
    sensitivity: Sensitivity | float | None = None,
    **settings: Any,
) -> M:
    """The least noise of this kind that meets the budget.

    >>> from dp_forward.privacy import MatrixGaussian, normalise
    >>> calibrate(MatrixGaussian, Budget(8, 1e-5), bound=normalise(1.0), unit=TEXT)
    MatrixGaussian(sigma=1.20046) -> (8.0, 1e-05)-LDP per text
    >>> calibrate(PrivUnit, Budget(8), bound=normalise(1.0), unit=TEXT)
    PrivUnit(sigma=0.364572, t=2.74294, p=0.901023) -> 8.0-LDP per text
    >>> calibrate(RandomizedResponse, Budget(1), labels=2)
    RandomizedResponse(labels=2, keep=0.731059) -> 1.0-LDP per label

    Args:
        mechanism: the class of the noise.
        budget: the wanted epsilon and delta.
        bound: what bounds a hidden matrix; with the unit, it knows the sensitivity.
        unit: what is protected; by default the text.
        sensitivity: at the lowest level, a bare number in the place of bound and unit.
        settings: the mechanism's own: ``releases``, ``row_factor``, ``column_factor``, ``threshold``,
            ``cap_probability``, ``labels``, ``prior`` and others.
    """
    if issubclass(mechanism, RandomizedResponse | ResponseWithPrior | KaryResponse):
        _refuse(mechanism.__name__, bound=bound, unit=unit, sensitivity=sensitivity)
    elif issubclass(mechanism, PrivUnit):
        _refuse(mechanism.__name__, sensitivity=sensitivity)
        settings |= {"bound": bound, "unit": TEXT if unit is None else unit}
    else:
        if sensitivity is not None:
            _refuse("a bare sensitivity", bound=bound, unit=unit)
        elif bound is None:
            remedy = "Use bound=normalise(1.0), unit=TEXT."
            raise InvalidInput("bound", "say how large a matrix may be", None, remedy)
        else:
            sensitivity = bound.sensitivity(TEXT if unit is None else unit)
        settings["sensitivity"] = Sensitivity.of(sensitivity)
    maker: Any = mechanism
    made: M = maker.for_budget(budget, **settings)
    # The result of the root finder is checked by accounting for it.
    if budget.delta:
        holds = made.delta(budget.epsilon) <= budget.delta
    else:
        holds = made.epsilon(0.0) <= budget.epsilon
    if not holds:  # pragma: no cover - a bug in this package, not bad input
        raise AssertionError(f"{made!r} does not meet {budget!r}")
    return made


def _refuse(name: str, **given: object) -> None:
    for setting, value in given.items():
        refuse_if(value is not None, setting, f"be left out for {name}", value, "It has none.")
