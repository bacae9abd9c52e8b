"""What is proved about training: one release of each record behind a shuffler, beside DP-SGD."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from dp_forward.privacy import Deployment, NoiseSpec, RandomizedResponse, compose
from dp_forward.privacy.rounding import shown_down, shown_up
from dp_forward.privacy.shuffling import CentralBounds, shuffled_mechanism
from dp_forward.train.dpsgd.accounting import as_replace_one
from reproduction.jobs import FIRST, Job
from reproduction.model_setup import TASKS, ModelSetup
from reproduction.tables.noise import GAUSSIAN
from reproduction.tables.paper_sensitivity import DELTA, RECORDS, round_up
from reproduction.tables.table import Cell, Derived, Known, Table
from reproduction.tables.training import dpsgd_job

__all__ = ["folded_accuracies", "proved_training"]

_PUBLIC_TEXTS: Final = 560_000
"""Sentences of IMDb that a public front is trained on, where there are so many."""
_SEEDS: Final = (0, 1)
_MAIN_BUDGET: Final = (4.0, 2.197)
_BUDGETS: Final = ((1.0, 1.0), (2.0, 2.197), _MAIN_BUDGET, (4.5, 2.197))
"""Epsilon of the text and of the label, each released once."""
_STRICT_DELTA: Final = DELTA / 10
_CENTRAL: Final = f"proved central epsilon, delta {DELTA:g}"
_STRICTER: Final = f"the same at delta {_STRICT_DELTA:g}"
_CLONES_PROMISE: Final = {"epsilon": 0.3166, "delta": 4.2e-6}
"""For DP-SGD, one record added or removed: by group privacy what the clones proved for the main budget."""
_BLANKET_PROMISE: Final = {"epsilon": 0.197, "delta": 4.5e-6}
"""The same for what the blanket proves for it."""
_FOLDED: Final[Mapping[float, Mapping[str, float] | None]] = {
    1.0: None,
    2.0: {"epsilon": 0.01435, "delta": 4.9e-6},
    4.0: {"epsilon": 0.0545, "delta": 4.8e-6},
    8.0: {"epsilon": 0.596, "delta": 3.5e-6},
}
"""Epsilons of folded records; for DP-SGD, what makes its promise for one record replaced theirs."""
_CLOSED_FORM: Final = Path(__file__).parents[2] / "results" / "closed-form.json"
_RARER_LABEL: Final = 29_780
"""Training texts of SST-2 with the label that fewer have."""
_FRONTS: Final = {
    "front as published": "SST-2, 67,349 records, ten phrases",
    "front trained on public reviews": "SST-2, 67,349 records, public-front on IMDb",
}
"""Of folded records: the front, and its results in the file."""


def public_front_job(setup: ModelSetup, *, seed: int) -> Job:
    """A front trained on public IMDb sentences through the noise of epsilon 4, SST-2 released once."""
    plan = {
        **TASKS["sst2"].settings,
        "model": setup.model,
        "regime": "public-front",
        "public_task": "imdb",
        "public_limit": _PUBLIC_TEXTS,
        "epsilon": 4.0,
        "precision": "fp32",
        "evaluation_draws": 20,
        "seed": seed,
    }
    return Job("finetune", plan, weight=12.0)


def _release_job(
    setup: ModelSetup,
    text: float,
    label: float | None,
    *,
    seed: int,
    mechanism: str,
    published: bool = False,
) -> Job:
    """One release of each record through a front that learnt from public text, or the ``published`` one."""
    plan: dict[str, Any] = {
        "task": "sst2",
        "model": setup.model if published else FIRST,
        "regime": "release-once",
        "mechanism": mechanism,
        "epsilon": text,
        "label_epsilon": label,
        "evaluation_draws": 20,
        "seed": seed,
    }
    kept = {name: value for name, value in plan.items() if value is not None}
    after = () if published else (public_front_job(setup, seed=seed),)
    return Job("finetune", kept, after=after, weight=1.0)


def proved_training(setup: ModelSetup) -> Table:
    """Central epsilons that are proved: a public front, one release per record, a shuffler."""
    cells: list[Cell] = []
    for (text, label), published in (*((budget, False) for budget in _BUDGETS), (_MAIN_BUDGET, True)):
        row = f"PrivUnit {text:g} + label {label:g}{', front as published' if published else ''}"
        jobs = tuple(
            _release_job(setup, text, label, seed=seed, mechanism="privunit", published=published)
            for seed in _SEEDS
        )
        said = partial(_said, f"{round(text + label, 6):g}, text and label")
        cells += _proved(row, jobs, said, partial(_central, text, label))
    for front, measured in _FRONTS.items():
        for epsilon in _FOLDED:
            cells += _folded(epsilon, front, measured)
    for text in (4.0, 8.0):
        row = f"matrix Gaussian {text:g}, label public"
        jobs = tuple(_release_job(setup, text, None, seed=seed, mechanism=GAUSSIAN) for seed in _SEEDS)
        said = partial(_said, f"{text:g}, delta 1e-5, text only")
        cells += _proved(row, jobs, said, partial(_central_of_gaussian, text))
    beside: dict[str, Mapping[str, float] | None] = {
        "DP-SGD by a trusted trainer, queries raw": _CLONES_PROMISE,
        "DP-SGD at the promise of PrivUnit {:g} + label {:g}".format(*_MAIN_BUDGET): _BLANKET_PROMISE,
        **{f"DP-SGD at the promise of folded {epsilon:g}": same for epsilon, same in _FOLDED.items()},
    }
    for row, same in beside.items():
        if same is None:
            continue
        jobs = tuple(dpsgd_job(setup, TASKS["sst2"], **same, seed=seed) for seed in _SEEDS)
        cells += [
            Cell(row, "local epsilon", known=partial(_said, "none: the trainer sees all")),
            Cell(row, "records", jobs, derived=_records),
            Cell(row, _CENTRAL, jobs, derived=_replaced(DELTA), digits=4),
            Cell(row, _STRICTER, known=partial(_said, "not accounted")),
            Cell(row, "accuracy", jobs),
        ]
    return Table(
        "proved-training",
        "What is proved: text and label together, behind a shuffler",
        "beside the central epsilons of the paper: what a theorem covers (SST-2)",
        "releases \\",
        tuple(cells),
        (
            "`public-front`: the front is trained on public reviews, then frozen; each training record is "
            "released once, text by the mechanism, label by randomized response; the back learns from the "
            "releases. The central epsilon is proved for replacing one record among as many as the runs "
            "had, and rests on a shuffler that hides who sent what; in brackets, by which proof (the "
            "least of the privacy blanket and the clones), and below what no proof for this noise can go. "
            "Where the label is public, a text hides among those with "
            f"its label, {_RARER_LABEL:,} at least. Without a shuffler the local epsilon holds. All rows of"
            " a seed share one front, which was trained through PrivUnit's noise at epsilon 4; but for the "
            "row with the front as published (`release-once`, the default), which has learnt nothing of "
            "film reviews and narrows its output by a random map.",
            "A record of SST-2 is a sentence or a phrase of one: most phrases stand in the file beside "
            "their sentence. What is proved is about one record; a person with k records has k times the "
            "local epsilon, and the central ones (DP-SGD's too) grow with k, delta as well.",
            "Folded: text and label in one release under one epsilon, at t*, a back in closed form, from a "
            "front "
            "as published with ten phrases per label (five seeds), or from one that was trained on public "
            "reviews first (two; `results/closed-form.json`); a query is K-ary response at the same epsilon.",
            "The other rows have 0.2 t*: their back is trained by gradients through the noise that it will "
            "be "
            "asked through, and a small t answers one question best.",
            "DP-SGD (Opacus) was run for the central epsilons that the clones (0.6334) and the blanket prove "
            "for PrivUnit 4 + label 2.197, one record replaced, and for those that the blanket proves for "
            "folded records (not for folded 1: at the promise of folded 2 it learns nothing): that is twice "
            "what is accounted for one record added or removed, by "
            "group privacy, which is not tight; a direct proof would allow a few per cent less noise. It "
            "holds "
            "against whoever sees the weights, and needs no shuffler and no noise in a query, but someone "
            "who may see every record and every query; the others hold against whoever sees every release.",
            "DP-SGD starts from the published model, without the public reviews, so what lies between it "
            "and PrivUnit is not the mechanism's alone. Its recipe was chosen with MiniLM at epsilon 1 (see "
            "[positions](positions.md)) and not again at these promises; three epochs of batches of 1,024 "
            "gave 0.802 (0.807, 0.796) at 0.6334. PrivUnit's was chosen with MiniLM on these texts at "
            "epsilon 4.",
            "Accuracy is over noisy queries, each as private as a training text (DP-SGD's: over raw ones). "
            "Seeds in brackets. A back that learnt from noisy releases need not read clean ones: 0.509 is "
            "the larger class.",
        ),
    )


def _proved(row: str, jobs: tuple[Job, ...], local: Known, central: Callable[..., Derived]) -> list[Cell]:
    return [
        Cell(row, "local epsilon", known=local),
        Cell(row, "records", jobs, derived=_records),
        Cell(row, _CENTRAL, jobs, derived=central(DELTA), digits=4),
        Cell(row, _STRICTER, jobs, derived=central(_STRICT_DELTA), digits=4),
        Cell(row, "accuracy", jobs),
        Cell(row, "the same model without noise", jobs, metric="accuracy_without_noise"),
    ]


def _said(words: str) -> str:
    return words


def folded_accuracies() -> dict[str, list[tuple[float, float]]]:
    """Epsilons and accuracies of folded records, by their front: text and label in one release."""
    runs = json.loads(_CLOSED_FORM.read_text(encoding="utf-8"))
    return {
        front: [(run["epsilon"], run["accuracy"]) for run in runs[measured]]
        for front, measured in _FRONTS.items()
    }


def _folded(epsilon: float, front: str, measured: str) -> list[Cell]:
    """A folded record is one PrivUnit release at t*; its accuracy was measured by a benchmark of its own."""
    row, runs = f"folded PrivUnit {epsilon:g}, {front}", json.loads(_CLOSED_FORM.read_text())
    (run,) = (run for run in runs[measured] if run["epsilon"] == epsilon)
    count = int(run["records"])
    return [
        Cell(row, "local epsilon", known=partial(_said, f"{epsilon:g}, text and label")),
        Cell(row, "records", known=partial(_said, f"{count:,}")),
        Cell(row, _CENTRAL, known=partial(central_of, epsilon, None, 1.0, count, DELTA)),
        Cell(row, _STRICTER, known=partial(central_of, epsilon, None, 1.0, count, _STRICT_DELTA)),
        Cell(row, "accuracy", known=partial(_said, f"{run['accuracy']:.3f} ({run['seeds']} seeds)")),
    ]


@lru_cache(maxsize=64)
def central_of(text: float, label: float | None, share: float, records: int, delta: float) -> str:
    """The least proved central epsilon, by what, and the attack; ``share`` is PrivUnit's t over t*."""
    released = NoiseSpec(epsilon=text, threshold_share=share).build()
    parts = [released] if label is None else [released, RandomizedResponse(label, 2)]
    return _with_attack(shuffled_mechanism(compose(*parts), users=records, delta=delta))


def _with_attack(found: CentralBounds) -> str:
    upper, lower = found.upper.epsilon, found.lower.epsilon
    assert upper is not None
    assert lower is not None
    return f"{shown_up(upper, 4)} ({found.upper.bound}; attack {shown_down(lower, 4)})"


def _central(text: float, label: float, delta: float) -> Derived:
    """For the fewest records that any of the runs had; nothing is printed where a run does not say.

    Where it does not say its t, t = 0 counts, which is amplified least.
    """

    def proved(results: Sequence[Mapping[str, Any]]) -> str | None:
        records = _fewest(results)
        share = min(result.get("plan", {}).get("threshold_share") or 0.0 for result in results)
        return None if records is None else central_of(text, label, share, records, delta)

    return proved


def _central_of_gaussian(text: float, delta: float) -> Derived:
    """For a text with a public label, which hides among those with the same label: the rarer one counts."""

    def central(results: Sequence[Mapping[str, Any]]) -> str | None:
        if _fewest(results) != RECORDS["sst2"]:
            return None
        released = NoiseSpec(mechanism=GAUSSIAN, epsilon=text, delta=DELTA).build()
        sent = Deployment(released, shuffled=_RARER_LABEL, public_label=True)
        proved = sent.central(delta=delta)
        if proved is None or proved.upper.epsilon is None or proved.upper.bound == "local":
            return "no amplification is proved"
        return _with_attack(proved)

    return central


def _replaced(delta: float) -> Derived:
    """What DP-SGD proved, for one record replaced; the weakest of the runs, and only up to this delta."""

    def proved(results: Sequence[Mapping[str, Any]]) -> float | None:
        said = [as_replace_one(found["proved"]["epsilon"], found["proved"]["delta"]) for found in results]
        if any(more > delta for _, more in said):
            return None
        return round_up(max(twice for twice, _ in said))

    return proved


def _records(results: Sequence[Mapping[str, Any]]) -> str | None:
    records = _fewest(results)
    return None if records is None else f"{records:,}"


def _fewest(results: Sequence[Mapping[str, Any]]) -> int | None:
    # Stored results are older than the reports' one name for it.
    said = [result.get("records", result.get("training_records")) for result in results]
    known = [count for count in said if isinstance(count, int)]
    return min(known) if known and len(known) == len(said) else None
