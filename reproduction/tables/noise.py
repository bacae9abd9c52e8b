"""Tables about the noise itself: how many rows and columns, which sub-layer, which mechanism.

All runs are the paper's regime (`end-to-end`): the training texts are not protected, later queries are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reproduction.jobs import Job, digest_of
from reproduction.model_setup import TASKS, ModelSetup, TaskSetting
from reproduction.tables.paper_sensitivity import classical_epsilon, mvg_epsilon, real_epsilon
from reproduction.tables.table import Cell, Chart, Table

__all__ = [
    "GAUSSIAN",
    "columns",
    "finetune_job",
    "mechanisms",
    "non_private_job",
    "query_job",
    "rows",
    "sublayers",
]

GAUSSIAN: Final = "matrix-gaussian"
_PAPER_EPSILON: Final = 8.0
_EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
_ROWS: Final = (8, 16, 32, 64)
_COLUMNS: Final = (4, 16, 64, 256)
_SHORT: Final[Mapping[str, Any]] = {"epochs": 1.0}
"""Tables of many cells get one epoch a cell; the order of their cells is what they are about."""
_SLOWLY: Final[Mapping[str, Any]] = {"learning_rate": 5e-5, "head_learning_rate": 5e-4}
"""At `embeddings` all blocks lie behind the noise: at the rates of the recipe they often learn nothing."""
_TRAINED_AT: Final = (4.0, 8.0, 16.0, 40.0)
"""The noise of training at `output`: a run serves all budgets from its own up to the next."""
_ALIKE: Final = (
    "Inner cuts get one noisy epoch with d' = 16 (`embeddings` 4, at a quarter of the rate), `output` its "
    "own recipe of four warm-up epochs and one noisy epoch with d' = 4. 0.509 is the larger class of SST-2: "
    "such a model learnt nothing."
)
_OF_EIGHT = (
    f"All cells: what the paper calls epsilon {_PAPER_EPSILON:g} per text, of which {{real:g}} is proved."
)


def finetune_job(
    setup: ModelSetup,
    task: TaskSetting,
    cut: str,
    epsilon: float,
    *,
    mechanism: str = GAUSSIAN,
    weight: float = 4.0,
    **settings: Any,
) -> Job:
    """Fine-tuning through the noise of a proved epsilon, as the paper does it."""
    plan = {
        **task.settings,
        "model": setup.model,
        "regime": "end-to-end",
        "cut": cut,
        "mechanism": mechanism,
        "epsilon": epsilon,
        **({"precision": "fp32"} if cut == "output" else {}),
        **(_SLOWLY if cut == "embeddings" else {}),
        **settings,
    }
    return Job("finetune", plan, weight=weight)


def query_job(run: Job, epsilon: float, **settings: Any) -> Job:
    """The model of a run, asked through other noise, of a proved epsilon; the run itself, if it has that."""
    if run.settings.get("epsilon") == epsilon and not settings:
        return run
    asking = {"epsilon": epsilon, "draws": 10, **settings}
    return Job("queries", {**asking, "noise_seed": _seed_of(run, asking)}, after=(run,), weight=0.2)


def _seed_of(run: Job, asking: Mapping[str, Any]) -> int:
    """A stream of noise of its own for each question: cells that share a model must not share their luck."""
    return int(digest_of("queries", asking, [run.digest])[:8], 16)


def non_private_job(setup: ModelSetup, task: TaskSetting) -> Job:
    """The undefended model."""
    plan = {**task.settings, "model": setup.model, "regime": "end-to-end", "mechanism": "none"}
    return Job("finetune", {**plan, "cut": "output", "precision": "fp32"}, weight=4.0)


def _says_real() -> str:
    return _OF_EIGHT.format(real=real_epsilon(_PAPER_EPSILON))


def rows(setup: ModelSetup) -> Table:
    """Accuracy against n at five cuts."""
    real = real_epsilon(_PAPER_EPSILON)
    cells = tuple(
        Cell(cut, str(n), (_short_job(setup, cut, real, rows=n),))
        for cut in setup.some_positions
        for n in _ROWS
    )
    return Table(
        "rows",
        "How many rows cross: accuracy against n",
        "matrix dimensions: sequence length n at five positions (SST-2)",
        "cut \\ n",
        cells,
        (
            _says_real(),
            "A text longer than n loses its end; a shorter one is filled with rows of zeros.",
            _ALIKE,
        ),
        Chart("rows n", "accuracy", {"SST-2": tuple(setup.some_positions)}, log=True),
    )


def _short_job(setup: ModelSetup, cut: str, epsilon: float, **settings: Any) -> Job:
    """A cell of a large table, on SST-2."""
    pace = {} if cut == "output" else _SHORT
    return finetune_job(setup, TASKS["sst2"], cut, epsilon, weight=2.0, **{**pace, **settings})


def columns(setup: ModelSetup) -> Table:
    """Accuracy against d' and epsilon."""
    cut = f"encoder.{max(1, setup.blocks - 1)}"
    widths = [*(width for width in _COLUMNS if width < setup.columns), 0]
    epsilons = (2.0, 4.0, 8.0, 16.0)
    real = real_epsilon
    trained = {
        width: finetune_job(
            setup, TASKS["sst2"], cut, real(_PAPER_EPSILON), weight=2.0, epochs=2.0, width=width
        )
        for width in widths
    }
    cells = tuple(
        Cell(
            f"{epsilon:g} (proved {real(epsilon):g})",
            str(width or setup.columns),
            (query_job(trained[width], real(epsilon)),),
        )
        for epsilon in epsilons
        for width in widths
    )
    return Table(
        "columns",
        f"How many columns cross: accuracy against d' at {cut}",
        "matrix dimensions: projection to d' columns, over epsilon (SST-2)",
        "paper's epsilon \\ d'",
        cells,
        (
            f"The last column is the model's own width, {setup.columns}, without maps M1 and M2.",
            f"Each column is one model, trained through the noise of the paper's epsilon {_PAPER_EPSILON:g}.",
        ),
        Chart("columns d'", "accuracy", {"SST-2": tuple(dict.fromkeys(c.row for c in cells))}, log=True),
    )


def sublayers(setup: ModelSetup) -> Table:
    """Accuracy at every sub-layer of every block."""
    real = real_epsilon(_PAPER_EPSILON)
    names = {
        "attention": ".attention",
        "attention, add and norm": ".attention_norm",
        "feed-forward": ".ffn",
        "feed-forward, add and norm": "",
    }
    cells = tuple(
        Cell(name, f"encoder {k}", (_short_job(setup, f"encoder.{k}{point}", real),))
        for name, point in names.items()
        for k in range(1, setup.blocks + 1)
    )
    return Table(
        "sublayers",
        "Where inside a block: accuracy at every sub-layer",
        "sub-layers of every encoder (SST-2)",
        "sub-layer \\ block",
        cells,
        (
            _says_real(),
            "Only one tensor may cross: at `attention` and `feed-forward` the residual is dropped, in "
            "training and in queries.",
            _ALIKE,
        ),
        Chart("block", "accuracy", {"SST-2": tuple(names)}),
    )


def mechanisms(setup: ModelSetup) -> Table:
    """GM, aMGM and MVG over epsilon, as the paper has them; the right sensitivity and PrivUnit beside."""
    cells: list[Cell] = []
    lines: dict[str, tuple[str, ...]] = {}
    for task in TASKS.values():
        before = len(cells)
        clean = non_private_job(setup, task)
        for epsilon in _EPSILONS:
            cells += _of_epsilon(setup, task, epsilon)
        cells += [Cell(f"{task.title}: without noise", f"{epsilon:g}", (clean,)) for epsilon in _EPSILONS]
        lines[task.title] = tuple(dict.fromkeys(cell.row for cell in cells[before:]))
    return Table(
        "mechanisms",
        "Which noise: accuracy against epsilon at `output`",
        "GM, MVG and aMGM over epsilon, three tasks",
        "mechanism \\ epsilon per text",
        tuple(cells),
        (
            "S = C is the paper's sensitivity. What it calls epsilon "
            + ", ".join(f"{e:g} is {real_epsilon(e):g}" for e in _EPSILONS)
            + ". Rows with S = 2C and PrivUnit have the epsilon that they say.",
            "GM has no theorem from epsilon 1 on; its rows are the noise of its formula. MVG is the "
            "noise that its own theorem asks for, put on the undefended model's full width.",
            "Gaussian cells share models: one is trained through the noise of a proved epsilon of 4, 8, "
            "16 and 40 each, and asked through the noise of the cell, in a stream of its own. A cell that is "
            "a run itself (S = 2C at 4, 8 and 16; PrivUnit) has the stream of its seed, 0: such cells share "
            "their luck.",
            "SST-2: 872 sentences, 0.509 of the larger class. IMDb: 5,000 of 25,000 test reviews, "
            "balanced. QQP: trained on 19,055 balanced pairs of a subset, not GLUE's split, measured on "
            "20,212 pairs of which 0.625 are of the larger class, so that a cell below 0.625 is worse "
            "than always naming that one; MiniLM saw Quora pairs when it was made.",
            "Two equally frequent classes at opposite points are the best that a cut at `output` can "
            "make of a text, which gives the ceilings (`reproduction.tables.paper_sensitivity`).",
        ),
        Chart("epsilon per text", "accuracy", lines, log=True),
    )


def _of_epsilon(setup: ModelSetup, task: TaskSetting, epsilon: float) -> list[Cell]:
    mvg = mvg_epsilon(epsilon, rows=1, columns=setup.columns)

    def cell(name: str, job: Job) -> Cell:
        return Cell(f"{task.title}: {name}", f"{epsilon:g}", (job,))

    def gaussian(proved: float) -> Job:
        trained_at = max(e for e in _TRAINED_AT if e <= max(proved, _TRAINED_AT[0]))
        return query_job(finetune_job(setup, task, "output", trained_at), proved)

    pure = finetune_job(setup, task, "output", epsilon, mechanism="privunit", weight=7.0)
    return [
        cell("aMGM, S = C (the paper's)", gaussian(real_epsilon(epsilon))),
        cell("GM, S = C", gaussian(classical_epsilon(epsilon))),
        cell("MVG", query_job(non_private_job(setup, task), mvg)),
        cell("aMGM, S = 2C (right)", gaussian(epsilon)),
        cell("PrivUnit (ours)", pure),
    ]
