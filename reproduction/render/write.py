"""Everything onto the disk: checked first, then written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from dp_forward.errors import InvalidInput
from reproduction.model_setup import Subject
from reproduction.render.figures import check_figures, draw_chart, has_figure
from reproduction.render.headline import draw_headline, has_headline
from reproduction.render.pages import Material, figure_name, index_page, table_page
from reproduction.render.paper_values import read_printed
from reproduction.runs.result_file import Results
from reproduction.tables.catalogue import tables
from reproduction.tables.table import Table

__all__ = ["render"]

_HEADLINE = "accuracy-against-epsilon.png"


def render(
    results_path: Path,
    docs: Path,
    *,
    subject: Subject | None = None,
    printed: Path | None = None,
    only: Sequence[str] = (),
) -> list[Path]:
    """Write the index, a page for each table and the figures into ``docs``; the paths that were written.

    Guarantees:
        The same results give the same bytes. Nothing is written if a name or a typed cell is refused.
    Edges:
        Without results every page says so, and no figure is drawn. ``only`` leaves the pages and figures of
        other
        tables as they are; the index is always written, from all results.
    """
    check_figures()
    chosen_subject = subject or Subject()
    known = tables(chosen_subject)
    for name in only:
        if name not in known:
            raise InvalidInput("only", f"name one of {', '.join(known)}", repr(name), "Check its name.")
    lines = {digest: line for digest, line in Results(results_path).lines().items() if "result" in line}
    material = Material(
        subject=chosen_subject,
        lines=lines,
        found={digest: line["result"] for digest, line in lines.items()},
        printed=read_printed(printed, known),
    )
    chosen = [table for table in known.values() if not only or table.name in only]
    pages = {"index.md": index_page(known, material)}
    pages |= {f"{table.name}.md": table_page(table, material) for table in chosen}
    return _written(pages, docs) + _drawn(_drawings(chosen, material), docs)


def _drawings(chosen: Sequence[Table], material: Material) -> dict[str, Callable[[Path], None]]:
    found = material.found
    drawings: dict[str, Callable[[Path], None]] = {
        figure_name(table): partial(draw_chart, table, found) for table in chosen if has_figure(table, found)
    }
    mechanisms = next((table for table in chosen if table.name == "mechanisms"), None)
    if mechanisms is not None and has_headline(mechanisms, found):
        drawings[_HEADLINE] = partial(draw_headline, mechanisms, found)
    return drawings


def _written(pages: Mapping[str, str], docs: Path) -> list[Path]:
    folder = _folder(docs / "paper")
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in pages]


def _drawn(drawings: Mapping[str, Callable[[Path], None]], docs: Path) -> list[Path]:
    if not drawings:
        return []
    folder = _folder(docs / "figures")
    for name, draw in drawings.items():
        draw(folder / name)
    return [folder / name for name in drawings]


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise InvalidInput("docs", "be a folder that can be written", path, "Name another one.") from None
    return path
