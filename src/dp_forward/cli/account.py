"""`dpf account`: from noise to a guarantee, composed, and shuffled."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from typer import Option

from dp_forward.cli import options, output
from dp_forward.cli.mechanism_options import PURE, RESPONSES, MechanismRequest, name_assumptions
from dp_forward.cli.options import MechanismName
from dp_forward.errors import InvalidInput
from dp_forward.privacy import Budget, Guarantee, Mechanism, PaperReading, RandomizedResponse, compose
from dp_forward.privacy import shuffling as c
from dp_forward.privacy.noise_spec import DEFAULT_DELTA
from dp_forward.privacy.rounding import shown_down, shown_up


def account(
    mechanism: options.MechanismOption,
    sigma: Annotated[
        float | None, Option("--sigma", "-s", help="The noise of one release (Gaussian).")
    ] = None,
    epsilon: Annotated[
        float | None, Option("--epsilon", "-e", help="Or: the epsilon of one release.")
    ] = None,
    delta: options.Delta = None,
    unit: options.UnitText = "text",
    norm: options.Norm = 1.0,
    releases: options.Releases = 1,
    rows: options.Rows = None,
    label_epsilon: Annotated[float | None, Option(help="A randomized label goes along, once.")] = None,
    labels: options.LabelCount = None,
    shuffle: Annotated[int | None, Option(help="N users behind a trusted shuffler.")] = None,
    sampler: Annotated[
        int | None, Option(help="N users behind a trusted sampler, one fresh draw a step.")
    ] = None,
    paper: options.Paper = False,
    json: options.Json = False,
) -> None:
    """What noise is worth: one release or many, with its label, locally and behind a shuffler.

    Example: dpf account --mechanism privunit --epsilon 4 --shuffle 67349 --delta 1e-5
    """
    if (sigma is None) == (epsilon is None):
        raise InvalidInput("sigma or epsilon", "be given, one of them", "none or both", "Try -e 8.")
    if shuffle is not None and sampler is not None:
        raise InvalidInput("sampler", "stand without --shuffle", sampler, "Pick one deployment.")
    at_delta = DEFAULT_DELTA if delta is None else delta
    answers = labels if mechanism in RESPONSES else None
    request = MechanismRequest(mechanism, unit, norm, releases=releases, rows=rows, labels=answers)
    text = _text_part(request, sigma=sigma, epsilon=epsilon, delta=at_delta)
    whole = _with_label(text, label_epsilon, labels)
    guarantee = Guarantee(whole, delta=at_delta if whole.gaussian_mu else 0.0)
    result, sentences = _local_fields(request, guarantee)
    with output.working("accounting ..."):
        reading, users = None, sampler if shuffle is None else shuffle
        if users is not None:
            who = {"users": users, "delta": at_delta, "label_epsilon": label_epsilon, "labels": labels or 2}
            reading = _central(text, whole, releases, sampled=sampler is not None, **who)
            result |= {
                "delta": at_delta,
                "central_epsilon_upper": reading.upper.epsilon,
                "central_epsilon_lower": reading.lower.epsilon,
                "paper_estimate": reading.estimate.epsilon,
                "central": {
                    name: {"kind": bound.kind, "trusted": bound.trusted, "statement": bound.statement}
                    for name, bound in vars(reading).items()
                },
            }
            sentences += [bound.statement for bound in vars(reading).values()]
        if paper:
            result["paper"], more = _paper(request, text, at_delta, users, reading)
            sentences += more
    result["statement"] = " ".join(sentences)
    hidden = ("statement", "central", "paper")
    output.print_result(result, json=json, title=repr(whole), sentences=sentences, only_json=hidden)


def _text_part(
    request: MechanismRequest, *, sigma: float | None, epsilon: float | None, delta: float
) -> Mechanism:
    """The mechanism of one release, then counted ``releases`` times."""
    if sigma is not None:
        return request.for_sigma(sigma, delta)
    assert epsilon is not None
    if request.mechanism in (MechanismName.MVG, MechanismName.CLASSICAL_GAUSSIAN):
        remedy = "Use gaussian with its sigma."
        raise InvalidInput("mechanism", "have an exact curve", request.mechanism, remedy)
    if request.mechanism in PURE:
        return request.for_budget(Budget(epsilon * request.releases))
    once: Any = replace(request, releases=1).for_budget(Budget(epsilon, delta))
    return request.for_sigma(once.sigma, delta)


def _with_label(text: Mechanism, label_epsilon: float | None, labels: int | None) -> Mechanism:
    if label_epsilon is None:
        return text
    if labels is None:
        raise InvalidInput("labels", "be given with --label-epsilon", None, "Try --labels 2.")
    if isinstance(text, RandomizedResponse):
        raise InvalidInput("label-epsilon", "go with a text mechanism", label_epsilon, "Use --releases.")
    return compose(text, RandomizedResponse(label_epsilon, labels))


def _local_fields(request: MechanismRequest, guarantee: Guarantee) -> tuple[dict[str, Any], list[str]]:
    result = {
        "mechanism": str(request.mechanism),
        "local_epsilon": guarantee.epsilon,
        "local_delta": guarantee.delta,
        "delta": guarantee.delta,
        "unit": None if guarantee.unit is None else str(guarantee.unit),
        "releases": request.releases,
        "guess_rate": guarantee.guess_rate,
        "central_epsilon_upper": None,
        "central_epsilon_lower": None,
        "paper_estimate": None,
    }
    return result, [guarantee.statement, name_assumptions(guarantee.assumptions)]


def _central(
    text: Mechanism, whole: Mechanism, releases: int, *, sampled: bool, **shared: Any
) -> c.CentralBounds:
    """The three central readings, for the trusted part that was named; ``shared`` are of all theorems."""
    if text.unit is not None and text.unit.tokens is not None:
        # The theorems need the local epsilon between any two people's texts, not between neighbours.
        remedy = "Strangers' texts are not alike enough to hide each other by a promise per token."
        raise InvalidInput("unit", "be text with a shuffler or sampler", str(text.unit), remedy)
    mu = text.gaussian_mu / releases**0.5
    if mu == 0:
        if sampled:
            raise InvalidInput("sampler", "go with Gaussian noise", shared["users"], "Use --shuffle.")
        return c.shuffled_mechanism(whole, users=shared["users"], delta=shared["delta"])
    if sampled:
        return c.sampled_gaussian(mu=mu, epochs=releases, **shared)
    return c.shuffled_gaussian(mu=mu, releases=releases, label_once=True, **shared)


def _paper(
    request: MechanismRequest,
    text: Mechanism,
    delta: float,
    users: int | None,
    reading: c.CentralBounds | None,
) -> tuple[dict[str, Any], list[str]]:
    """The paper's convention, always with the truth in the same breath."""
    if text.gaussian_mu == 0:
        raise InvalidInput("paper", "go with Gaussian noise", request.mechanism, "Leave it out.")
    sigma: float = text.sigma  # type: ignore[attr-defined]
    paper = PaperReading(sigma, request.bound, request.unit, request.releases, delta)
    fields, sentences = paper.as_dict(), [paper.statement]
    if users is not None and reading is not None:
        half = text.gaussian_mu / request.releases**0.5 / 2
        claim = c.paper_estimate(delta, mu=half, users=users, epochs=request.releases)
        fields["central_estimate_at_c"] = claim
        lower, upper = reading.lower.epsilon, reading.upper.epsilon
        sentences.append(
            f"The authors' code would print a central epsilon of {shown_up(claim, 3)} for this noise "
            f"(sensitivity C, sampling rate 1/N). At the right sensitivity the same arithmetic says "
            f"{shown_up(reading.estimate.epsilon or 0.0, 3)}, which is an estimate and no theorem; an "
            f"explicit attack shows at least {shown_down(lower or 0.0, 3)}; what is proved is "
            f"{'nothing' if upper is None else shown_up(upper, 3)}."
        )
    return fields, sentences
