"""`__all__` is the contract between folders: what another folder imports, and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dp_forward"
MOST_NAMES = 400


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
PACKAGES = {module_name(path) for path in PACKAGE.rglob("__init__.py")}


def folder(module: str) -> str:
    """The top-level folder or module of the package."""
    return module.partition(".")[2].partition(".")[0]


def listed(tree: ast.Module) -> list[str]:
    """What ``__all__`` names."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Pairs of a module of ours and a name that is imported from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in TREES:
            for alias in node.names:
                if f"{node.module}.{alias.name}" not in TREES:
                    yield node.module, alias.name


@pytest.mark.parametrize("module", sorted(TREES))
def test_a_folder_imports_only_public_names_of_another(module: str) -> None:
    hidden = [
        f"{source}.{name}"
        for source, name in imports(TREES[module])
        if folder(source) != folder(module) and name not in listed(TREES[source])
    ]
    assert hidden == []


def test_a_package_completes_its_public_names_before_they_are_loaded() -> None:
    """In a process of its own: here, everything is loaded."""
    packages = sorted(name for name in PACKAGES if listed(TREES[name]))
    assert len(packages) >= 7
    asked = (
        "import sys, importlib\n"
        "for name in sys.argv[1:]:\n"
        "    package = importlib.import_module(name)\n"
        "    assert set(package.__all__) <= set(dir(package)), name\n"
        "    assert '__all__' in dir(package), name\n"
        "    shown = {part for part in dir(package) if part[0] != '_'}\n"
        "    assert '__dir__' not in vars(package) or shown <= set(package.__all__), name\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", asked, *packages], check=True)


@pytest.mark.slow
def test_no_name_is_public_that_nobody_outside_its_folder_uses() -> None:
    used = defaultdict(set)
    places = ("reproduction", "benchmarks", "examples")
    outside = [path for name in places for path in (ROOT / name).rglob("*.py")]
    trees = [("", ast.parse(path.read_text(encoding="utf-8"))) for path in outside]
    for module, tree in [*TREES.items(), *trees]:
        for source, name in imports(tree):
            if not module or folder(source) != folder(module):
                used[source].add(name)
    written = "\n".join(
        path.read_text(encoding="utf-8")
        for path in [ROOT / "README.md", PACKAGE / "__init__.py", *(ROOT / "docs").rglob("*.md"), *outside]
    )
    idle = [
        f"{module}.{name}"
        for module, tree in TREES.items()
        for name in listed(tree)
        if module not in PACKAGES and name not in used[module] and name not in written
    ]
    assert idle == []


def test_the_public_surface_stays_small() -> None:
    assert sum(len(listed(tree)) for tree in TREES.values()) <= MOST_NAMES


def test_no_two_modules_share_a_name() -> None:
    modules = (path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    names = [path.name for path in modules if "cli" not in path.parts]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
