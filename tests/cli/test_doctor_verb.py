"""`dpf doctor`: one line for each check, exit code 1 where one fails, and never a text or a fingerprint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_forward
from dp_forward.cli.doctor import _fits, noise_p_value
from dp_forward.data.fingerprints import fingerprint_texts
from dp_forward.ledger import Cap, Ledger
from dp_forward.ledger.text_register import TextRegister
from dp_forward.noise.released.entropy import keystream
from dp_forward.privacy.charge import Charge

CHECKS = ["dp-forward", "packages", "extra client", "extra train", "extra serve", "extra postgres"]
CHECKS += [
    "extra baseline",
    "extra demo",
    "extra llm",
    "torch",
    "transformers",
    "onnxruntime",
    "GPU",
    "entropy",
    "keystream",
]
CHECKS += ["noise", "threads", "clock", "disk", "free space", "register", "ledger"]
WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "onnxruntime", "safetensors"):
    sys.modules[name] = None  # an import of it fails
from dp_forward.cli.main import run
run(["doctor", "--json"])
"""
LIGHT = """
import sys
from importlib import metadata
whole = metadata.version
def light(name):
    if name in ("torch", "transformers", "opacus", "datasets", "psycopg"):
        raise metadata.PackageNotFoundError(name)
    return "5.2.0" if name == "typer" else "0.1" if name == "httpx" else whole(name)
metadata.version = light
from dp_forward.cli.main import run
run(["doctor", "--json"])
"""


def _statuses(found: Any) -> dict[str, str]:
    return {one["check"]: one["status"] for one in found["checks"]}


def test_a_sound_installation_has_no_failed_check(dpf: Callable[..., Any], tmp_path: Path) -> None:
    done = dpf("doctor", "--json")
    assert done.code == 0, done.out
    assert done.json["sound"] is True
    assert [one["check"] for one in done.json["checks"]] == CHECKS
    assert all(
        one["status"] == "ok" for one in done.json["checks"] if one["check"] not in ("GPU", "free space")
    )
    lines = dpf("doctor").out.strip().split("\n")
    assert len(lines) == len(CHECKS) + 1 <= 24  # one screen
    assert lines[0].startswith(f"ok    dp-forward      {dp_forward.__version__}, Python 3.")
    assert lines[-1] == "No check failed."
    assert list(Path(os.environ["DPF_HOME"]).iterdir()) == [], "nothing is left behind"


@pytest.mark.slow
def test_it_works_without_torch_and_imports_none() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert _statuses(json.loads(done.stdout))["noise"] == "ok"


@pytest.mark.slow
def test_a_light_installation_is_sound_and_says_how_to_get_the_rest() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    said = {one["check"]: one for one in found["checks"]}
    assert said["extra train"]["found"].endswith("to get it: pip install -U 'dp-forward[train]'")
    assert said["GPU"]["found"] == "not needed without torch"
    assert "torch" not in said
    assert said["extra client"]["status"] == "warn"  # httpx is too old
    assert said["extra client"]["found"] == "httpx 0.1 is not >=0.27"
    assert said["extra client"]["remedy"] == "pip install -U 'dp-forward[client]'"


@pytest.mark.parametrize("damage", ["cut", "zeros", "text"])
def test_a_damaged_ledger_fails(dpf: Callable[..., Any], tmp_path: Path, damage: str) -> None:
    path = tmp_path / "my.ledger"
    with Ledger.create(path, cap=Cap.pure(8.0)) as ledger:
        ledger.reserve(bytes(16), Charge.pure(1.0))
    assert _statuses(dpf("doctor", "--json", "--ledger", str(path)).json)["ledger"] == "ok"
    whole = path.read_bytes()
    broken = {"cut": whole[:-700], "zeros": whole[:4096] + bytes(len(whole) - 4096), "text": b"hello"}
    path.write_bytes(broken[damage])
    done = dpf("doctor", "--json", "--ledger", str(path))
    assert (done.code, done.json["sound"]) == (1, False)
    assert _statuses(done.json)["ledger"] == "fail"
    assert re.search(r"\n1 of \d+ checks failed\.", dpf("doctor", "--ledger", str(path)).out)


def test_the_ledger_of_this_folder_is_found(
    dpf: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger.create(tmp_path / "budget.ledger", cap=Cap.pure(8.0)).close()
    assert dpf("doctor", "--json").json["checks"][-1]["found"] == "budget.ledger is sound, with 0 releases"
    assert dpf("doctor", "--ledger", "nothing").code == 1


def test_a_damaged_register_fails_and_shows_no_text_or_fingerprint(
    dpf: Callable[..., Any], tmp_path: Path
) -> None:
    texts = [f"a secret sentence, number {number}" for number in range(500)]
    with TextRegister() as register:
        commitment = register.declare("raw", fingerprint_texts(texts))
        path = Path(register.summary()["register"])
    sound = dpf("doctor", "--json")
    assert sound.json["checks"][-2]["found"] == "sound"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(4096) + whole[len(whole) // 2 + 4096 :])
    broken = dpf("doctor", "--json")
    assert (broken.code, _statuses(broken.json)["register"]) == (1, "fail")
    for shown in (sound.out, broken.out):
        assert "secret" not in shown
        assert commitment not in shown
        assert not re.search(r"[0-9a-f]{16}", shown)


def test_a_home_that_cannot_be_written_fails_with_a_remedy(
    dpf: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    if os.geteuid() == 0:  # who may write everywhere but there
        home = Path("/proc/self")
    monkeypatch.setenv("DPF_HOME", str(home))
    done = dpf("doctor", "--json")
    assert done.code == 1
    (disk,) = [one for one in done.json["checks"] if one["check"] == "disk"]
    assert (disk["status"], disk["remedy"]) == ("fail", "Set DPF_HOME to another folder.")


def test_noise_of_the_wrong_shape_is_told_from_the_right_one() -> None:
    assert min(noise_p_value(keystream()) for _ in range(20)) > 1e-6
    words = np.random.default_rng(1)

    def one_sided(size: int) -> bytes:
        return (words.integers(0, 1 << 63, size // 8, dtype=np.uint64)).astype("<u8").tobytes()

    def too_small(size: int) -> bytes:  # the digits of V above 1/4: a narrower Gaussian
        return (
            (words.integers(0, 1 << 64, size // 8, dtype=np.uint64) | np.uint64(1 << 61))
            .astype("<u8")
            .tobytes()
        )

    assert noise_p_value(one_sided) < 1e-6
    assert noise_p_value(too_small) < 1e-6


@pytest.mark.parametrize(
    ("version", "rule", "fits"),
    [
        ("2.13.0+cpu", ">=2.6", True),
        ("2.5.9", ">=2.6", False),
        ("5.22.2", "<6,>=5.10", True),
        ("5.9", "<6,>=5.10", False),
        ("6.0.0", "<6,>=5.10", False),
        ("0.1.0", "==0.1.0", True),
        ("0.1.1", "==0.1.0", False),
        ("5.10", "<6,>=5.10.0", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, rule: str, fits: bool) -> None:
    assert _fits(version, rule) is fits
