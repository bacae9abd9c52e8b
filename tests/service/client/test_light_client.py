"""The user's side where torch and transformers cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_user
from dp_forward.privacy import NoiseSpec
from dp_forward.split import onnx_front
from service.webui.page_cases import provider

BLOCKED = ("torch", "transformers", "safetensors", "dp_accounting")
START = f"import sys\nfor name in {BLOCKED}: sys.modules[name] = None\n"
DPF = "from dp_forward.cli.main import run\nrun(sys.argv[1:])"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(onnx_front.SWITCH)
        return tiny_user.write_user(tmp_path_factory.mktemp("light") / "run", noise=NoiseSpec(epsilon=2.0))


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with provider(run) as found:
        yield found


def without_torch(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + code, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_text_is_asked_and_its_stored_answer_found_without_torch(
    run: Path, address: str, tmp_path: Path
) -> None:
    ask = [
        "ask",
        str(run),
        "a lovely film",
        "--server",
        address,
        "--ledger",
        str(tmp_path / "ledger"),
        "--json",
    ]
    first, again = without_torch(DPF, *ask, "--budget", "8"), without_torch(DPF, *ask)
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    told = [json.loads(one.stdout)[0] for one in (first, again)]
    assert [(one["charge"], one["stored"]) for one in told] == [(2.0, False), (0.0, True)]
    shown = without_torch(DPF, "ledger", "verify", str(tmp_path / "ledger"), "--json")
    assert (json.loads(shown.stdout)["spent"], json.loads(shown.stdout)["sound"]) == (2.0, True)


def test_the_client_and_the_proof_are_imported_without_torch() -> None:
    code = (
        "import dp_forward as dpf, dp_forward.privacy, dp_forward.ledger, dp_forward.service.webui.ui_app\n"
        "dpf.Client; assert set(dpf.__all__) <= set(dir(dpf))\n"
        "for name in ('PrivateClassifier', 'Sanitizer', 'Run'):\n"
        "    try: getattr(dpf, name)\n"
        "    except ImportError as error: print(error)\n"
        "try: dpf.split(None, 'output')\n"
        "except ImportError as error: print(error)"
    )
    found = without_torch(code)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) == 4
    assert all("which is not installed: pip install 'dp-forward[train]'." in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ["cuts", "minilm"],
        ["serve", "{run}/back"],
        ["evaluate", "{run}"],
        ["finetune", "sst2", "--out", "{run}/x"],
    ],
    ids=lambda words: words[0],
)
def test_a_verb_that_needs_torch_names_the_extra_in_one_line(words: list[str], run: Path) -> None:
    found = without_torch(DPF, *(word.format(run=run) for word in words))
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "needs " in found.stderr
    assert f"pip install 'dp-forward[{'serve' if words[0] == 'serve' else 'train'}]'" in found.stderr


def test_a_front_without_onnx_says_what_it_needs_and_charges_nothing(address: str, tmp_path: Path) -> None:
    old = tiny_user.write_user(tmp_path / "old", noise=NoiseSpec(epsilon=2.0))
    ledger = tmp_path / "ledger"
    ask = ["ask", str(old), "a lovely film", "--server", address, "--ledger", str(ledger), "--budget", "8"]
    found = without_torch(DPF, *ask)
    assert (found.returncode, ledger.exists()) == (2, False)
    assert found.stderr.count("\n") == 1
    assert "A front without ONNX needs torch" in found.stderr


def test_the_page_answers_without_torch_and_says_what_is_left_out(
    run: Path, address: str, tmp_path: Path
) -> None:
    code = (
        "import json, httpx, dp_forward.service.webui.ui_app as ui_app\n"
        "def ask(service, **settings):\n"
        "    reading = service.preview('a lovely film', 2.0)\n"
        "    print(json.dumps([service.ask('a lovely film', 2.0, False), service.state(), reading]))\n"
        "ui_app.run_ui = ask\n" + DPF
    )
    words = ["ui", str(run), "--server", address, "--ledger", str(tmp_path / "ledger"), "--budget", "8"]
    found = without_torch(code, *words)
    assert found.returncode == 0, found.stderr
    answer, state, reading = json.loads(found.stdout)
    assert answer["charge"] == 2.0
    assert "torch, which is not installed" in state["reconstruction"]
    assert reading == {"prepared": None}


def test_a_client_with_onnx_loads_no_torch_where_it_is_installed(
    run: Path, address: str, tmp_path: Path
) -> None:
    code = (
        "import sys, dp_forward as dpf\n"
        "run, server, ledger = sys.argv[1:]\n"
        "with dpf.Client(run, server=server, ledger=ledger, budget=4.0) as client:\n"
        "    client.ask('a lovely film')\n"
        "print(sorted({'torch', 'transformers', 'scipy.stats', 'scipy.optimize'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(run), address, str(tmp_path / "ledger")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout.strip() == "[]", found.stderr
