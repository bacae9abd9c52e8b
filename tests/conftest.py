"""Settings for all tests."""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import postgres_server
from postgres_server import PostgresServer

# A busy machine is no bug, so there is no deadline; in CI the examples are the same every time.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_finish() -> None:
    """What was imported stays: nobody who collects garbage, as every Trainer does, looks through it again."""
    gc.collect()
    gc.freeze()


# Nobody's own register of texts is touched, and no test knows what another one released.
_BEFORE = tempfile.TemporaryDirectory(prefix="dpf-home-")
os.environ["DPF_HOME"] = _BEFORE.name

# An export takes seconds, and hundreds of tests save a front: those that mean it switch it on.
os.environ["DPF_ONNX"] = "0"


@pytest.fixture(autouse=True, scope="module")
def _own_home_of_a_module(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For what a module makes once."""
    os.environ["DPF_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPF_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A Postgres server for all tests of this process, started by the first that needs one."""
    if (why := postgres_server.missing()) is not None:
        pytest.skip(why)
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for stores: a new folder, and a new database of Postgres."""
    if request.param == "sqlite":
        return str(tmp_path / "place")
    return request.getfixturevalue("postgres").database()
