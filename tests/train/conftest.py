"""One tiny checkpoint and task, and one run of every regime (each of another owner), for this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_forward.train.finetune import finetune
from tiny_task import TinyWorld

PUBLIC = {"public_task": "imdb", "public_epochs": 1.0, "public_batch": 16, "public_relabel": False}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    """Made once; nothing changes it."""
    return TinyWorld.under(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def raw_run(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an end-to-end run; nothing changes it."""
    folder = tmp_path_factory.mktemp("raw") / "run"
    finetune(world.plan(regime="end-to-end", epochs=1.0), folder=folder, register=folder.parent / "register")
    return folder


@pytest.fixture(scope="session")
def released_run(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release-once run; nothing changes it."""
    folder = tmp_path_factory.mktemp("released") / "run"
    finetune(world.plan(epochs=1.0), folder=folder, register=folder.parent / "register")
    return folder


@pytest.fixture(scope="session")
def public_run(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a public-front run, whose back moved far from where it began; nothing changes it."""
    folder = tmp_path_factory.mktemp("public") / "run"
    finetune(
        world.plan(
            regime="public-front", epochs=3.0, learning_rate=0.05, warm_up_epochs=0, draws=2, **PUBLIC
        ),
        folder=folder,
        register=folder.parent / "register",
    )
    return folder


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this folder is about a power cut, so no file waits for the disk."""
    monkeypatch.setattr("dp_forward.storage.files._sync", lambda path: None)
