"""The text of a page: one for each table, and the index.

Guarantees:
    A page depends on the tables and on the results only: no date, no path of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reproduction.jobs import in_order
from reproduction.model_setup import TASKS, Subject
from reproduction.render.ceilings import ceilings
from reproduction.render.claims import claims
from reproduction.render.figures import has_figure
from reproduction.render.markdown import Found, grid, largest_half_width, number, pivot
from reproduction.render.origin import origin
from reproduction.render.paper_values import Printed, beside
from reproduction.tables import paper_sensitivity as convention
from reproduction.tables.table import Table
from reproduction.tables.training import CORPUS

__all__ = ["Material", "figure_name", "index_page", "table_page"]

_RESULTS: Final = "results/paper.jsonl"
_RENDER: Final = f"dpf reproduce --render docs --results {_RESULTS}"
_PAPERS_MODEL: Final = "bert-base-uncased"
_TITLES: Final = {"minilm": "MiniLM (all-MiniLM-L6-v2)", _PAPERS_MODEL: "BERT-base"}
_NOT_PRINTED: Final = (
    "The cells that the paper printed are not in this repository. Bring them with `--printed FILE`, a "
    "file of JSON `{table: {row: {column: number}}}` with the names of these pages and shares between 0 "
    "and 1; each page then gets a second table with the differences."
)


@dataclass(frozen=True, kw_only=True)
class Material:
    """What pages are made of: lines of the results file by digest, what they found, and typed cells."""

    subject: Subject
    lines: Mapping[str, Mapping[str, Any]]
    found: Found
    printed: Printed

    @property
    def model(self) -> str:
        """What the model is called on a page; of a folder only its name."""
        return Path(self.subject.model).name

    @property
    def title(self) -> str:
        """The same in a sentence."""
        return _TITLES.get(self.subject.model, self.model)


def figure_name(table: Table) -> str:
    """The file of a table's chart."""
    return f"paper-{table.name}.png"


def table_page(table: Table, material: Material) -> str:
    """A table: how it is made, what to know, its cells, its figure and where they come from."""
    found = material.found
    cells, run = _counts(table, found)
    parts = [
        f"# {table.title}",
        f"Stands for the paper's: {table.item}.{_model(table, material)}",
        f"```console\n$ {_command(table, material)}\n$ {_RENDER}\n```",
        _hint(table),
        "\n".join(f"* {sentence}" for sentence in table.says),
        "## The table",
        "" if run else "**Not run.** No cell of this table has a result yet.",
        pivot(table, found),
        _precision(table, found),
    ]
    if run < cells and run:
        parts.append(f"{run} of {cells} measured cells are there.")
    if has_figure(table, found):
        parts.append(f"![{table.title.replace('`', '')}](../figures/{figure_name(table)})")
    if table.name == "mechanisms":
        parts.append(ceilings(table, found))
    parts += [beside(table, material.printed, found), origin(table, material.lines, _RESULTS)]
    return _joined(parts)


def _model(table: Table, material: Material) -> str:
    """Which model its steps use; a table whose steps name none has its own."""
    named = any("model" in step.settings for step in in_order(table.steps()))
    return f" Model: {material.title}." if named else ""


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _counts(table: Table, found: Found) -> tuple[int, int]:
    """How many cells are measured (not computed), and how many of them are there."""
    measured = [cell for cell in table.cells if cell.steps]
    return len(measured), sum(cell.value(found).run for cell in measured)


def _data(table: Table) -> list[str]:
    """The tasks and corpora that its steps read, in a fixed order."""
    needed = {
        str(step.settings[name])
        for step in in_order(table.steps())
        for name in ("task", "public_task", "corpus")
        if step.settings.get(name) is not None
    }
    return [name for name in TASKS if name in needed] + sorted(needed - set(TASKS))


def _command(table: Table, material: Material) -> str:
    words = [f"dpf reproduce {table.name}"]
    if material.subject.model != Subject().model:
        words.append(f"--model {material.model}")
    words += ["--corpus PATH" if name == CORPUS else f"--data {name}=PATH" for name in _data(table)]
    if len(set(table.steps())) > 1:
        words.append("--workers 14")
    return " ".join([*words, f"--results {_RESULTS}"])


def _hint(table: Table) -> str:
    row = next(cell.row for cell in table.cells if cell.steps)
    where = "PATH is a folder or file with the data. " if _data(table) else ""
    return (
        f'{where}`--cell "{row}"` runs only the cells whose row and column hold these words; it may be '
        "repeated. What is finished is not done again."
    )


def _precision(table: Table, found: Found) -> str:
    half = largest_half_width(table, found)
    if half is None:
        return ""
    return f"The widest 95 % interval of a cell is its number plus or minus {number(half, 3)}."


def index_page(tables: Mapping[str, Table], material: Material) -> str:
    """What these pages are, how to read them, every table, the abstract's claims, and what is not run."""
    found = material.found
    claimed = {claim: (ours, f"[{name}]({name}.md)") for claim, ours, name in claims(tables, found)}
    parts = [
        "# The paper's tables",
        "*DP-Forward: Fine-tuning and Inference on Language Models with Differential Privacy in Forward "
        "Pass* (CCS 2023), table by table: what it measured, made again by one command each with "
        f"{material.title}, and the honest numbers beside it. Every number of ours is computed, or read "
        "from a file of results.",
        "## How to read them",
        _reading(),
        "## The tables",
        grid("table", ("stands for", "measured cells"), _listed(tables, found)),
        f"All pages are written by one command:\n\n```console\n$ {_RENDER}\n```",
        "## What the abstract claims, and what we find",
        "Claims of the paper's abstract, in our words, for its model and its convention. Ours are "
        "computed from the cells of the table named; pp are percentage points. S = C is the paper's "
        "sensitivity, S = 2C the right one.",
        grid("the abstract", ("here", "table"), claimed),
        "The columns of `positions` carry the paper's central epsilons, which nobody has proved for "
        "DP-Forward trained `end-to-end`; DP-SGD's are proved. The first two rows compare as the paper "
        "does, which is not like with like, and take the best of many cells of SST-2 (the one task with "
        "both sensitivities) on the texts that recipes were chosen on: two points are noise. "
        "[proved-training](proved-training.md) has what is proved.",
        _NOT_PRINTED,
        "## What is not run",
        _not_run(tables, material),
    ]
    return _joined(parts)


def _reading() -> str:
    eight = convention.real_epsilon(8.0)
    return "\n".join(
        f"* {line}"
        for line in (
            "S = C is the sensitivity that the paper calibrates with; two texts can differ by 2C. What "
            f"the paper calls epsilon 8 is {eight:g} by the proof. Rows with S = C are what it did; rows "
            "with S = 2C keep their promise.",
            "`end-to-end` is the paper's training: it protects later queries and no training text.",
            "A cell is one run, or a mean over seeds with each seed in brackets. Below a table stands the "
            "widest 95 % interval (over texts and draws of the noise; another seed moves a cell as well).",
            "An epsilon that a formula gives is rounded up.",
            "A commit with a + had changes on top when the steps were run.",
            "`not run`: no result for this cell, with just these settings, is in the file. `not "
            "measured`: it was run where this could not be measured.",
        )
    )


def _listed(tables: Mapping[str, Table], found: Found) -> dict[str, tuple[str, str]]:
    listed = {}
    for table in tables.values():
        cells, run = _counts(table, found)
        listed[f"[{table.title}]({table.name}.md)"] = (table.item, f"{run} of {cells}")
    return listed


def _not_run(tables: Mapping[str, Table], material: Material) -> str:
    lines = []
    if material.model != _PAPERS_MODEL:
        example = _command(tables["positions"], material).replace(
            "dpf reproduce positions", f"dpf reproduce positions --model {_PAPERS_MODEL}"
        )
        lines.append(
            f"BERT-base, the paper's model: not run (its weights need a network). `{example}` makes its "
            "table."
        )
    for table in tables.values():
        cells, run = _counts(table, material.found)
        if run < cells:
            what = "nothing of it is run" if not run else f"{cells - run} of {cells} cells are not run"
            lines.append(f"[{table.name}]({table.name}.md): {what}. Its page has the command.")
    lines.append("The paper's own numbers: see above.")
    return "\n".join(f"* {line}" for line in lines)
