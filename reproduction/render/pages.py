"""The text of the pages: one for each table, and the index.

Guarantees:
    A page depends on the tables and on the results only: no date, no path of a machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reproduction.jobs import in_order
from reproduction.model_setup import TASKS, ModelSetup
from reproduction.render.ceilings import ceilings_section, guess_rates_section
from reproduction.render.claims import claims
from reproduction.render.differences import differences_section
from reproduction.render.figures import has_chart
from reproduction.render.findings import findings_section
from reproduction.render.markdown import grid, largest_half_width, number, pivot
from reproduction.render.paper_values import PaperValues, paper_values_section
from reproduction.render.svg_files import picture
from reproduction.tables.paper_rows import WIKIPEDIA
from reproduction.tables.paper_sensitivity import real_epsilon
from reproduction.tables.table import Found, Table
from reproduction.tables.training import CORPUS

__all__ = ["PageInputs", "figure_name", "index_page", "table_page"]

_COMMAND: Final = "python -m reproduction"
_RESULTS: Final = "results/paper.jsonl"
_RENDER: Final = f"{_COMMAND} --render docs --results {_RESULTS}"
_PAPERS_MODEL: Final = "bert-base-uncased"
_TITLES: Final = {"minilm": "MiniLM (all-MiniLM-L6-v2)", _PAPERS_MODEL: "BERT-base"}
_VERSIONS: Final = {
    "dp_forward": "dp-forward",
    "python": "Python",
    "torch": "torch",
    "transformers": "transformers",
}
_PRINTED: Final = (
    "The cells that the paper printed are in `reproduction/printed.json`, under the paper's own names, and "
    "each "
    "page sets ours beside them. `--printed FILE` brings others: JSON `{table: {row: {column: number}}}` "
    "with the "
    "names of these pages and shares between 0 and 1. Of the paper's figures we have only the numbers that "
    "its text gives."
)


@dataclass(frozen=True, kw_only=True)
class PageInputs:
    """What pages are made of: lines of the results file by digest, and the paper's own values."""

    setup: ModelSetup
    lines: Mapping[str, Mapping[str, Any]]
    paper_values: PaperValues

    @property
    def found(self) -> Found:
        """What finished jobs found, by digest."""
        return {digest: line["result"] for digest, line in self.lines.items()}

    @property
    def model(self) -> str:
        """What the model is called on a page; of a folder only its name."""
        return Path(self.setup.model).name

    @property
    def title(self) -> str:
        """The same in a sentence."""
        return _TITLES.get(self.setup.model, self.model)


def figure_name(table: Table) -> str:
    """The name of a table's chart."""
    return f"paper-{table.name}"


def table_page(table: Table, inputs: PageInputs) -> str:
    """A table: how it is made, what to know, its cells, its figure and where they come from."""
    found = inputs.found
    cells, run = table.counts(found)
    parts = [
        f"# {table.title}",
        f"Stands for the paper's: {table.item}.{_model(table, inputs)}",
        f"```console\n$ {_command(table, inputs)}\n$ {_RENDER}\n```",
        _hint(table),
        "\n".join(f"* {sentence}" for sentence in table.says),
        findings_section(table, inputs.paper_values, found),
        "## The table",
        "" if run else "**Not run.** No cell of this table has a result yet.",
        pivot(table, found),
        _precision(table, found),
    ]
    if run < cells and run:
        parts.append(f"{run} of {cells} measured cells are there. {_missing(table, found)}")
    if has_chart(table, found):
        parts.append(picture(f"../figures/{figure_name(table)}", table.title.replace("`", "")))
    if table.name == "mechanisms":
        parts += [ceilings_section(table, found), guess_rates_section(table, found)]
    parts += [paper_values_section(table, inputs.paper_values, found), _origin(table, inputs.lines)]
    return _joined(parts)


def _missing(table: Table, found: Found) -> str:
    """Which rows are not run, the paper's and others apart."""
    cells = [cell for cell in table.cells if cell.jobs and not cell.value(found).run]
    parts = []
    for words, mine in (
        ("with the paper's recipe, for lack of time on a GPU", [c for c in cells if c.priority]),
        ("of other rows", [c for c in cells if not c.priority]),
    ):
        if mine:
            rows = dict.fromkeys(cell.row.split(", S = ")[0] for cell in mine)
            columns = [column for column in table.columns if any(cell.column == column for cell in mine)]
            parts.append(f"{len(mine)} {words} (rows: {'; '.join(rows)}; columns: {'; '.join(columns)})")
    return f"Not run: {'; '.join(parts)}. The command above is ready and runs them."


def _model(table: Table, inputs: PageInputs) -> str:
    """Which model its steps use; a table whose steps name none has its own."""
    named = any("model" in job.settings for job in in_order(table.jobs()))
    return f" Model: {inputs.title}." if named else ""


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _data(table: Table) -> list[str]:
    """The tasks and corpora that its steps read, in a fixed order."""
    needed = {
        str(job.settings[name])
        for job in in_order(table.jobs())
        for name in ("task", "public_task", "corpus")
        if job.settings.get(name) is not None
    }
    return [name for name in TASKS if name in needed] + sorted(needed - set(TASKS))


def _command(table: Table, inputs: PageInputs) -> str:
    words = [f"{_COMMAND} {table.name}"]
    if inputs.setup.model != ModelSetup().model:
        words.append(f"--model {inputs.model}")
    named = {CORPUS: "--corpus PATH", WIKIPEDIA: "--wikipedia PATH"}
    words += [named.get(name, f"--data {name}=PATH") for name in _data(table)]
    if len(set(table.jobs())) > 1:
        words.append("--workers 14")
    return " ".join([*words, f"--results {_RESULTS}"])


def _hint(table: Table) -> str:
    row = next(cell.row for cell in table.cells if cell.jobs)
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


def index_page(tables: Mapping[str, Table], inputs: PageInputs) -> str:
    """What these pages are, how to read them, the tables, the abstract's claims, and what is not run."""
    found = inputs.found
    claimed = {claim: (ours, f"[{name}]({name}.md)") for claim, ours, name in claims(tables, found)}
    parts = [
        "# The paper's tables",
        "*DP-Forward: Fine-tuning and Inference on Language Models with Differential Privacy in Forward "
        "Pass* (CCS 2023), table by table: what it measured, one command each that makes it again with "
        f"{inputs.title}, and the honest numbers beside it. {_progress(tables, found)} Every number of ours "
        "is "
        "computed, or read from a file of results.",
        "## How to read them",
        _reading(),
        differences_section(inputs.setup, inputs.title),
        "## The tables",
        grid("table", ("stands for", "measured cells"), _listed(tables, found)),
        f"All pages are written by one command:\n\n```console\n$ {_RENDER}\n```",
        "## What the abstract claims, and what we find",
        "Claims of the paper's abstract, in our words, for its model and the S = C of its "
        "experiments. Ours are "
        "computed from the cells of the table named; pp are percentage points. S = C is what the authors' "
        "experiments calibrate with; the text and the proof say 2C.",
        grid("the abstract", ("here", "table"), claimed),
        "The columns of `positions` carry the paper's central epsilons, which nobody has proved for "
        "DP-Forward trained `end-to-end`; DP-SGD's are proved. The first two rows compare as the paper "
        "does, which is not like with like, and take the best of many cells (by our recipe of SST-2, the one "
        "task with both sensitivities there), on texts that our recipes were chosen on: two points are "
        "noise. "
        "DP-SGD by the paper's recipe learns next to nothing here, so that the distance from it says little. "
        "[proved-training](proved-training.md) has what is proved.",
        _PRINTED,
        "## What is not run",
        _not_run(tables, inputs),
    ]
    return _joined(parts)


def _reading() -> str:
    eight = real_epsilon(8.0)
    return "\n".join(
        f"* {line}"
        for line in (
            "S = C is the sensitivity that the authors' experiments calibrate with, as we infer "
            "([errata, a](../explanation/errata.md#a-sensitivity)); two texts can differ by 2C, "
            f"as the paper's text says. What S = C calls epsilon 8 is {eight:.2f} by the proof. Rows with S "
            "= C "
            "are what the experiments did; rows with S = 2C keep their promise.",
            "Rows without a word on it have the paper's recipe (`reproduction/tables/paper_recipe.py`); *our "
            "recipe* is another row.",
            "`end-to-end` is the training of the paper's experiments: it protects later queries and no "
            "training text.",
            "A cell is one run, or a mean over seeds with each seed in brackets. Below a table stands the "
            "widest 95 % interval (over texts and draws of the noise; another seed moves a cell as well).",
            "An epsilon that our proof gives a cell is rounded up; a number of others, such as what their "
            "epsilon is worth, to the nearest.",
            "A commit with a + had changes on top when the steps were run.",
            "`not run`: no result for this cell, with just these settings, is in the file. `not "
            "measured`: it was run where this could not be measured.",
        )
    )


def _progress(tables: Mapping[str, Table], found: Found) -> str:
    counts = [table.counts(found) for table in tables.values()]
    whole, run = (sum(count[place] for count in counts) for place in (0, 1))
    full = sum(cells == done for cells, done in counts)
    return (
        f"{run} of {whole} measured cells are run, {full} of {len(counts)} of our tables in full; what "
        "their settings lack of the paper's is listed below."
    )


def _listed(tables: Mapping[str, Table], found: Found) -> dict[str, tuple[str, str]]:
    listed = {}
    for table in tables.values():
        cells, run = table.counts(found)
        listed[f"[{table.title}]({table.name}.md)"] = (table.item, f"{run} of {cells}")
    return listed


def _not_run(tables: Mapping[str, Table], inputs: PageInputs) -> str:
    lines = []
    if inputs.model != _PAPERS_MODEL:
        plain = f"{_COMMAND} positions"
        example = _command(tables["positions"], inputs).replace(plain, f"{plain} --model {_PAPERS_MODEL}")
        lines.append(
            f"BERT-base, the paper's model: not run (its weights need a network). `{example}` makes this "
            "table, and `--model` with `--weights FOLDER` any other."
        )
    for table in tables.values():
        cells, run = table.counts(inputs.found)
        if run < cells:
            what = "nothing of it is run" if not run else f"{cells - run} of {cells} cells are not run"
            lines.append(f"[{table.name}]({table.name}.md): {what}. Its page has the command.")
    return "\n".join(f"* {line}" for line in lines)


def _origin(table: Table, lines: Mapping[str, Mapping[str, Any]]) -> str:
    """Where the numbers come from: jobs with those they build on, time, commits, hardware and versions."""
    jobs = in_order(table.jobs())
    mine = [lines[job.digest] for job in jobs if job.digest in lines]
    if not mine:
        return ""
    origins = [line.get("provenance") or {} for line in mine]
    seconds = sum(float(line.get("seconds") or 0.0) for line in mine)
    hardware = Counter(str(entry.get("hardware") or "unknown") for entry in origins)
    facts = {
        "steps": f"{len(mine)} of {len(jobs)} (with those that they build on)",
        "time": f"{seconds:,.0f} s, summed over the steps",
        "hardware": ", ".join(
            f"{name} ({count} {'step' if count == 1 else 'steps'})"
            for name, count in sorted(hardware.items())
        ),
        "commits": ", ".join(f"`{name}`" for name in _distinct(origins, "commit")),
        "versions": "; ".join(
            f"{name} {', '.join(_distinct(origins, key))}" for key, name in _VERSIONS.items()
        ),
    }
    taken = sorted({str(line["taken_from"]) for line in mine if line.get("taken_from")})
    if taken:
        del facts["time"]
        named = ", ".join(f"`{name}`" for name in taken)
        facts["taken over"] = f"from an earlier benchmark with these settings, not by this command: {named}"
    weights = sorted({str(entry["weights"]) for entry in origins if entry.get("weights")})
    if weights:
        facts["weights"] = ", ".join(f"`{name}`" for name in weights)
    listed = "\n".join(f"* {name}: {fact}" for name, fact in facts.items())
    return (
        f"## Where the numbers come from\n\n{listed}\n\nEvery step with its plan and its promise: "
        f"[{_RESULTS}](../../{_RESULTS})."
    )


def _distinct(origins: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return sorted({str(entry.get(key) or "unknown") for entry in origins})
