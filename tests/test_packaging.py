"""Wheel and source archive: their content, and that the wheel runs beside its declared dependencies alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
pytestmark = pytest.mark.slow


def call(*words: object, cwd: Path, **variables: str) -> str:
    """What a process of its own prints; it must end well."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


def with_what_it_needs(name: str, found: set[str]) -> set[str]:
    """The names of a distribution and of all that it requires without extras."""
    if name not in found:
        found.add(name)
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                with_what_it_needs(requirement.name.lower(), found)
    return found


def link_distribution(name: str, folder: Path) -> None:
    """Put an installed distribution into a folder of packages, by links."""
    files = distribution(name).files or ()
    for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
        if not (folder / top).exists():
            (folder / top).symlink_to(Path(str(distribution(name).locate_file(top))).resolve())


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: the wheel, and what its metadata requires without extras."""
    folder = tmp_path_factory.mktemp("clean")
    (wheel,) = built.glob("*.whl")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel)
    call(sys.executable, *install, cwd=built)
    (metadata,) = folder.glob("*.dist-info/METADATA")
    required = [
        Requirement(line.partition(": ")[2])
        for line in metadata.read_text("utf-8").splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    names: set[str] = set()
    for requirement in required:
        with_what_it_needs(requirement.name, names)
    assert {"numpy", "scipy", "cryptography"} <= names
    for name in names:
        link_distribution(name, folder)
    return folder


def python(installed: Path, *words: object) -> str:
    """Run Python with these packages and no others: -S leaves out the environment of the tests."""
    return call(sys.executable, "-S", *words, cwd=installed.parent, PYTHONPATH=str(installed))


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == sources
    assert {f"dp_forward/{name}" for name in ("py.typed", "service/webui/page.html")} <= names
    assert "dp_forward/split/statistics/minilm.safetensors" in names
    assert not any("test" in Path(name).parts[0] for name in names)
    assert all(f"Provides-Extra: {extra}\n" in metadata for extra in PROJECT["optional-dependencies"])
    assert all(f"Project-URL: {name}, {url}\n" in metadata for name, url in PROJECT["urls"].items())


def test_the_source_archive_holds_what_a_reader_needs_and_no_build_output(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "SECURITY.md", "CONTRIBUTING.md", "CITATION.cff", "tests/test_packaging.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("build", ".venv"))]


def test_the_installed_wheel_proves_and_calibrates_without_any_extra(installed: Path) -> None:
    said = (
        "import dp_forward, dp_forward.privacy as p, sys; print(dp_forward.__file__, 'torch' in sys.modules)"
    )
    place, torch = python(installed, "-c", said).split()
    assert (Path(place).is_relative_to(installed), torch) == (True, "False")
    dpf = installed / "bin" / "dpf"
    assert python(installed, dpf, "--version") == f"dp-forward {VERSION}\n"
    found = json.loads(
        python(installed, dpf, "calibrate", "--mechanism", "privunit", "--epsilon", "8", "--json")
    )
    assert (found["mechanism"], found["epsilon"]) == ("privunit", 8.0)


def test_what_needs_an_extra_names_it(installed: Path) -> None:
    """The control: the packages of the test environment are not seen from there."""
    asked = "import dp_forward\ntry: dp_forward.PrivateClassifier\nexcept ImportError as error: print(error)"
    assert "pip install 'dp-forward[train]'" in python(installed, "-c", asked)
