"""`dpf account`: from noise to a guarantee, composed, and shuffled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.mechanism_options import MechanismRequest, is_pure, name_assumptions
from dp_forward.cli.options import MechanismName
from dp_forward.errors import InvalidInput
from dp_forward.privacy import Budget, Guarantee, Mechanism, PaperReading, RandomizedResponse, compose
from dp_forward.privacy import shuffling as c
from dp_forward.privacy.noise_spec import DEFAULT_DELTA
from dp_forward.privacy.rounding import shown_down, shown_up

__all__ = ["account"]


def account(
    mechanism: options.MechanismOption,
    sigma: Annotated[
        float | None, typer.Option("--sigma", "-s", help="The noise of one release (Gaussian).")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", "-e", help="Or: the epsilon of one release.")
    ] = None,
    delta: options.Delta = None,
    unit: options.UnitText = "text",
    norm: options.Norm = 1.0,
    releases: options.Releases = 1,
    rows: options.Rows = None,
    label_epsilon: Annotated[
        float | None, typer.Option("--label-epsilon", help="A randomized label goes along, once.")
    ] = None,
    labels: options.LabelCount = None,
    shuffle: Annotated[
        int | None, typer.Option("--shuffle", help="N users behind a trusted shuffler.")
    ] = None,
    sampler: Annotated[
        int | None,
        typer.Option("--sampler", help="N users behind a trusted sampler, one fresh draw a step."),
    ] = None,
    paper: options.Paper = False,
    json: options.Json = False,
) -> None:
    """What noise is worth: one release or many, with its label, locally and behind a shuffler.

    Example: dpf account --mechanism privunit --epsilon 4 --shuffle 67349 --delta 1e-5
    """
    deployment = _Deployment(
        shuffle=shuffle,
        sampler=sampler,
        label_epsilon=label_epsilon,
        labels=labels,
        delta=DEFAULT_DELTA if delta is None else delta,
    )
    request = MechanismRequest(
        mechanism=mechanism,
        unit_text=unit,
        norm=norm,
        releases=releases,
        rows=rows,
        labels=labels if mechanism is MechanismName.RANDOMIZED_RESPONSE else None,
    )
    _print_account(request, deployment, sigma=sigma, epsilon=epsilon, paper=paper, json=json)


def _print_account(
    request: MechanismRequest,
    deployment: _Deployment,
    *,
    sigma: float | None,
    epsilon: float | None,
    paper: bool,
    json: bool,
) -> None:
    if (sigma is None) == (epsilon is None):
        raise InvalidInput("sigma or epsilon", "be given, one of them", "none or both", "Try -e 8.")
    deployment.check()
    text = _text_part(request, sigma=sigma, epsilon=epsilon, delta=deployment.delta)
    whole = _with_label(text, deployment.label_epsilon, deployment.labels)
    local_delta = deployment.delta if whole.gaussian_mu else 0.0
    guarantee = Guarantee(whole, delta=local_delta)
    result: dict[str, Any] = {
        "mechanism": str(request.mechanism),
        "local_epsilon": guarantee.epsilon,
        "local_delta": local_delta,
        "delta": local_delta if deployment.users is None else deployment.delta,
        "unit": None if whole.unit is None else str(whole.unit),
        "releases": request.releases,
        "guess_rate": guarantee.guess_rate,
        "central_epsilon_upper": None,
        "central_epsilon_lower": None,
        "paper_estimate": None,
    }
    sentences = [guarantee.statement, name_assumptions(guarantee.assumptions)]
    with output.working("accounting ..."):
        reading = deployment.reading(text, whole, request.releases)
        if reading is not None:
            result |= _central_fields(reading)
            sentences += [bound.statement for bound in _bounds(reading).values()]
        if paper:
            result["paper"], more = _paper(request, text, deployment, reading)
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
        raise InvalidInput(
            "mechanism", "have an exact curve", request.mechanism, "Use gaussian with its sigma."
        )
    if is_pure(request.mechanism):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployment:
    """Who stands between the users and the provider, and what goes along with a text."""

    shuffle: int | None
    sampler: int | None
    label_epsilon: float | None
    labels: int | None
    delta: float

    def check(self) -> None:
        """Refuse two trusted parts at once."""
        if self.shuffle is not None and self.sampler is not None:
            raise InvalidInput("sampler", "stand without --shuffle", self.sampler, "Pick one deployment.")

    @property
    def users(self) -> int | None:
        """N behind the trusted part; None where nobody is trusted."""
        return self.sampler if self.shuffle is None else self.shuffle

    def reading(self, text: Mechanism, whole: Mechanism, releases: int) -> c.CentralBounds | None:
        """The three central readings, for the trusted part that was named."""
        if self.users is None:
            return None
        if text.unit is not None and text.unit.tokens is not None:
            # The theorems need the local epsilon between any two people's texts, not between neighbours.
            raise InvalidInput(
                "unit",
                "be text with a shuffler or sampler",
                str(text.unit),
                "Strangers' texts are not alike enough to hide each other by a promise per token.",
            )
        if text.gaussian_mu == 0:
            return self._pure(whole, self.users)
        shared: dict[str, Any] = {
            "mu": text.gaussian_mu / releases**0.5,
            "users": self.users,
            "delta": self.delta,
            "label_epsilon": self.label_epsilon,
            "labels": self.labels or 2,
        }
        if self.sampler is not None:
            return c.sampled_gaussian(epochs=releases, **shared)
        return c.shuffled_gaussian(releases=releases, label_once=True, **shared)

    def _pure(self, whole: Mechanism, users: int) -> c.CentralBounds:
        if self.sampler is not None:
            raise InvalidInput("sampler", "go with Gaussian noise", self.sampler, "Use --shuffle.")
        losses = whole.pure_losses
        alone = len(losses) == 1 and losses[0].copies == 1
        return c.shuffled_pure(
            local_epsilon=whole.epsilon(),
            users=users,
            delta=self.delta,
            cap_mass=losses[0].mass if alone else None,
        )


def _bounds(reading: c.CentralBounds) -> dict[str, c.CentralBound]:
    return {"upper": reading.upper, "lower": reading.lower, "estimate": reading.estimate}


def _central_fields(reading: c.CentralBounds) -> dict[str, Any]:
    return {
        "central_epsilon_upper": reading.upper.epsilon,
        "central_epsilon_lower": reading.lower.epsilon,
        "paper_estimate": reading.estimate.epsilon,
        "central": {
            name: {"kind": bound.kind, "trusted": bound.trusted, "statement": bound.statement}
            for name, bound in _bounds(reading).items()
        },
    }


def _paper(
    request: MechanismRequest, text: Mechanism, deployment: _Deployment, reading: c.CentralBounds | None
) -> tuple[dict[str, Any], list[str]]:
    """The paper's convention, always with the truth in the same breath."""
    if text.gaussian_mu == 0:
        raise InvalidInput("paper", "go with Gaussian noise", request.mechanism, "Leave it out.")
    sigma: float = text.sigma  # type: ignore[attr-defined]
    paper = PaperReading(sigma, request.bound, request.unit, request.releases, deployment.delta)
    fields, sentences = paper.as_dict(), [paper.statement]
    if deployment.users is not None and reading is not None:
        half = text.gaussian_mu / request.releases**0.5 / 2
        claim = c.paper_estimate(deployment.delta, mu=half, users=deployment.users, epochs=request.releases)
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
