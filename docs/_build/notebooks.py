"""Notebooks: run them and store their outputs, and show them as pages of the site.

    python docs/_build/notebooks.py        # runs all of examples/notebooks anew, in place

A stored notebook has the outputs of one real run and nothing else of it: no times, no ids of a machine.
"""

from __future__ import annotations

import json
import re
import tempfile
from os.path import relpath
from pathlib import Path
from typing import Any, Final

__all__ = ["FOLDER", "page_of", "pages", "run"]

_ROOT: Final = Path(__file__).parents[2]
_DOCS: Final = _ROOT / "docs"
FOLDER: Final = _ROOT / "examples" / "notebooks"
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^):#\s]+)(#[^)\s]*)?\)")  # not to another host


def pages() -> dict[Path, str]:
    """Each notebook, and the page of the site that shows it."""
    names = ((path, path.stem.replace("_", "-")) for path in sorted(FOLDER.glob("*.ipynb")))
    return {path: f"tutorial/{name}.md" for path, name in names}


def run(path: Path, folder: Path) -> dict[str, Any]:
    """A notebook with the outputs of a run in a Jupyter kernel of its own, started in ``folder``.

    Raises:
        CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.read(path, as_version=4)
    settings = {"timeout": 300, "kernel_name": "python3", "record_timing": False}
    NotebookClient(made, resources={"metadata": {"path": str(folder)}}, **settings).execute()
    for cell in made.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = _plain(cell.outputs)
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    found: dict[str, Any] = json.loads(nbformat.writes(made))
    return found


def _plain(outputs: list[Any]) -> list[Any]:
    """What was printed, in one piece, and results as a picture or as text; nothing of stderr."""
    found: list[Any] = []
    for output in outputs:
        if found and output.get("name") == found[-1].get("name") == "stdout":
            found[-1]["text"] += output["text"]
        elif output.get("name") != "stderr":
            found.append(output)
        data = output.get("data", {})
        if "image/svg+xml" in data:
            output["data"] = {"image/svg+xml": data["image/svg+xml"]}
    return found


def page_of(path: Path) -> str:
    """A notebook as Markdown, with its outputs; links to `docs/` lead to its pages."""
    here = (_DOCS / pages()[path]).parent
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _cell(cell, path.parent, here)]
    said = f"*This page is a notebook: `{path.relative_to(_ROOT)}`. Its outputs are those of one run.*"
    return "\n\n".join([*parts, said]) + "\n"


def _cell(cell: dict[str, Any], from_folder: Path, to_folder: Path) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [_LINK.sub(lambda match: _moved(match, from_folder, to_folder), source)]
    shown = [_shown(output) for output in cell["outputs"]]
    return [f"```python\n{source}\n```", *shown]


def _moved(match: re.Match[str], from_folder: Path, to_folder: Path) -> str:
    words, link, anchor = match.groups()
    target = (from_folder / link).resolve()
    target = _DOCS / pages()[target] if target in pages() else target
    if not target.is_relative_to(_DOCS):
        return words
    return f"[{words}]({Path(relpath(target, to_folder)).as_posix()}{anchor or ''})"


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/svg+xml" in data:
        picture = "".join(data["image/svg+xml"])
        return "<div>" + " ".join(picture[picture.index("<svg") :].split()) + "</div>"
    return f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```"


if __name__ == "__main__":
    for place in pages():
        with tempfile.TemporaryDirectory() as empty:
            stored = run(place, Path(empty))
        place.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
