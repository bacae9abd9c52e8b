"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import dp_forward
import tiny_models
import tiny_task
import tiny_user
from dp_forward.privacy import NoiseSpec
from warm_process import Verb

PACKAGE = Path(__file__).parents[1] / "src" / "dp_forward"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SLOW = {"PrivateClassifier", "Client"}
WANTED = (
    "dp_forward dp_forward.data dp_forward.split Client PrivateClassifier Ledger calibrate compose "
    "Deployment Guarantee NoiseSpec shuffled_mechanism release audit_released parse_cut"
)
"""What has an example, at least."""


def examples() -> Iterator[tuple[str, str, str]]:
    """Module, name and docstring of whatever has an example; nothing is imported."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text is not None and ">>> " in text:
                    yield module, getattr(node, "name", module), text


EXAMPLES = [
    pytest.param(*found, id=f"{found[0]}:{found[1]}", marks=[pytest.mark.slow] if found[1] in SLOW else [])
    for found in examples()
]


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder of its own, and what examples take as given: a tiny model, its inputs, a tokenizer, a file."""
    monkeypatch.chdir(tmp_path)
    tiny_task.write_task(tmp_path)
    words = {word: number for number, word in enumerate(tiny_task.WORDS)}
    return {
        "dp_forward": dp_forward,
        "torch": torch,
        "model": tiny_models.tiny("bert"),
        "inputs": tiny_models.tiny_inputs("bert"),
        "tokenizer": transformers.BertTokenizerFast(vocab=words),
    }


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server of its own process, for the back of a tiny run in the folder of the example."""
    run = tiny_user.write_user(tmp_path / "run", noise=NoiseSpec(epsilon=8.0))
    server = Verb("serve", str(run / "back"), "--port", "0", log=tmp_path / "log")
    yield server.first_line()["address"]
    server.kill()


def run_examples(text: str, names: dict[str, Any], name: str) -> tuple[int, str]:
    """How many of the examples fail, and what was said about them."""
    said: list[str] = []
    parsed = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    return doctest.DocTestRunner(optionflags=OPTIONS).run(parsed, out=said.append).failed, "".join(said)


@pytest.mark.parametrize(("module", "name", "text"), EXAMPLES)
def test_an_example_prints_what_it_says(
    module: str, name: str, text: str, surroundings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    home = importlib.import_module(module)
    names = {name: getattr(home, name) for name in dir(home)} | surroundings
    if "server=address" in text:
        names["address"] = request.getfixturevalue("address")
    failed, said = run_examples(text, names, name)
    assert failed == 0, said


def test_what_a_reader_looks_up_first_has_an_example() -> None:
    assert {example.values[1] for example in EXAMPLES} >= set(WANTED.split())


def test_an_example_that_is_wrong_is_noticed() -> None:
    assert run_examples(">>> 2 + 2\n4", {}, "right")[0] == 0
    assert run_examples(">>> 2 + 2\n5", {}, "wrong")[0] == 1
    assert run_examples(">>> undefined", {}, "broken")[0] == 1
