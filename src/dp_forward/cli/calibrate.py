"""`dpf calibrate`: the least noise for a budget."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typer import Option

from dp_forward import privacy
from dp_forward.cli import options, output
from dp_forward.cli.mechanism_options import MechanismRequest, delta_of, name_assumptions
from dp_forward.cli.options import MechanismName
from dp_forward.errors import InvalidInput
from dp_forward.privacy.noise_spec import DEFAULT_DELTA
from dp_forward.privacy.shuffling import CentralBounds, privunit_for_central


def calibrate(
    mechanism: options.MechanismOption,
    epsilon: Annotated[
        float | None, Option("--epsilon", "-e", help="The budget; less is more private.")
    ] = None,
    delta: options.Delta = None,
    unit: options.UnitText = "text",
    norm: options.Norm = 1.0,
    bound: Annotated[Literal["normalise", "clip"], Option(help="How matrices are bounded.")] = "normalise",
    releases: options.Releases = 1,
    rows: options.Rows = None,
    columns: options.Columns = None,
    labels: options.LabelCount = None,
    prior: Annotated[str | None, Option(help="A public prior over the labels: 0.7,0.2,0.1.")] = None,
    threshold: Annotated[float | None, Option(help="PrivUnit's t [the best one, t*].")] = None,
    cap_probability: Annotated[float | None, Option(help="PrivUnit's p; t follows from it.")] = None,
    central_epsilon: Annotated[
        float | None, Option(help="Or: the epsilon behind a shuffler; PrivUnit's epsilon and t are searched.")
    ] = None,
    shuffle: Annotated[int | None, Option(help="N users behind it, with --central-epsilon.")] = None,
    paper: options.Paper = False,
    json: options.Json = False,
) -> None:
    """The least noise that meets a budget, rounded up.

    Example: dpf calibrate --mechanism matrix-gaussian --epsilon 8 --delta 1e-5
    """
    request = MechanismRequest(
        mechanism, unit, norm, bound, releases, rows, columns, labels, prior, threshold, cap_probability
    )
    made, central = None, None
    if central_epsilon is not None:
        at_delta = DEFAULT_DELTA if delta is None else delta
        with output.working("searching epsilon and t ..."):
            made, central = _for_central(request, central_epsilon, shuffle, epsilon, at_delta)
        epsilon, delta = made.epsilon(), 0.0
    if epsilon is None:
        raise InvalidInput("epsilon", "be given, or a central epsilon", None, "Try --epsilon 8.")
    budget = privacy.Budget(epsilon, delta_of(delta, mechanism))
    made = request.for_budget(budget) if made is None else made
    result = _describe(made, budget, norm=norm)
    sentences = [result["statement"]]
    if central is not None:
        result |= {
            "central_epsilon_upper": central.upper.epsilon,
            "central_epsilon_lower": central.lower.epsilon,
            "central_bound": central.upper.bound,
            "central_delta": central.upper.delta,
        }
        sentences += [f"{central.upper.statement} {central.upper.rests_on}", central.lower.statement]
    if made.guaranteed:
        sentences.append(name_assumptions(result["assumptions"]))
    if paper:
        if mechanism not in (MechanismName.MATRIX_GAUSSIAN, MechanismName.GAUSSIAN):
            raise InvalidInput("paper", "go with matrix-gaussian or gaussian", mechanism, "Leave it out.")
        reading = privacy.PaperReading.for_budget(
            budget, bound=request.bound, unit=request.unit, releases=releases
        )
        result["paper"] = reading.as_dict()
        sentences.append(reading.statement)
    if not made.guaranteed:
        output.warn(f"{made.name} at epsilon {epsilon} is a baseline and carries no guarantee.")
    hidden = ("statement", "assumptions", "against", "paper")
    output.print_result(result, json=json, title=repr(made), sentences=sentences, only_json=hidden)


def _for_central(
    request: MechanismRequest,
    central_epsilon: float,
    users: int | None,
    epsilon: float | None,
    delta: float,
) -> tuple[privacy.PrivUnit, CentralBounds]:
    """PrivUnit with the least estimation error for a central epsilon, and what is proved for it."""
    fixed = (epsilon, request.threshold, request.cap_probability)
    searched = all(value is None for value in fixed) and request.releases == 1
    if request.mechanism is not MechanismName.PRIVUNIT or not searched:
        rule = "go with privunit, one release, and leave epsilon and t open"
        raise InvalidInput("central-epsilon", rule, str(request.mechanism), "Leave the others out.")
    if users is None:
        raise InvalidInput("shuffle", "say how many users are mixed", None, "Try --shuffle 67349.")
    made = privunit_for_central(
        central_epsilon, users=users, delta=delta, bound=request.bound, unit=request.unit
    )
    central = privacy.Deployment(made, shuffled=users).central(delta)
    assert central is not None  # there is a shuffler
    return made, central


def _describe(made: privacy.Mechanism, budget: privacy.Budget, *, norm: float) -> dict[str, Any]:
    """A calibrated mechanism as the fields that `--json` prints."""
    sensitivity = getattr(made, "sensitivity", None)
    result: dict[str, Any] = {
        "mechanism": made.name,
        "epsilon": budget.epsilon,
        "delta": 0.0 if made.shown_delta == 0 else budget.delta,
        "unit": None if made.unit is None else str(made.unit),
        "sensitivity": sensitivity.value if isinstance(sensitivity, privacy.Sensitivity) else None,
        "sigma": getattr(made, "sigma", None),
        "mu": made.gaussian_mu or None,
        "guess_rate": made.guess_rate(),
        "norm": norm,
        "releases": getattr(made, "releases", 1),
    }
    if isinstance(made, privacy.PrivUnit):
        result |= {
            "sensitivity": made.bound.reach(made.unit),
            "threshold": made.threshold,
            "cap_probability": made.cap_probability,
            "scale": made.scale,
            "own_guess_rate": made.own_guess_rate(),
        }
    if isinstance(made, privacy.RandomizedResponse | privacy.ResponseWithPrior | privacy.KaryResponse):
        result |= {"labels": made.labels, "keep_probability": made.keep}
        del result["norm"]
    if not made.guaranteed:
        # The classical formula beyond its theorem: no epsilon is printed that nobody proved.
        assert isinstance(made, privacy.ClassicalGaussian)
        exact = privacy.AnalyticGaussian(made.sigma, made.sensitivity, at_delta=made.at_delta)
        return result | {
            "wanted_epsilon": made.wanted.epsilon,
            "epsilon": None,
            "guarantee": "none",
            "analytic_epsilon": exact.epsilon(made.at_delta),
            "statement": (
                f"No guarantee: the classical formula is proved for epsilon below 1 only, not for "
                f"{made.wanted.epsilon}. By the analytic curve this sigma is worth {exact.promise()}."
            ),
        }
    guarantee = privacy.Deployment(made).guarantee(delta=result["delta"])
    return result | {
        "guarantee": guarantee.promise,
        "against": guarantee.against,
        "assumptions": list(guarantee.assumptions),
        "statement": guarantee.statement,
    }
