"""`dpf explain`: a guarantee in words, in context, with small tables."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer
from typer import Option

from dp_forward.cli import options, output
from dp_forward.cli.mechanism_options import MechanismRequest, delta_of, name_assumptions
from dp_forward.errors import InvalidInput, Unproved, refuse_if
from dp_forward.privacy import Budget, Deployment, Guarantee, KaryResponse, Mechanism, NoiseSpec, Notion
from dp_forward.privacy.noise_spec import DEFAULT_DELTA
from dp_forward.privacy.rounding import brief, percent_up, shown_down, shown_up
from dp_forward.privacy.shuffling import CentralBound
from dp_forward.privacy.solve import last_safe
from dp_forward.storage.json_files import read_json

_CANDIDATES: Final = (2, 100, 10_000)  # one of how many: the questions whose best guess is told
_EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_RELEASES: Final = (1, 2, 3, 10, 100)
_GOOD_FOR: Final = (
    "two texts look alike",
    "doubt between any two",
    "doubt among a hundred",
    "doubt among ten thousand",
    "little: add noise",
)
_BestGuess = Annotated[
    float | None, Option(help="In place of --epsilon: how often a guess between two texts may be right.")
]


def explain(
    mechanism: options.AnyMechanism = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    unit: options.UnitText = "text",
    norm: options.Norm = 1.0,
    rows: options.Rows = None,
    columns: options.Columns = None,
    labels: options.LabelCount = None,
    shuffle: options.Shuffle = None,
    best_guess: _BestGuess = None,
    run: Annotated[Path | None, Option(help="A run, for its noise, and its accuracy by epsilon.")] = None,
    json: options.Json = False,
) -> None:
    """Say what a privacy budget promises, and how to choose it.

    It shows what is known before and after a release, for several epsilons and several releases.

    Example: dpf explain --mechanism privunit --epsilon 4 --shuffle 10000
    """
    measured = None if run is None else RunAccuracy.read(run)
    build: Callable[[float], Mechanism]
    if measured is not None:
        refuse_if(mechanism is not None, "mechanism", "be left out with --run", mechanism, "It has its own.")
        build = measured.build
        epsilon = measured.noise.epsilon if epsilon is None and best_guess is None else epsilon
    elif mechanism is None or (epsilon is None and best_guess is None):
        raise InvalidInput("mechanism and epsilon", "be given without --run", "less", "Try -m privunit -e 4.")
    else:
        request = MechanismRequest(mechanism, unit, norm, rows=rows, columns=columns, labels=labels)
        at_delta = delta_of(delta, mechanism)
        build = lambda e: request.for_budget(Budget(e, at_delta))  # noqa: E731
    if best_guess is not None:
        refuse_if(epsilon is not None, "best-guess", "go without --epsilon", "both", "It gives the epsilon.")
    made = build(epsilon := _epsilon_for(best_guess, build) if epsilon is None else epsilon)
    if not made.guaranteed:
        what = f"{made.name} at epsilon {epsilon}"
        raise Unproved(f"`mechanism` must carry a guarantee to be explained; {what} has none. Use gaussian.")
    deployment = Deployment(made, shuffled=shuffle)
    guarantee = deployment.guarantee(delta=0.0 if made.shown_delta == 0 else delta or made.shown_delta)
    with output.working("accounting ..."):
        central = deployment.central(delta or DEFAULT_DELTA, with_estimate=False)
    shuffled, attack = (None, None) if central is None else (central.upper, central.lower)
    fresh: list[Any] = [dataclasses.replace(made, releases=k) for k in _RELEASES]  # type: ignore[type-var]
    result = guarantee.as_dict() | {
        "mechanism": made.name,
        "in_context": [_context(guarantee, shuffled, among) for among in _CANDIDATES],
        "shuffled": None if shuffled is None else dataclasses.asdict(shuffled),
        "attack": None if attack is None else dataclasses.asdict(attack),
        "epsilons": _choices(build, measured, () if best_guess is None else (epsilon,)),
        "accuracy_from": None if measured is None else measured.how,
        "repeated": [
            {"releases": m.releases, "epsilon": m.epsilon(guarantee.delta), "guess_rate": m.guess_rate()}
            for m in fresh
        ],
    }
    if json:
        output.print_json(result)
    else:
        _print(result, guarantee, shuffled)


@dataclasses.dataclass(frozen=True)
class RunAccuracy:
    """What the report of a run says of its accuracy, and what follows from it at another epsilon."""

    noise: NoiseSpec
    report: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """From a run, or from its front."""
        from dp_forward.split.artifacts import front_of

        front, remedy = front_of(folder), "Name the folder of a finished run."
        places = (front / "release.json", front.parent / "report.json")
        release, report = (read_json(place, name="run", remedy=remedy) for place in places)
        if not release.get("noise") or report.get("labels") != release.get("labels"):
            raise InvalidInput("run", "have noise, and a report of its own", "others", remedy)
        return cls(NoiseSpec.from_dict(release["noise"]), report)

    def build(self, epsilon: float) -> Mechanism:
        """The noise of the run at another epsilon."""
        return dataclasses.replace(self.noise, epsilon=epsilon).build()

    @property
    def pair(self) -> bool:
        """Whether its records are pairs of texts."""
        from dp_forward.data import TASKS

        plan = self.report.get("plan") or {}
        task = TASKS.get(plan.get("task") or "")
        return len(plan.get("text_column") or (() if task is None else task.text_fields)) == 2

    def at(self, epsilon: float) -> float | None:
        """The expected accuracy of queries; None where it was neither measured nor follows."""
        made, clean = self.build(epsilon), self.report.get("accuracy_without_noise")
        if isinstance(made, KaryResponse) and clean is not None:
            return made.accuracy(clean)
        return self.report.get("accuracy") if epsilon == self.noise.epsilon else None

    @property
    def how(self) -> str:
        """Where the numbers of `at` come from."""
        if self.report.get("accuracy") is None and self.report.get("accuracy_without_noise") is None:
            return "The run measured no accuracy: dpf evaluate does."
        clean = f"{output.number(self.report.get('accuracy_without_noise'), 3)} without noise"
        if self.noise.mechanism == KaryResponse.name:
            return f"Expected accuracy follows exactly from the run's own: {clean}."
        own = brief(shown_up(self.noise.epsilon))
        return f"Accuracy is known where the run measured it, at epsilon {own}: {clean}."


def _context(guarantee: Guarantee, shuffled: CentralBound | None, among: int) -> dict[str, Any]:
    posterior = guarantee.posterior(1 / among) if guarantee.delta == 0 else None
    mixed = None if shuffled is None else shuffled.guess_rate(among)
    rates = {"candidates": among, "before": 1 / among, "after": guarantee.mechanism.guess_rate(among)}
    return {**rates, "posterior": posterior, "after_shuffled": mixed}


def _epsilon_for(best_guess: float | None, build: Callable[[float], Mechanism]) -> float:
    """The largest epsilon, to four digits, at which no guess between two texts is right more often."""
    if best_guess is None or not 0.501 <= best_guess < 1:
        raise InvalidInput("best-guess", "lie in [0.501, 1)", best_guess, "A coin has 0.5; try 0.9.")
    found = last_safe(lambda e: best_guess - build(e).guess_rate(), safe=1e-4, unsafe=64.0, tolerance=1e-6)
    return float(shown_down(found, 4))


def _choices(
    build: Callable[[float], Mechanism], measured: RunAccuracy | None, more: tuple[float, ...]
) -> list[dict[str, Any]]:
    """Each epsilon with its best guesses, the accuracy of the run and what it is good for."""
    found = []
    for epsilon in sorted({*_EPSILONS, *more}):
        two, hundred, many = map(build(epsilon).guess_rate, _CANDIDATES)
        met = (two <= 0.65, two <= 0.9, hundred <= 0.5, many <= 0.5, True)
        good_for = _GOOD_FOR[met.index(True)]
        rates = {"guess_rate": two, "guess_rate_of_100": hundred}
        accuracy = None if measured is None else measured.at(epsilon)
        found.append({"epsilon": epsilon, **rates, "accuracy": accuracy, "good_for": good_for})
    return found


def _percent(rate: float) -> str:
    """No noise is told apart for sure: what would round to 100 % is below it."""
    return "> 99.99 %" if rate > 0.9999 else percent_up(rate)


def _print(result: dict[str, Any], guarantee: Guarantee, shuffled: CentralBound | None) -> None:
    about = (guarantee.notion or Notion.DISTANCE).neighbours
    lines = [f"{guarantee.promise}, for {about}. What it tells somebody to whom all candidates were alike:"]
    for row in result["in_context"]:
        mixed = row["after_shuffled"]
        beside = "" if mixed is None else f" Of the shuffled batch alone: at most {percent_up(mixed)}."
        lines.append(f"  {guarantee.in_context(row['candidates'])}{beside}")
    always = "No release, whatever it shows, supports a stronger belief."
    lines.append(always if guarantee.delta == 0 else "So often is the best guess right, over all releases.")
    if shuffled is not None:
        means = "The numbers of the shuffled batch are for somebody who knows all records but yours;"
        adds = f"delta adds less than {percent_up(shuffled.delta)} to them."
        lines += [f"{means} {adds}", "", shuffled.statement, result["attack"]["statement"]]
        lines += ["This holds if all of these are true:", *(f"  * {rule}." for rule in shuffled.assumptions)]
    lines += ["", f"Against: {guarantee.against}.", name_assumptions(guarantee.assumptions)]
    lines += ["It does not say: that the text cannot be guessed from elsewhere, or that the answer"]
    lines += ["is right. What the noisy matrix is used for later costs nothing more.", ""]
    typer.echo("\n".join(lines))
    columns: dict[str, Callable[[Any], str]] = {
        "epsilon": lambda row: brief(shown_up(row["epsilon"], 4)),
        "best guess of 2": lambda row: _percent(row["guess_rate"]),
    }
    more: dict[str, Callable[[Any], str]] = {"of 100": lambda row: _percent(row["guess_rate_of_100"])}
    if any(row["accuracy"] is not None for row in result["epsilons"]):
        more["accuracy"] = lambda row: "" if row["accuracy"] is None else f"{row['accuracy']:.3f}"
    more["good for"] = lambda row: row["good_for"]
    output.print_rows("To choose epsilon", result["epsilons"], columns | more)
    if result["accuracy_from"] is not None:
        typer.echo(result["accuracy_from"])
    typer.echo("\nThe same text released k times with fresh noise; a stored release resent costs nothing:")
    output.print_rows("", result["repeated"], {"k": lambda row: str(row["releases"])} | columns)
