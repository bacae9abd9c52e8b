"""The notebooks run in a Jupyter kernel, say what they are there to show, and are stored with outputs."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_build"))
import notebooks  # noqa: E402

NOTEBOOKS = sorted(notebooks.FOLDER.glob("*.ipynb"))
EXPECTED = {
    "first_private_classifier": (
        r"epsilon 4\.0 for each, charged once",
        r"4\.0-LDP per record\.",
        r"right on \d+% of the held-out tickets",
        r"180 of 180 texts were released before: .* Nothing was charged\.",
        r"charged 4, left 8\n.*charged 4, left 4\n.*charged 0, left 4\n.*charged 4, left 0\nrefused",
        r"KaryResponse\(labels=3, keep=0\.\d+\) -> 4\.0-LDP per text",
    ),
    "audit_a_promise": (
        r"MatrixGaussian\(sigma=1\.20046\) -> \(8\.0, 1e-05\)-LDP per text",
        r"honest\n.*\n.*\n  not refuted\n",
        r"a third too small\n.*\n.*\n  REFUTED by mu",
        r"MatrixGaussian\(sigma=0\.800306\) -> \(13\.\d+, 1e-05\)-LDP per text",
    ),
}
"""What each notebook must print, stored and anew."""


def printed(notebook: dict[str, Any]) -> str:
    return "".join(
        "".join(output.get("text", "")) for cell in notebook["cells"] for output in cell.get("outputs", ())
    )


def test_no_two_pages_of_the_tutorial_have_one_title() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs/tutorial").glob("*.md")]
    titles = [page.partition("\n")[0] for page in (*pages, *map(notebooks.page_of, NOTEBOOKS))]
    assert all(title.startswith("# ") for title in titles)
    assert len(set(titles)) == len(titles) == 5


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_leaves_nothing_behind(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    found = notebooks.run(path, here)
    for pattern in EXPECTED[path.stem]:
        assert re.search(pattern, printed(found)), (pattern, printed(found))
    assert not list(here.iterdir())
    assert not list(tmp_path.glob("tmp*")), "its own temporary folder is gone too"
    kinds = [[output["output_type"] for output in cell.get("outputs", ())] for cell in found["cells"]]
    assert kinds == [[o["output_type"] for o in cell.get("outputs", ())] for cell in read(path)["cells"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_is_small_and_whole_and_tells_nothing_of_a_machine(path: Path) -> None:
    text, stored = path.read_text(encoding="utf-8"), read(path)
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert len(text) < 60_000
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "one run, in order"
    assert not any(cell["metadata"] for cell in stored["cells"])
    for pattern in EXPECTED[path.stem]:
        assert re.search(pattern, printed(stored)), pattern
    outputs = json.dumps([cell["outputs"] for cell in code])
    assert not re.search(
        r"/(tmp|root|home|work|usr|opt|var)/|site-packages|127\.0\.0\.1|object at 0x", outputs
    )
    assert '"error"' not in outputs


def test_every_notebook_is_expected_to_say_something_and_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert {path.stem for path in NOTEBOOKS} == set(EXPECTED)
    assert all(f"](notebooks/{path.name})" in listed for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_public_names_only(path: Path) -> None:
    source = "\n".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dp_forward"):
            exported = __import__(str(node.module), fromlist=["__all__"]).__all__
            assert {alias.name for alias in node.names} <= set(exported)


def test_a_page_of_the_site_has_text_code_outputs_and_links_that_lead_somewhere() -> None:
    for path, uri in notebooks.pages().items():
        page = notebooks.page_of(path)
        assert page.count("```python\n") == sum(cell["cell_type"] == "code" for cell in read(path)["cells"])
        assert printed(read(path)).splitlines()[0] in page
        links = re.findall(r"\]\(([^)#]+)", page)
        made = {f"{Path(other).stem}.md" for other in notebooks.pages().values()}
        assert links
        assert all((ROOT / "docs" / Path(uri).parent / link).exists() or link in made for link in links)
    assert "<svg" in notebooks.page_of(notebooks.FOLDER / "audit_a_promise.ipynb")


@pytest.mark.slow
def test_a_cell_that_fails_is_noticed(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell("print(1)"), nbformat.v4.new_code_cell("raise ValueError('no')")]
    broken = tmp_path / "broken.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), broken)
    with pytest.raises(Exception, match="ValueError"):
        notebooks.run(broken, tmp_path)
