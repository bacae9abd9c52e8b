"""Every public object has a docstring, and every one of its arguments is described."""

from __future__ import annotations

import ast
import enum
import importlib.util
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

import griffe
import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "_build"))
from arguments import COMMON, METHODS, described, meaning  # noqa: E402

PAGES = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md"))
SHOWN = sorted(set(re.findall(r"^::: (\S+)$", PAGES, flags=re.MULTILINE)))
ALONE = re.compile(r"\.(\w+)\.\1$")
"""A function that has the name of its module: the module hides it on the page of its package."""
MODULES = [name for name in SHOWN if not ALONE.search(name)]


def public_objects(module: str) -> dict[str, Any]:
    """The classes and functions that a module of the reference shows."""
    found = importlib.import_module(module)
    named = {name: getattr(found, name) for name in getattr(found, "__all__", ())}
    return {name: item for name, item in named.items() if inspect.isclass(item) or inspect.isfunction(item)}


def documented_fields(kind: type) -> Iterator[str]:
    """The fields of a class that have a docstring under them."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for item, after in itertools.pairwise(definition.body):
        if isinstance(item, ast.AnnAssign) and isinstance(getattr(after, "value", None), ast.Constant):
            yield ast.unparse(item.target)


def described_in(found: Any) -> set[str]:
    """What its docstring describes, that of ``__init__``, and those under the fields of a class."""
    names = described(inspect.getdoc(found) or "")
    for kind in found.__mro__ if inspect.isclass(found) else ():
        if kind.__module__.startswith("dp_forward"):
            names |= described(inspect.getdoc(kind.__init__) or "") | set(documented_fields(kind))
    return names


def arguments_of(found: Any) -> set[str]:
    """What it is called with; the settings of a plan carry their own help."""
    if inspect.isclass(found) and issubclass(found, enum.Enum | BaseException):
        return set()
    if is_typeddict(found):
        return set(get_type_hints(found))
    settings = fields(found) if is_dataclass(found) else ()
    helped = {item.name for item in settings if "setting" in item.metadata}
    return set(inspect.signature(found).parameters) - helped - {"made_by"}


def undescribed(found: Any) -> set[str]:
    return arguments_of(found) - described_in(found) - COMMON.keys()


@pytest.mark.parametrize("module", MODULES)
def test_public_objects_have_a_docstring_and_describe_their_arguments(module: str) -> None:
    found = public_objects(module)
    assert [name for name, item in found.items() if not item.__doc__] == []
    left = {name: undescribed(item) for name, item in found.items()}
    assert {name: missing for name, missing in left.items() if missing} == {}


def methods_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself, as functions."""
    for name, item in vars(kind).items():
        found = item.fget if isinstance(item, property) else getattr(item, "__func__", item)
        if not name.startswith("_") and inspect.isfunction(found):
            yield name, found


def undescribed_by(kind: type, method: Any) -> set[str]:
    """The arguments of a method that neither it, its class nor `meaning` describes."""
    left = set(inspect.signature(method).parameters) - {"self", "cls"} - described_in(kind)
    return {
        name for name in left - described(inspect.getdoc(method) or "") if not meaning(name, kind.__name__)
    }


@pytest.mark.parametrize("module", MODULES)
def test_public_methods_have_a_docstring_and_describe_their_arguments(module: str) -> None:
    kinds = [kind for kind in public_objects(module).values() if inspect.isclass(kind)]
    found = [(kind, name, method) for kind in kinds for name, method in methods_of(kind)]
    bare = [(kind, name) for kind, name, _ in found if not inspect.getdoc(getattr(kind, name))]
    assert bare == [], "a method that overrides one has its docstring"
    left = {f"{kind.__name__}.{name}": undescribed_by(kind, method) for kind, name, method in found}
    assert {name: missing for name, missing in left.items() if missing} == {}


def test_a_method_whose_argument_nothing_describes_is_found() -> None:
    class Made:
        """A thing of a ``shape``."""

        def ask(self, text: str, colour: str, shape: str) -> None:
            """Ask in a ``colour``, by weight."""

        def weigh(self, weight: float) -> None:
            """Weigh it."""

    found = {name: undescribed_by(Made, method) for name, method in methods_of(Made)}
    assert found == {"ask": set(), "weigh": {"weight"}}


def test_what_is_said_of_methods_is_used() -> None:
    kinds = {item for module in MODULES for item in public_objects(module).values() if inspect.isclass(item)}
    taken = {
        (kind, name)
        for kind in kinds
        for _, f in methods_of(kind)
        for name in inspect.signature(f).parameters
    }
    names = {f"{kind.__name__}.{name}" for kind, name in taken} | {name for _, name in taken}
    assert [name for name in METHODS if name not in names] == []


def test_an_argument_that_nothing_describes_is_found() -> None:
    def made(size: int, colour: str, bits: int, *, shape: str, weight: float) -> None:
        """A thing of a ``shape``.

        Args:
            size: in rows.
        """

    assert undescribed(made) == {"colour", "weight"}


def test_a_common_word_is_common() -> None:
    objects = [item for module in MODULES for item in public_objects(module).values()]
    used = [word for item in objects for word in arguments_of(item)]
    assert [word for word in COMMON if used.count(word) < 2] == []
    assert len(COMMON) <= 45


def test_a_function_with_the_name_of_its_module_has_a_place_of_its_own() -> None:
    for module in MODULES:
        for name in public_objects(module):
            if importlib.util.find_spec(module).submodule_search_locations and (
                importlib.util.find_spec(f"{module}.{name}") is not None
            ):
                assert f"{module}.{name}.{name}" in SHOWN


@pytest.mark.slow
def test_the_reference_shows_the_arguments_of_a_client_and_of_a_plan() -> None:
    """As griffe reads them for the site, with our extension."""
    extensions = griffe.load_extensions("dataclasses", "unpack_typeddict", str(DOCS / "_build/docstrings.py"))
    package = griffe.load(
        "dp_forward", search_paths=[DOCS.parent / "src"], extensions=extensions, docstring_parser="google"
    )
    for name, wanted in {
        "service.client.client.Client": {
            "front",
            "server",
            "ledger",
            "budget",
            "token",
            "ca",
            "proxy",
            "retry",
        },
        "train.plan.Plan": {"task", "epsilon", "cut", "regime", "public_words", "label_privacy"},
        "service.client.upload.check_collector": {"server", "token", "user"},
        "privacy.calibrate.calibrate": {"mechanism", "budget", "bound", "settings"},
        "noise.released.released_matrix.release": {"hidden", "mechanism", "bits", "entropy"},
    }.items():
        sections = package[name].docstring.parsed
        (arguments,) = (section.value for section in sections if section.kind == "parameters")
        said = {argument.name: argument.description for argument in arguments}
        assert wanted <= said.keys()
        assert all(said.values())
        assert "connection" not in said
