"""`dpf account`: from noise to a guarantee, composed, and shuffled."""

from dataclasses import replace
from typing import Annotated, Any

from typer import Option

from dp_forward import privacy
from dp_forward.cli import options, output
from dp_forward.cli.mechanism_options import PURE, RESPONSES, MechanismRequest, name_assumptions
from dp_forward.cli.options import MechanismName
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks, shuffling
from dp_forward.privacy.noise_spec import DEFAULT_DELTA
from dp_forward.privacy.rounding import shown_down, shown_up

_CENTRAL = ("central_epsilon_upper", "central_epsilon_lower", "central_bound", "paper_estimate")


def account(
    mechanism: options.MechanismOption,
    sigma: Annotated[float | None, Option("--sigma", "-s", help="The Gaussian noise of a release.")] = None,
    epsilon: Annotated[float | None, Option("--epsilon", "-e", help="Or the epsilon of one release.")] = None,
    delta: options.Delta = None,
    unit: options.UnitText = "text",
    norm: options.Norm = 1.0,
    releases: options.Releases = 1,
    rows: options.Rows = None,
    threshold_share: Annotated[float | None, Option(help="PrivUnit's t as a share of t* [1].")] = None,
    label_epsilon: Annotated[
        float | None,
        Option(help="A randomized label goes along, drawn once; with --sampler, anew each time."),
    ] = None,
    labels: options.LabelCount = None,
    shuffle: options.Shuffle = None,
    sampler: Annotated[
        int | None, Option(help="How many users a trusted sampler draws from, one at each step.")
    ] = None,
    paper: options.Paper = False,
    json: options.Json = False,
) -> None:
    """Show how much privacy a given amount of noise provides.

    For one release or many, with or without its label, locally and behind a shuffler.

    Example: dpf account --mechanism privunit --epsilon 4 --shuffle 67349 --delta 1e-5
    """
    if (sigma is None) == (epsilon is None):
        raise InvalidInput("sigma or epsilon", "be given, one of them", "none or both", "Try -e 8.")
    at_delta = DEFAULT_DELTA if delta is None else delta
    checks.delta(at_delta, zero=mechanism in PURE)
    answers = labels if mechanism in RESPONSES else None
    request = MechanismRequest(mechanism, unit, norm, releases=releases, rows=rows, labels=answers)
    if threshold_share is not None:
        named: dict[str, Any] = {"unit": unit, "rows": rows, "threshold_share": threshold_share}
        at: Any = privacy.NoiseSpec(mechanism=mechanism, epsilon=epsilon or 1.0, **named).build()
        request = replace(request, threshold=at.threshold)
    text = _text_part(request, sigma=sigma, epsilon=epsilon, delta=at_delta)
    label = None
    if label_epsilon is not None:
        if labels is None:
            raise InvalidInput("labels", "be given with --label-epsilon", None, "Try --labels 2.")
        checks.epsilon(label_epsilon, name="label-epsilon")
        label = privacy.RandomizedResponse(label_epsilon, labels, 1 if sampler is None else releases)
    deployment = privacy.Deployment(text, label, shuffled=shuffle, sampled=sampler)
    with output.working("accounting ..."):
        guarantee = deployment.guarantee(delta=at_delta if text.gaussian_mu else 0.0)
        protected, sentences = None if guarantee.unit is None else str(guarantee.unit), []
        result: dict[str, Any] = {"mechanism": str(mechanism), "local_epsilon": guarantee.epsilon}
        result |= {"local_delta": guarantee.delta, "delta": guarantee.delta, "unit": protected}
        result |= {"releases": releases, "guess_rate": guarantee.guess_rate, **dict.fromkeys(_CENTRAL)}
        central = deployment.central(at_delta)
        result["observers"] = deployment.statements(at_delta, central=central)
        sentences += [f"{who[0].upper()}{who[1:]}: {said}" for who, said in result["observers"].items()]
        sentences.append(name_assumptions(guarantee.assumptions))
        if central is not None:
            result |= {"delta": at_delta, **central_fields(central)}
            sentences += [central.lower.statement, central.estimate.statement]
        if paper:
            result["paper"], more = _paper(request, deployment, at_delta, central)
            sentences += more
    result["statement"] = " ".join(sentences)
    hidden = ("statement", "central", "paper", "observers")
    title = repr(deployment.own_releases)
    output.print_result(result, json=json, title=title, sentences=sentences, only_json=hidden)


def _text_part(
    request: MechanismRequest, *, sigma: float | None, epsilon: float | None, delta: float
) -> privacy.Mechanism:
    """The mechanism of one release, then counted ``releases`` times."""
    if sigma is not None:
        return request.for_sigma(sigma, delta)
    assert epsilon is not None
    if request.mechanism in (MechanismName.MVG, MechanismName.CLASSICAL_GAUSSIAN):
        raise InvalidInput("mechanism", "have an exact curve", request.mechanism, "Use gaussian with sigma.")
    if request.mechanism in PURE:
        return request.for_budget(privacy.Budget(epsilon * request.releases))
    once: Any = replace(request, releases=1).for_budget(privacy.Budget(epsilon, delta))
    return request.for_sigma(once.sigma, delta)


def central_fields(central: shuffling.CentralBounds) -> dict[str, Any]:
    shown = ("kind", "trusted", "statement", "bound")
    bounds = {name: {key: getattr(bound, key) for key in shown} for name, bound in vars(central).items()}
    upper, lower, estimate = central.upper, central.lower, central.estimate
    numbers = (upper.epsilon, lower.epsilon, upper.bound, estimate.epsilon)
    return {**dict(zip(_CENTRAL, numbers, strict=True)), "central": bounds}


def _paper(
    request: MechanismRequest, made: privacy.Deployment, delta: float, reading: shuffling.CentralBounds | None
) -> tuple[dict[str, Any], list[str]]:
    """S = C, as in the authors' experiments, always with the truth in the same breath."""
    text, users = made.text, made.users
    refuse_if(text.gaussian_mu == 0, "paper", "go with Gaussian noise", request.mechanism, "Leave it out.")
    sigma: float = text.sigma  # type: ignore[attr-defined]
    paper = privacy.PaperReading(sigma, request.bound, request.unit, request.releases, delta)
    fields, sentences = paper.as_dict(), [paper.statement]
    if users is not None and reading is not None:
        half = text.gaussian_mu / request.releases**0.5 / 2
        claim = shuffling.paper_estimate(delta, mu=half, users=users, epochs=request.releases)
        fields["central_estimate_at_c"] = claim
        s_c, s_2c = paper.whose_sensitivity
        lower, upper, estimate = (getattr(reading, kind).epsilon for kind in ("lower", "upper", "estimate"))
        sentences.append(
            f"The authors' central estimate (a subsampled Gaussian of rate 1/N) for this noise: {claim:.4g} "
            f"by {s_c}, {estimate:.4g} by {s_2c}. "
            f"It is no theorem: an attack shows at least {shown_down(lower or 0.0, 4)}, and what is proved "
            f"is {'nothing' if upper is None else shown_up(upper, 4)}."
        )
    return fields, sentences
