"""Pages and figures on disk: everything is checked first, then written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dp_forward.errors import InvalidInput
from dp_forward.storage.files import write_file
from reproduction.model_setup import ModelSetup
from reproduction.render.figures import (
    check_figures,
    draw_chart,
    draw_guess_rates,
    draw_headline,
    has_chart,
    has_headline,
)
from reproduction.render.pages import PageInputs, figure_name, index_page, table_page
from reproduction.render.paper_values import read_paper_values
from reproduction.runs.result_file import ResultFile
from reproduction.tables.catalogue import tables
from reproduction.tables.proved_training import folded_accuracies
from reproduction.tables.table import Table

__all__ = ["render"]

_HEADLINE = "accuracy-against-epsilon"
_GUESSES = "accuracy-against-guess-rate"


def render(
    results: Path,
    docs: Path,
    *,
    setup: ModelSetup | None = None,
    printed: Path | None = None,
    only: Sequence[str] = (),
) -> list[Path]:
    """Write the index, a page for each table and the figures into ``docs``; the paths that were written.

    Guarantees:
        The same results give the same bytes. Nothing is written if a name or a typed cell is refused.
    Edges:
        Without results every page says so, and no figure is drawn. ``only`` leaves the pages and figures of
        other tables as they are; the index is always written, from all results.
    """
    check_figures()
    setup = setup or ModelSetup()
    known = tables(setup)
    for name in only:
        if name not in known:
            raise InvalidInput("only", f"name one of {', '.join(known)}", repr(name), "Check its name.")
    lines = ResultFile(results).lines()
    inputs = PageInputs(setup=setup, lines=lines, paper_values=read_paper_values(printed, known))
    chosen = [table for table in known.values() if not only or table.name in only]
    pages = {"index.md": index_page(known, inputs)}
    pages |= {f"{table.name}.md": table_page(table, inputs) for table in chosen}
    drawings = _drawings(chosen, inputs)
    written = []
    for name, text in pages.items():
        written.append(_folder(docs / "paper") / name)
        write_file(written[-1], text)
    for name, draw in drawings.items():
        written += draw(_folder(docs / "figures") / name)
    return written


def _drawings(chosen: Sequence[Table], inputs: PageInputs) -> dict[str, Callable[[Path], list[Path]]]:
    found, values = inputs.found, inputs.paper_values
    drawings: dict[str, Callable[[Path], list[Path]]] = {
        figure_name(table): partial(draw_chart, table, found, printed=values.get(table.name))
        for table in chosen
        if has_chart(table, found)
    }
    mechanisms = next((table for table in chosen if table.name == "mechanisms"), None)
    if mechanisms is not None and has_headline(mechanisms, found):
        drawings[_HEADLINE] = partial(draw_headline, mechanisms, found)
        drawings[_GUESSES] = partial(draw_guess_rates, mechanisms, found, protected=folded_accuracies())
    return drawings


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise InvalidInput("docs", "be a folder that can be written", path, "Name another one.") from None
    return path
