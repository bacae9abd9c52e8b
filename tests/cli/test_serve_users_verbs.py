"""`dpf serve users`: a token is shown once, and a server of workers answers whoever has one."""

import errno
import json
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_user
from dp_forward.cli import serve_users
from dp_forward.privacy import NoiseSpec
from warm_process import Verb


def test_users_are_added_listed_rotated_and_revoked(dpf: Callable[..., Any], tmp_path: Path) -> None:
    store, audit, file = str(tmp_path / "store"), tmp_path / "audit", tmp_path / "token"
    log = ["--audit-log", str(audit)]
    first = dpf("serve", "users", "add", "alice", "--store", store, "--per-day", "5", "--json", *log)
    assert (first.code, first.json["name"], len(first.json["token"])) == (0, "alice", 64)
    kept = dpf("serve", "users", "add", "bob", "--store", store, "--class", "paid", "--token-out", str(file))
    assert kept.code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in kept.out
    second = dpf("serve", "users", "rotate", "alice", "--store", store, "--json", *log)
    assert second.json["token"] != first.json["token"]
    assert dpf("serve", "users", "list", "--store", store, "--json").json == [
        {"name": "alice", "class": "user", "per_day": 5, "used": 0, "tokens": 1},
        {"name": "bob", "class": "paid", "per_day": None, "used": None, "tokens": 1},
    ]
    assert dpf("serve", "users", "revoke", "alice", "--store", store, *log).code == 0
    table = dpf("serve", "users", "list", "--store", store).out
    assert "bob" in table
    assert "alice" not in table
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    wanted = ["user_added", "user_rotated", "user_revoked"]
    assert [(line["event"], line["name"]) for line in lines] == [(event, "alice") for event in wanted]
    assert not any(one.json["token"] in audit.read_text() for one in (first, second))


@pytest.mark.parametrize("verb", [["list"], ["rotate", "alice"], ["revoke", "alice"]])
def test_a_mistyped_store_is_refused_and_not_made(
    verb: list[str], dpf: Callable[..., Any], tmp_path: Path
) -> None:
    refused = dpf("serve", "users", *verb, "--store", str(tmp_path / "users"))
    assert (refused.code, list(tmp_path.iterdir())) == (2, [])
    assert "must hold users" in refused.err


def test_a_user_whose_token_cannot_be_shown_is_in_the_audit_log_all_the_same(
    dpf: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    audit = tmp_path / "audit"
    words = ["alice", "--store", str(tmp_path / "store"), "--audit-log", str(audit)]
    with monkeypatch.context() as disk:
        disk.setattr(serve_users, "_print_token", full)
        assert dpf("serve", "users", "add", *words).code == 1
    assert [json.loads(line)["event"] for line in audit.read_text().splitlines()] == ["user_added"]
    assert (
        dpf("serve", "users", "list", "--store", str(tmp_path / "store"), "--json").json[0]["name"] == "alice"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["users", "add", "alice", "--store", "STORE", "--token-out", "TAKEN"],
        ["users", "add", "two words", "--store", "STORE"],
        ["users", "add", "alice", "--store", "TAKEN"],
        ["users", "add", "alice", "--store", "STORE", "--audit-log", "STORE/no/such"],
        ["users", "revoke", "nobody", "--store", "STORE"],
        ["users", "rotate", "nobody", "--store", "STORE", "--grace", "5"],
        ["./users", "--store", "STORE", "--workers", "0"],
        ["./users", "--workers", "2"],
    ],
)
def test_what_cannot_be_done_is_one_line(dpf: Callable[..., Any], tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "taken").write_text("")
    places = {"STORE": str(tmp_path / "store"), "TAKEN": str(tmp_path / "taken")}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    refused = dpf("serve", *words)
    assert refused.code == 2
    assert refused.err.strip().count("\n") == 0, refused.err
    assert (tmp_path / "taken").read_text() == ""


@pytest.mark.slow
def test_two_workers_answer_a_user_until_revoked(dpf: Callable[..., Any], tmp_path: Path) -> None:
    run = tiny_user.write_user(tmp_path / "run", noise=NoiseSpec(epsilon=8.0))
    store, token = str(tmp_path / "store"), tmp_path / "token"
    dpf("serve", "users", "add", "alice", "--store", store, "--per-day", "1", "--token-out", str(token))
    words = ["serve", str(run / "back"), "--port", "0", "--store", store, "--workers", "2"]
    server = Verb(*words, log=tmp_path / "log")
    try:
        line = server.first_line()
        assert line["token"] is True
        ask = ["ask", str(run / "front"), "--server", line["address"], "--token-file", str(token)]
        ask += ["--ledger", str(tmp_path / "ledger"), "--budget", "80"]
        assert dpf(*ask, "a lovely film").code == 0
        assert dpf(*ask, "a lovely film", "--resend").code == 0, "the same bytes again are free"
        listed = dpf("serve", "users", "list", "--store", store, "--json").json
        assert (listed[0]["used"], listed[0]["per_day"]) == (1, 1)
        dpf("serve", "users", "revoke", "alice", "--store", store)
        time.sleep(1.0)
        headers = {"authorization": f"Bearer {token.read_text().strip()}"}
        page = f"{line['address']}/v1/manifest"
        found = [httpx.get(page, headers=headers, trust_env=False).status_code for _ in range(4)]
        assert found == [401] * 4, "whichever worker it was"
    finally:
        server.signal(signal.SIGTERM)
        assert server.finish(30) == 0
