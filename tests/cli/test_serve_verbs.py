"""`dpf serve` and `dpf ask` as processes over loopback: answers, charges, budget, order of exit."""

import contextlib
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_user
from dp_forward.cli.ask import print_answers
from dp_forward.privacy import NoiseSpec
from warm_process import Verb


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_user.write_user(tmp_path_factory.mktemp("served") / "run", noise=NoiseSpec(epsilon=8.0))


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    server = Verb("serve", str(run / "back"), "--port", "0", log=run.with_name("log"))
    yield server.first_line()["address"]
    server.signal(signal.SIGINT)
    assert server.finish(30) == 0, "it ends in order"


@pytest.mark.parametrize(("kept", "shown"), [(0.98201, "(kept by the noise in 98.2 %)"), (None, "0.982")])
def test_what_the_noise_keeps_is_not_printed_like_the_confidence_of_a_model(
    kept: float | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"charge": 4.0, "charged": {"epsilon": 4.0, "mu": 0.0}, "spent": 4.0, "remaining": 12.0}
    flags = {"resent": False, "stored": False, "truncated": False}
    answer = {"label": "positive", "probabilities": {"positive": 0.98201, "negative": 0.01799}}
    print_answers([answer | numbers | flags], kept)
    assert capsys.readouterr().out == f"1. positive {shown}; charge 4, spent 4, remaining 12\n"


@pytest.mark.slow
def test_asking_charges_once_stores_resends_and_stops_at_the_budget(
    dpf: Callable[..., Any], run: Path, address: str, tmp_path: Path
) -> None:
    ledger = str(tmp_path / "me.ledger")
    ask = ["ask", str(run / "front"), "--server", address, "--ledger", ledger]
    first = dpf(*ask, "a lovely film", "a dull plot", "--budget", "20", "--json")
    assert first.code == 0, first.err
    assert [answer["charge"] for answer in first.json] == [8.0, 8.0]
    assert first.json[0].keys() >= {"label", "probabilities", "charge", "spent", "remaining"}
    again = dpf(*ask, "a lovely film", "--json")
    assert (again.json[0]["charge"], again.json[0]["resent"], again.json[0]["stored"]) == (0.0, True, True)
    assert again.json[0]["probabilities"] == first.json[0]["probabilities"]
    plain, resent = (dpf(*ask, "a lovely film", *more).out for more in ([], ["--resend"]))
    assert "(stored answer, nothing was sent); charge 0, " in plain
    assert "(sent again, seen to be the same text); charge 0, " in resent
    refused = dpf(*ask, "one scene more")
    assert refused.code == 3
    assert "scene" not in refused.err
    assert dpf("ledger", "verify", ledger, "--json").json["spent"] == 16.0


@pytest.mark.slow
def test_a_file_is_asked_line_by_line(
    dpf: Callable[..., Any], run: Path, address: str, tmp_path: Path
) -> None:
    lines = tmp_path / "texts.txt"
    lines.write_text("the warm story\n\nthe cold story\n")
    words = [
        "ask",
        str(run / "front"),
        "--server",
        address,
        "--ledger",
        str(tmp_path / "l"),
        "--file",
        str(lines),
    ]
    assert len(dpf(*words, "--budget", "16", "--json").json) == 2
    assert [answer["charge"] for answer in dpf(*words, "--json").json] == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("from_file", [True, False])
def test_answers_that_were_paid_for_are_shown_when_the_budget_ends(
    dpf: Callable[..., Any], run: Path, address: str, tmp_path: Path, *, from_file: bool
) -> None:
    texts = ["the warm story", "the cold story", "one scene more"]
    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(texts))
    asked = ["--file", str(lines)] if from_file else texts
    ledger = str(tmp_path / "l")
    words = ["ask", str(run / "front"), *asked, "--server", address, "--ledger", ledger, "--budget", "16"]
    for more in ([], ["--json"]):
        ended = dpf(*words, *more)
        assert ended.code == 3
        assert "Only 2 of 3 texts were answered" in ended.err
        assert "Nothing was charged for it" in ended.err
        assert "scene" not in ended.err
        assert len(ended.json if more else ended.out.splitlines()) == 2
    assert dpf("ledger", "show", ledger, "--json").json["spent"] == 16.0, "the second time for free"


@pytest.mark.slow
def test_a_provider_names_its_half_and_a_user_may_name_the_run(
    dpf: Callable[..., Any], run: Path, address: str, tmp_path: Path
) -> None:
    served = dpf("serve", str(run))
    assert (served.code, f"Name {run / 'back'}." in served.err) == (2, True)
    mine = ["--server", address, "--ledger", str(tmp_path / "ledger"), "--budget", "8"]
    assert dpf("ask", str(run), "a lovely film", *mine).code == 0


@pytest.mark.slow
def test_a_budget_per_day_stops_for_the_day(
    dpf: Callable[..., Any], run: Path, address: str, tmp_path: Path
) -> None:
    ledger = str(tmp_path / "daily.ledger")
    ask = ["ask", str(run / "front"), "--server", address, "--ledger", ledger]
    first = dpf(*ask, "a lovely film", "--budget-per-day", "8", "--json")
    assert (first.code, first.json[0]["remaining"]) == (0, 0.0), first.err
    assert "There is no cap in all: whoever sees k days learns up to k times 8.0" in first.err
    refused = dpf(*ask, "one scene more")
    assert refused.code == 3
    assert "8.0 per day" in refused.err
    assert "scene" not in refused.err
    told = dpf("ledger", "show", ledger, "--json").json
    assert (told["per_day"], told["spent_today"], told["remaining_today"]) == (8.0, 8.0, 0.0)
    assert dpf(*ask, "a lovely film", "--budget-per-day", "9").code == 2


@pytest.mark.slow
def test_pairs_are_asked_as_one(dpf: Callable[..., Any], run: Path, address: str, tmp_path: Path) -> None:
    ask = ["ask", str(run / "front"), "--server", address, "--ledger", str(tmp_path / "l"), "--pair"]
    first = dpf(*ask, "the warm story", "a cold plot", "--budget", "32", "--json")
    assert [answer["charge"] for answer in first.json] == [8.0], first.err
    lines = tmp_path / "pairs.tsv"
    lines.write_text("the warm story\ta cold plot\n\na dull film\tthe lovely scene\n")
    both = dpf(*ask, "--file", str(lines), "--json")
    assert [answer["charge"] for answer in both.json] == [0.0, 8.0], both.err
    assert both.json[0]["probabilities"] == first.json[0]["probabilities"]
    lines.write_text("the warm story\ta cold plot\nno tab here\n")
    refused = dpf(*ask, "--file", str(lines))
    assert refused.code == 2
    assert "text 2" in refused.err
    assert "no tab here" not in refused.err
    lines.write_text("half a pair\t \n")
    assert dpf(*ask, "--file", str(lines)).code == 2
    assert dpf("ledger", "show", str(tmp_path / "l"), "--json").json["releases"] == 2


@pytest.mark.slow
def test_a_ledger_of_another_version_is_one_clear_line(
    dpf: Callable[..., Any], run: Path, address: str, tmp_path: Path
) -> None:
    place = tmp_path / "old.ledger"
    assert dpf("ledger", "create", str(place), "--epsilon", "8").code == 0
    with contextlib.closing(sqlite3.connect(place)) as connection:
        connection.execute("PRAGMA user_version = 1")
    refused = dpf("ask", str(run / "front"), "a film", "--server", address, "--ledger", str(place))
    assert refused.code == 1
    assert refused.err.strip().count("\n") == 0
    assert "version 1" in refused.err
    assert "a new ledger" in refused.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ask", "FRONT"], 2),
        (["ask", "FRONT", "a film", "--pair", "--ledger", "LEDGER", "--budget", "8"], 2),
        (["ask", "FRONT", "a film", "--ledger", "LEDGER", "--budget", "8", "--budget-per-day", "9"], 2),
        (["ask", "FRONT", "a film", "--ledger", "LEDGER", "--budget-per-day", "0"], 2),
        (["ask", "FRONT", "a film", "--ledger", "LEDGER"], 2),
        (["ask", "FRONT", "a film", "--ledger", "LEDGER", "--budget", "8", "--server", "http://10.1.2.3"], 2),
        (
            [
                "ask",
                "FRONT",
                "a film",
                "--ledger",
                "LEDGER",
                "--budget",
                "8",
                "--proxy",
                "http://10.1.2.3:80",
            ],
            2,
        ),
        (["ask", "FRONT", "a film", "--server", "https://a.example", "--ca", "LEDGER", "--budget", "8"], 2),
        (["serve", "BACK", "--host", "0.0.0.0"], 2),
        (["serve", "FRONT"], 2),
        (["serve", "BACK", "--device", "gpu"], 2),
        (["release", "FRONT", "--task", "sst2", "--out", "OUT", "--device", "meta"], 2),
    ],
)
def test_what_is_unsafe_or_missing_is_refused_in_one_line(
    dpf: Callable[..., Any], run: Path, tmp_path: Path, words: list[str], code: int
) -> None:
    places = {"FRONT": str(run / "front"), "BACK": str(run / "back"), "LEDGER": str(tmp_path / "ledger")}
    places["OUT"] = str(tmp_path / "out")
    refused = dpf(*(places.get(word, word) for word in words))
    assert refused.code == code
    assert refused.err.strip().count("\n") == 0, refused.err
