"""Settings for all tests."""

import gc
import os
import tempfile

import pytest
from hypothesis import settings

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


@pytest.fixture(autouse=True, scope="module")
def _own_home_of_a_module(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For what a module makes once."""
    os.environ["DPF_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPF_HOME", str(tmp_path_factory.mktemp("home")))
