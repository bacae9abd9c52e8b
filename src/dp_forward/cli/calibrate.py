"""`dpf calibrate`: the least noise for a budget."""

from typing import Annotated, Any, Literal

from typer import Option

from dp_forward import privacy
from dp_forward.cli import options, output
from dp_forward.cli.account import central_fields
from dp_forward.cli.mechanism_options import MechanismRequest, delta_of, name_assumptions
from dp_forward.cli.options import MechanismName
from dp_forward.errors import InvalidInput
from dp_forward.privacy.noise_spec import DEFAULT_DELTA
from dp_forward.privacy.shuffling import privunit_for_central


def calibrate(
    mechanism: options.MechanismOption,
    epsilon: options.Epsilon = None,
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
    central_epsilon: Annotated[float | None, Option(help="Or that behind the shuffler (privunit).")] = None,
    shuffle: options.Shuffle = None,
    paper: options.Paper = False,
    json: options.Json = False,
) -> None:
    """Find the least noise that meets a privacy budget.

    Example: dpf calibrate --mechanism matrix-gaussian --epsilon 8 --delta 1e-5
    """
    request = MechanismRequest(
        mechanism, unit, norm, bound, releases, rows, columns, labels, prior, threshold, cap_probability
    )
    at_delta = DEFAULT_DELTA if delta is None else delta
    made: privacy.Mechanism | None = None
    if central_epsilon is not None:
        made = _for_central(request, central_epsilon, shuffle, epsilon, at_delta)
        epsilon, delta = made.epsilon(), 0.0
    if epsilon is None:
        raise InvalidInput("epsilon", "be given, or a central epsilon", None, "Try --epsilon 8.")
    budget = privacy.Budget(epsilon, delta_of(delta, mechanism))
    made = request.for_budget(budget) if made is None else made
    result = _describe(made, budget, norm=norm)
    sentences = [result["statement"]]
    if central := privacy.Deployment(made, shuffled=shuffle).central(at_delta, with_estimate=False):
        result |= {"central_delta": at_delta, **central_fields(central)}
        sentences += [f"{central.upper.statement} {central.upper.rests_on}", central.lower.statement]
    if made.guaranteed:
        sentences.append(name_assumptions(result["assumptions"]))
    if paper:
        if mechanism not in (MechanismName.MATRIX_GAUSSIAN, MechanismName.GAUSSIAN):
            raise InvalidInput("paper", "go with matrix-gaussian or gaussian", mechanism, "Leave it out.")
        own: Any = {"bound": request.bound, "unit": request.unit, "releases": releases}
        reading = privacy.PaperReading.for_budget(budget, **own)
        result["paper"] = reading.as_dict()
        sentences.append(reading.statement)
    if not made.guaranteed:
        output.warn(f"{made.name} at epsilon {epsilon} is a baseline and carries no guarantee.")
    hidden = ("statement", "assumptions", "against", "paper", "central", "paper_estimate")
    output.print_result(result, json=json, title=repr(made), sentences=sentences, only_json=hidden)


def _for_central(
    request: MechanismRequest, wanted: float, users: int | None, epsilon: float | None, delta: float
) -> privacy.Mechanism:
    """PrivUnit with the least estimation error for a central epsilon."""
    fixed = (epsilon, request.threshold, request.cap_probability)
    free = request.mechanism is MechanismName.PRIVUNIT and all(value is None for value in fixed)
    if not free or request.releases > 1 or users is None:
        rule = "go with privunit, --shuffle and one release, epsilon and t left open"
        raise InvalidInput("central-epsilon", rule, wanted, "Try -m privunit --shuffle 67349.")
    with output.working("searching epsilon and t ..."):
        return privunit_for_central(wanted, users=users, delta=delta, bound=request.bound, unit=request.unit)


def _describe(made: privacy.Mechanism, budget: privacy.Budget, *, norm: float) -> dict[str, Any]:
    sensitivity = getattr(made, "sensitivity", None)
    result: dict[str, Any] = {"mechanism": made.name, "epsilon": budget.epsilon}
    result["delta"] = 0.0 if made.shown_delta == 0 else budget.delta
    result["unit"] = None if made.unit is None else str(made.unit)
    result["sensitivity"] = sensitivity.value if isinstance(sensitivity, privacy.Sensitivity) else None
    result |= {"sigma": getattr(made, "sigma", None), "mu": made.gaussian_mu or None}
    result |= {"guess_rate": made.guess_rate(), "norm": norm, "releases": getattr(made, "releases", 1)}
    if isinstance(made, privacy.PrivUnit):
        result["sensitivity"] = made.bound.reach(made.unit)
        result |= {name: getattr(made, name) for name in ("threshold", "cap_probability", "scale")}
        result["own_guess_rate"] = made.own_guess_rate()
    if isinstance(made, privacy.RandomizedResponse | privacy.ResponseWithPrior | privacy.KaryResponse):
        result |= {"labels": made.labels, "keep_probability": made.keep}
        del result["norm"]
    if not made.guaranteed:
        # The classical formula beyond its theorem: no epsilon is printed that nobody proved.
        assert isinstance(made, privacy.ClassicalGaussian)
        exact = privacy.AnalyticGaussian(made.sigma, made.sensitivity, at_delta=made.at_delta)
        said = (
            f"No guarantee: the classical formula is proved for epsilon below 1 only, not for "
            f"{made.wanted.epsilon}. By the analytic curve this sigma is worth {exact.promise()}."
        )
        result |= {"wanted_epsilon": made.wanted.epsilon, "epsilon": None, "guarantee": "none"}
        return result | {"analytic_epsilon": exact.epsilon(made.at_delta), "statement": said}
    guarantee = privacy.Deployment(made).guarantee(delta=result["delta"])
    result |= {"guarantee": guarantee.promise, "against": guarantee.against}
    return result | {"assumptions": list(guarantee.assumptions), "statement": guarantee.statement}
