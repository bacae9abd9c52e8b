"""The cells of each table that have the paper's own settings, each with the number that it printed.

All jobs come from `paper_recipe`. A cell knows where the paper printed its number (`Cell.printed`), and in
which order it is worth running (`Cell.priority`): 1 mechanisms, 2 positions and the attacks on their models,
3 matrix dimensions, sub-layers and tokens, 4 pre-training.

Where a row shares models, its table says so: 2C asks the models of S = C, but for the mechanisms on SST-2;
central 3 and 8 of IMDb and QQP ask the model of central 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from reproduction.jobs import FIRST, Job
from reproduction.model_setup import TASKS, ModelSetup, TaskSetting
from reproduction.tables.noise_jobs import query_job
from reproduction.tables.paper_recipe import (
    AUTHORS,
    AUTHORS_BY_ROW,
    PAPER,
    PROOF,
    PROOF_BY_ROW,
    attacked_positions,
    paper_dpsgd_job,
    paper_job,
    paper_positions,
)
from reproduction.tables.paper_sensitivity import (
    TRANSLATION,
    classical_epsilon,
    mvg_epsilon,
    real_epsilon,
    real_epsilon_of,
)
from reproduction.tables.table import Cell

__all__ = [
    "MASKED",
    "MASKED_SAYS",
    "WIKIPEDIA",
    "paper_attack_cells",
    "paper_cause_cells",
    "paper_column_cells",
    "paper_mechanism_cells",
    "paper_position_cells",
    "paper_position_job",
    "paper_pretraining_cells",
    "paper_row_cells",
    "paper_sublayer_cells",
    "paper_token_cells",
]

WIKIPEDIA: Final = "wikipedia"
"""Public text to pre-train on, by the name under which `--wikipedia` says where it lies."""
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_CENTRAL: Final = (1.0, 3.0, 8.0)
_WIDTHS: Final = (16, 64, 128, 256, 512, 768)
_WIDTH_EPSILONS: Final = (2.0, 4.0, 8.0, 12.0, 16.0)
_LENGTHS: Final = (16, 32, 64, 128, 256)
_FIGURE_EPSILON: Final = 16.0
_FIGURE_TEXTS: Final = 20_000
"""Figures 2 and 3, of which we have what the text says, are made from so many training texts of SST-2."""
_TOKEN_EPSILONS: Final = (8.0, 16.0, 24.0)
_DROPPED: Final = 0.2
"""The share of words that non-members lose; the paper drops or replaces tokens, and does not say how many."""
_ATTACKED_TEXTS: Final = 300
_NEXT_TO_NOTHING: Final = 1e-6
_OTHER_RATES: Final = (1e-4, 1e-3)
"""For DP-SGD beside the paper's 2e-5, its one rate for all experiments."""
_CAUSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "all texts": {},
    "all texts, rate 1e-4": {"learning_rate": 1e-4, "head_learning_rate": 1e-4},
    "all texts, ten epochs": {"epochs": 10.0},
    "all texts, float32": {"precision": "fp32"},
    "all texts, one epoch without noise first": {"warm_up_epochs": 1.0},
    "all texts, auxiliary loss": {"auxiliary_weight": 1.0},
    "all texts, seed 1": {"seed": 1},
}
"""What might explain that models at the embeddings learn nothing: one setting changed at a time."""
MASKED: Final = "mask handed to the back"
MASKED_SAYS: Final = (
    f"Rows that say *{MASKED}* do what the authors' code does: the back knows which rows are padding, and so "
    "how long each text is. No promise per text covers that; they are here to measure what it is worth."
)
_MASKED_ROWS: Final = (("encoder.1", 32), ("encoder.1", 128), ("encoder.1", 256), ("encoder.4", 128))
_MASKED_TASKS: Final = ("sst2", "qqp")


def _ask(run: Job, epsilon: float) -> Job:
    """The model of a run asked through other noise; as many draws as the run has."""
    if run.settings.get("epsilon") == epsilon:
        return run
    return query_job(run, epsilon, draws=int(run.settings.get("evaluation_draws", 10)))


def paper_mechanism_cells(setup: ModelSetup, task: TaskSetting) -> list[Cell]:
    """GM, aMGM and MVG over epsilon on one task, and without noise (Tables 4 and 5)."""
    columns = setup.columns
    proved = {epsilon: real_epsilon(epsilon) for epsilon in EPSILONS}
    authors = {epsilon: paper_job(setup, task, "output", proved[epsilon]) for epsilon in EPSILONS}
    mvg = {epsilon: mvg_epsilon(epsilon, rows=1, columns=columns) for epsilon in EPSILONS}
    least = paper_job(setup, task, "output", mvg[EPSILONS[-1]])
    clean = paper_job(setup, task, "output", None)
    cells: list[Cell] = []
    for epsilon in EPSILONS:
        column = f"{epsilon:g}"
        weakest = min(authors.values(), key=lambda run: abs(run.settings["epsilon"] - epsilon))
        own = task.name == "sst2"
        rows: dict[str, tuple[Job, tuple[str, ...] | None]] = {
            f"aMGM, {AUTHORS}": (authors[epsilon], ("Table 4", f"{task.title} aMGM", column)),
            f"GM, {AUTHORS}": (
                paper_job(setup, task, "output", classical_epsilon(epsilon)),
                ("Table 4", f"{task.title} GM", column),
            ),
            "MVG": (_ask(least, mvg[epsilon]), None),  # printed once for all five, as about 0.5
            f"aMGM, {PROOF}": (
                paper_job(setup, task, "output", epsilon) if own else _ask(weakest, epsilon),
                None,
            ),
            "without noise": (clean, ("Table 5", "Non-private", task.title)),
        }
        cells += [
            Cell(f"{task.title}: {name}", column, (job,), printed=printed, priority=1)
            for name, (job, printed) in rows.items()
        ]
    return cells


def _sigma_epsilon(task: TaskSetting, central: float, sensitivity: float) -> float:
    return real_epsilon_of(TRANSLATION[task.name][central], sensitivity=sensitivity)


def paper_position_job(setup: ModelSetup, task: TaskSetting, cut: str, central: float) -> Job:
    """S = C at what the paper calls a central epsilon, labels randomized; SST-2 has a model for each."""
    trained_at = central if task.name == "sst2" else _CENTRAL[0]
    run = paper_job(setup, task, cut, _sigma_epsilon(task, trained_at, 1.0), labels=True)
    return _ask(run, _sigma_epsilon(task, central, 1.0))


def paper_position_cells(setup: ModelSetup, task: TaskSetting) -> list[Cell]:
    """Every position, DP-SGD and the model without noise at three central epsilons (Table 5)."""
    title, cells, columns = task.title, list[Cell](), {f"{c:g}": c for c in _CENTRAL}
    for cut, name in paper_positions(setup).items():
        cells += [
            Cell(
                f"{title}: {cut}, {AUTHORS}",
                column,
                (paper_position_job(setup, task, cut, central),),
                printed=("Table 5", name, f"{title} {column}"),
                priority=2,
            )
            for column, central in columns.items()
        ]
    for cut in paper_positions(setup):
        run = paper_position_job(setup, task, cut, _CENTRAL[0])
        cells += [
            Cell(
                f"{title}: {cut}, {PROOF}",
                column,
                (_ask(run, _sigma_epsilon(task, central, 2.0)),),
                priority=2,
            )
            for column, central in columns.items()
        ]
    clean = paper_job(setup, task, "output", None)
    for column, central in columns.items():
        private = paper_dpsgd_job(setup, task, central)
        printed = ("Table 5", "DP-SGD", f"{title} {column}")
        cells.append(Cell(f"{title}: DP-SGD, batches of 32", column, (private,), printed=printed, priority=2))
        printed = ("Table 5", "Non-private", title)
        cells.append(Cell(f"{title}: without noise", column, (clean,), printed=printed, priority=2))
    if task.name == "sst2":
        cells += [
            Cell(f"{title}: DP-SGD, batches of 32, rate {rate:g}", "8", (job,), priority=5)
            for rate in _OTHER_RATES
            for job in (paper_dpsgd_job(setup, task, 8.0, learning_rate=rate),)
        ]
    if task.name in _MASKED_TASKS:
        cells += [
            Cell(
                f"{title}: {cut}, S = C, {MASKED}",
                column,
                (_masked(paper_job(setup, task, cut, _sigma_epsilon(task, central, 1.0), labels=True)),),
                printed=("Table 5", name, f"{title} {column}"),
                priority=5,
            )
            for cut, name in paper_positions(setup).items()
            if cut.startswith("encoder")
            for column, central in columns.items()
        ]
    return _in_row_order(cells)


def paper_row_cells(setup: ModelSetup) -> list[Cell]:
    """Accuracy against n at five positions, epsilon 16 (Figure 2: we have no numbers of it)."""
    return [
        cell
        for cut in attacked_positions(setup)
        for n in _LENGTHS
        for cell in _of_figure(setup, cut, cut, str(n), rows=n)
    ]


def paper_cause_cells(setup: ModelSetup) -> list[Cell]:
    """The embeddings at epsilon 16, S = C, with one setting of the recipe changed at a time."""
    task, proved = TASKS["sst2"], real_epsilon(_FIGURE_EPSILON)
    cells = [
        Cell(f"embeddings, S = C, {name}", str(n), (job,), priority=5)
        for name, changed in _CAUSES.items()
        for n in (32, 128)
        if n == 32 or name in ("all texts", "all texts, rate 1e-4", "all texts, auxiliary loss")
        for job in (paper_job(setup, task, "embeddings", proved, **{"rows": n, **changed}),)
    ]
    for n in (32, 128):
        job = _masked(paper_job(setup, task, "embeddings", proved, rows=n))
        cells.append(Cell(f"embeddings, S = C, all texts, {MASKED}", str(n), (job,), priority=5))
    for cut, n in _MASKED_ROWS:
        if cut in paper_positions(setup):
            job = _masked(paper_job(setup, task, cut, proved, rows=n, train_limit=_FIGURE_TEXTS))
            cells.append(Cell(f"{cut}, S = C, {MASKED}", str(n), (job,), priority=5))
    return cells


def _masked(run: Job) -> Job:
    return Job("masked", run.settings, weight=run.weight)


def _of_figure(setup: ModelSetup, cut: str, row: str, column: str, **settings: Any) -> list[Cell]:
    proved = real_epsilon(_FIGURE_EPSILON)
    run = paper_job(setup, TASKS["sst2"], cut, proved, train_limit=_FIGURE_TEXTS, **settings)
    asked = {AUTHORS: run, PROOF: _ask(run, _FIGURE_EPSILON)}
    return [Cell(f"{row}, {name}", column, (job,), priority=3) for name, job in asked.items()]


def paper_sublayer_cells(setup: ModelSetup, names: dict[str, str]) -> list[Cell]:
    """Every sub-layer of six blocks, epsilon 16 (Figure 3: its text has one number)."""
    blocks = [int(cut.rpartition(".")[2]) for cut in paper_positions(setup) if cut.startswith("encoder")]
    return [
        cell
        for name, point in names.items()
        for k in blocks
        for cell in _of_figure(setup, f"encoder.{k}{point}", name, f"encoder {k}")
    ]


def paper_column_cells(setup: ModelSetup) -> list[Cell]:
    """Accuracy against d' at `output` (Table 3); the model's own width stands beside the paper's 768."""
    widths = {width: str(width) for width in _WIDTHS if width < setup.columns} | {0: "768"}
    cells = []
    for width, printed in widths.items():
        run = paper_job(setup, TASKS["sst2"], "output", real_epsilon(8.0), width=width)
        for epsilon in _WIDTH_EPSILONS:
            column, proved = str(width or setup.columns), real_epsilon(epsilon)
            trained = width == 0 and epsilon in EPSILONS
            own = paper_job(setup, TASKS["sst2"], "output", proved) if trained else _ask(run, proved)
            where = ("Table 3", printed, f"{epsilon:g}")
            cells.append(Cell(f"{epsilon:g}, {AUTHORS}", column, (own,), printed=where, priority=3))
            cells.append(Cell(f"{epsilon:g}, {PROOF}", column, (_ask(run, epsilon),), priority=3))
    return sorted(cells, key=lambda cell: (AUTHORS not in cell.row, float(cell.row.split(",")[0])))


def paper_pretraining_cells(setup: ModelSetup) -> list[Cell]:
    """Fine-tuning at the input embeddings, with and without noisy pre-training before (Table 6)."""
    cells = []
    for epsilon in (2.0, 4.0, 8.0, 16.0):
        proved, column = real_epsilon(epsilon), f"{epsilon:g}"
        plan: dict[str, Any] = {
            "model": setup.model,
            "corpus": WIKIPEDIA,
            "cut": "embeddings",
            "mechanism": "matrix-gaussian",
            "epsilon": proved,
            "length": PAPER.rows,
            "steps": 700,  # about one pass over 2.2 million words
            "batch": PAPER.batch,
            "learning_rate": PAPER.learning_rate,
            "least_noise": 1.0,
            "bf16": True,
        }
        raw = paper_job(setup, TASKS["sst2"], "embeddings", proved)
        started = Job("pretrain", plan, weight=2.0)
        noisy = Job("finetune", {**raw.settings, "model": FIRST}, after=(started,), weight=raw.weight)
        for name, job in (("Raw BERT", raw), ("Noisy BERT", noisy)):
            row = "as published" if job is raw else "pre-trained on Wikipedia through all of the noise"
            printed = ("Table 6", name, column)
            cells.append(Cell(f"embeddings: {row}, {AUTHORS}", column, (job,), printed=printed, priority=4))
            cells.append(Cell(f"embeddings: {row}, {PROOF}", column, (_ask(job, epsilon),), priority=4))
    return _in_row_order(cells)


def paper_attack_cells(setup: ModelSetup) -> list[Cell]:
    """Membership, inversion and attribute inference (Tables 7 to 9) on the models of Table 5."""
    return [*_membership_cells(setup), *_inversion_cells(setup), *_attribute_cells(setup)]


def _membership_job(run: Job) -> Job:
    wanted = {"limit": 872, "draws": 1, "scores": ["entropy", "confidence"], "dropped": _DROPPED}
    return Job("membership", wanted, after=(run,), weight=0.8)


def _membership_cells(setup: ModelSetup) -> list[Cell]:
    task = TASKS["sst2"]
    attacked: list[tuple[str, str, Job]] = [
        ("without noise", "inf: Non-private", paper_job(setup, task, "output", None))
    ]
    for central in _CENTRAL:
        private = paper_dpsgd_job(setup, task, central)
        attacked.append((f"DP-SGD, central {central:g}", f"{central:g}: DP-SGD", private))
        for cut, name in attacked_positions(setup).items():
            run = paper_position_job(setup, task, cut, central)
            attacked.append((f"{cut}, central {central:g}", f"{central:g}: DP-Forward ({name})", run))
    return [
        Cell(
            f"membership: {row}",
            score.lower(),
            (_membership_job(run),),
            f"{score.lower()}.success",
            printed=("Table 7", theirs, score),
            priority=2,
        )
        for row, theirs, run in attacked
        for score in ("Entropy", "Confidence")
    ]


def _inversion_cells(setup: ModelSetup) -> list[Cell]:
    cells = []
    for task in TASKS.values():
        forward = paper_job(
            setup, task, "embeddings", _sigma_epsilon(task, _trained_at(task), 1.0), labels=True
        )
        fronts: dict[str, tuple[tuple[Job, ...], dict[str, Any]]] = {
            "Non-private": ((), {"model": setup.model, "mechanism": "none"}),
            "DP-SGD": ((paper_dpsgd_job(setup, task, 8.0),), {"mechanism": "none"}),
            "DP-Forward": (
                (forward,),
                {"mechanism": "matrix-gaussian", "epsilon": _sigma_epsilon(task, 8.0, 1.0)},
            ),
        }
        for name, (after, noise) in fronts.items():
            for kind, short in (("nearest", "NN"), ("gradient", "Grad")):
                settings = {
                    **noise,
                    "task": task.name,
                    "split": task.split,
                    "cut": "embeddings",
                    "rows": PAPER.rows,
                    "limit": _ATTACKED_TEXTS,
                    "attack": kind,
                }
                job = Job("inversion", settings, after, weight=1.0 if kind == "gradient" else 0.6)
                row = "without noise" if name == "Non-private" else f"{name}, central 8"
                printed = ("Table 8", name, f"{short} {task.title}")
                column = f"{task.title}, {kind}"
                cells.append(
                    Cell(
                        f"inversion: {row}", column, (job,), "success", digits=4, printed=printed, priority=2
                    )
                )
    return _in_row_order(cells)


def _trained_at(task: TaskSetting) -> float:
    """Through which central epsilon's noise the model that stands for 8 was trained."""
    return 8.0 if task.name == "sst2" else _CENTRAL[0]


def _attribute_cells(setup: ModelSetup) -> list[Cell]:
    task = TASKS["sst2"]
    plain: dict[str, Any] = {"mechanism": "none", "cut": "output"}
    fronts: list[tuple[str, str, Job, dict[str, Any]]] = [
        ("without noise", "Non-private", paper_job(setup, task, "output", None), plain),
        ("DP-SGD, central 8", "DP-SGD", paper_dpsgd_job(setup, task, 8.0), plain),
    ]
    for cut, name in attacked_positions(setup).items():
        run = paper_position_job(setup, task, cut, 8.0)
        noise = {"mechanism": "matrix-gaussian", "epsilon": run.settings["epsilon"], "cut": cut}
        fronts.append((f"{cut}, central 8", f"DP-Forward ({name})", run, noise))
    cells = []
    for row, theirs, run, noise in fronts:
        settings = {**noise, "task": "imdb", "test_task": "sst2", "rows": PAPER.rows}
        job = Job("attribute", settings, after=(run,), weight=1.5)
        for number, genre in enumerate(("action", "comedy", "drama", "horror")):
            cells.append(
                _attribute_cell(row, genre, job, f"recall_by_value.{number}", ("Table 9", theirs, genre))
            )
        cells.append(_attribute_cell(row, "overall", job, "success", ("Table 9", theirs, "Overall")))
    return cells


def _attribute_cell(row: str, column: str, job: Job, metric: str, printed: tuple[str, ...]) -> Cell:
    return Cell(f"attribute: {row}", column, (job,), metric, printed=printed, priority=2)


def paper_token_cells(setup: ModelSetup) -> list[Cell]:
    """Token level at the embeddings and at Q, K, V of the first attention, with both attacks (Table 10)."""
    task, cells = TASKS["sst2"], list[Cell]()
    cuts = {"embeddings": "Embedding", "encoder.1.qkv": "Attention"}
    for cut, name in cuts.items():
        for epsilon in _TOKEN_EPSILONS:
            run = paper_job(setup, task, cut, real_epsilon(epsilon), unit="token")
            column = f"{epsilon:g}"
            cells.append(Cell(f"{cut}, {AUTHORS_BY_ROW}", column, (run,), priority=3))
            cells.append(Cell(f"{cut}, {PROOF_BY_ROW}", column, (_ask(run, epsilon),), priority=3))
            cells += [
                Cell(
                    f"membership, {score.lower()}: {cut}, {AUTHORS_BY_ROW}",
                    column,
                    (_membership_job(run),),
                    f"{score.lower()}.success",
                    printed=("Table 10", f"{column} {name}", score),
                    priority=3,
                )
                for score in ("Entropy", "Confidence")
            ]
    # The exact curve proves an epsilon of 0 for MVG's noise: this is less noise, and a plan needs a number.
    mvg = paper_job(setup, task, "embeddings", _NEXT_TO_NOTHING, train_limit=_FIGURE_TEXTS)
    cells += [Cell("MVG", f"{epsilon:g}", (mvg,), priority=3) for epsilon in _TOKEN_EPSILONS]
    return _in_row_order(cells)


def _in_row_order(cells: Iterable[Cell]) -> list[Cell]:
    found = list(cells)
    order = list(dict.fromkeys(cell.row for cell in found))
    return sorted(found, key=lambda cell: order.index(cell.row))
