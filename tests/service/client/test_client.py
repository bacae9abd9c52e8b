"""The client: nothing leaves that was not charged, nothing is charged twice, and no text is told."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import gzip
import json
import logging
import os
import random
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import anyio.to_thread
import httpx
import pytest
import torch
from starlette.testclient import TestClient

import tiny_user
from dp_forward.cli.serve import serve_locally
from dp_forward.errors import BudgetExhausted, DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.ledger import Ledger
from dp_forward.noise.released.released_matrix import release
from dp_forward.privacy import NoiseSpec
from dp_forward.service.client import client as client_module
from dp_forward.service.client.client import Client
from dp_forward.service.client.transport import RetryPolicy, ServerRefused, ServerUnavailable
from dp_forward.service.protocol.frame import HEADER_BYTES, parse_frame
from dp_forward.service.protocol.policy import Policy, ProtocolMismatch
from dp_forward.split.artifacts import UserSide, front_of, load_provider_side, load_user_side
from tiny_user import SERVER, Network, texts

AT_ONCE = RetryPolicy(attempts=4, first=0.0, longest=0.0)
TEXT = "a lovely warm film"
BUDGET = 900.0
CHANGED = {"bad": 0.25, "good": 0.75}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_user.write_user(tmp_path_factory.mktemp("run"), noise=NoiseSpec(epsilon=2.0))


@pytest.fixture(scope="module")
def user(run: Path) -> UserSide:
    return load_user_side(run / "front")


@pytest.fixture
def network(tmp_path: Path, user: UserSide) -> Network:
    return Network(tmp_path / "posted", tiny_user.manifest_of(Policy.of(user)))


Make = Callable[..., Client]


@pytest.fixture
def make(tmp_path: Path, user: UserSide, network: Network) -> Make:
    def made(front: Any = user, **settings: Any) -> Client:
        usual: dict[str, Any] = {
            "server": SERVER,
            "ledger": tmp_path / "ledger",
            "budget": BUDGET,
            "retry": AT_ONCE,
        }
        return Client(front, **{**usual, "transport": network.transport(), **settings})

    return made


def integers(frame: bytes) -> bytes:
    return frame[HEADER_BYTES:]


def in_child(work: Callable[[], object]) -> int:
    """Run in a fork; the exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# One question


def test_an_answer_says_what_it_cost(make: Make, network: Network) -> None:
    with make() as client:
        answer = client.ask(TEXT)
        assert (answer.charge, answer.spent, answer.remaining) == (2.0, 2.0, BUDGET - 2.0)
        assert (answer.resent, answer.truncated) == (False, False)
        assert answer.label == tiny_user.answer_to(network.posted[0])["label"]
        assert sum(answer.probabilities.values()) == pytest.approx(1)
        assert client.summary().delivered == 1


@pytest.mark.slow
def test_a_decision_goes_to_a_real_server_and_back(tmp_path: Path) -> None:
    decision = NoiseSpec(mechanism="k-ary-response", epsilon=4.0, columns=len(tiny_user.LABELS))
    run = tiny_user.write_user(tmp_path / "run", noise=decision, cut="output", width=decision.columns)
    back = load_provider_side(run / "back").back.eval()
    with (
        serve_locally(run) as address,
        Client(run / "front", server=address, ledger=tmp_path / "ledger", budget=20.0) as client,
    ):
        assert client.offered_epsilons() == (4.0, 2.0, 1.0)
        for epsilon in (4.0, 2.0):
            answer = client.ask(TEXT, epsilon=epsilon)
            assert (answer.charge, answer.resent) == (epsilon, False)
            noisy = client.preview(TEXT, epsilon=epsilon).noisy
            assert noisy is not None
            assert sorted(noisy.ravel().tolist()) == [0.0, 1.0]
            with torch.inference_mode():
                wanted = torch.softmax(back(torch.as_tensor(noisy)[None]).logits, dim=-1)[0].tolist()
            assert list(answer.probabilities.values()) == pytest.approx(wanted, abs=1e-6)
        again = client.ask(TEXT)
        assert (again.charge, again.spent, again.remaining) == (0.0, 6.0, 14.0)
        assert len(list(client.ask_many(texts(3)))) == 3
        assert client.summary().delivered == 5


def test_a_frame_is_the_policys_and_nothing_else(make: Make, network: Network, user: UserSide) -> None:
    with make(token="a-token-of-some-length") as client:
        client.ask(TEXT)
        policy = client.policy
    header = parse_frame(network.posted[0]).header
    assert (header.rows, header.width, header.bits) == (
        policy.release.matrix_rows,
        policy.release.width,
        policy.release.bits,
    )
    assert (header.cut, header.front.hex()) == ("encoder.1", user.digest)
    assert header.epsilon == pytest.approx(2.0, rel=1e-9)
    assert network.seen[-1].headers["content-type"] == "application/octet-stream"
    assert network.seen[-1].headers["authorization"] == "Bearer a-token-of-some-length"


def test_the_same_text_again_is_answered_from_the_store_and_nothing_is_sent(
    make: Make, network: Network
) -> None:
    with make() as client:
        first, seen = client.ask(TEXT), len(network.seen)
        assert not first.stored
        found = [client.ask(TEXT)]
    with make(budget=None) as later:  # which has not even asked for the manifest
        found += [later.ask(TEXT.upper()), *later.ask_many([TEXT])]  # the same tokens
    for again in found:
        assert (again.charge, again.resent, again.stored) == (0.0, True, True)
        assert (again.label, again.probabilities, again.spent) == (
            first.label,
            first.probabilities,
            first.spent,
        )
    assert len(network.seen) == seen


def test_resending_sends_the_same_bytes_for_free_and_takes_the_new_answer(
    make: Make, network: Network
) -> None:
    with make() as client:
        first = client.ask(TEXT)
        changed = tiny_user.answer_to(network.posted[0]) | {"label": "good", "probabilities": CHANGED}
        network.weather = lambda request: (
            httpx.Response(200, json=changed) if request.method == "POST" else None
        )
        assert client.ask(TEXT).probabilities == first.probabilities
        found = [client.ask(TEXT, resend=True), *client.ask_many([TEXT, TEXT], resend=True)]
        for again in found:
            assert (again.charge, again.resent, again.stored) == (0.0, True, False)
            assert again.probabilities == CHANGED
        assert client.ask(TEXT).probabilities == CHANGED  # it took the old one's place
    assert len(network.posted) == 4
    assert len(set(network.posted)) == 1


def test_a_text_that_a_batch_holds_twice_is_sent_once(make: Make, network: Network) -> None:
    with make() as client:
        found = list(client.ask_many([TEXT, *texts(3), TEXT.upper(), TEXT]))
    assert [answer.stored for answer in found] == [False] * 4 + [True] * 2
    assert len(network.posted) == 4


def test_an_answer_that_never_came_is_asked_for_again(make: Make, network: Network) -> None:
    network.weather = lambda request: httpx.Response(503) if request.method == "POST" else None
    with make() as client:
        with pytest.raises(ServerUnavailable):
            client.ask(TEXT)
        network.weather = lambda request: None
        answer = client.ask(TEXT)
    assert (answer.charge, answer.resent, answer.stored) == (0.0, True, False)
    assert len(set(network.posted)) == 1


def test_days_later_the_same_integers_go_under_a_new_header(
    make: Make, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make() as client:
        client.ask(TEXT)
        now = client_module.time.time() + 3 * 86400
        monkeypatch.setattr(client_module.time, "time", lambda: now)
        again = client.ask(TEXT, resend=True)
        assert client.summary().releases == 1
    first, second = (parse_frame(body).header for body in network.posted)
    assert again.charge == 0.0
    assert integers(network.posted[0]) == integers(network.posted[1])
    assert second.time == int(now)
    assert second.request != first.request


NOON = 1_800_000_000
HOUR = 3600


class Clocks:
    """The server's clock stands at noon; the user's is off by so many seconds."""

    def __init__(self, network: Network, patch: pytest.MonkeyPatch) -> None:
        self.off, self.tells = 0, True
        patch.setattr(client_module.time, "time", lambda: NOON + self.off)
        self._manifest, network.weather = network.manifest, self._answer

    def _answer(self, request: httpx.Request) -> httpx.Response | None:
        if request.method == "GET":
            told = {"date": email.utils.formatdate(NOON, usegmt=True)} if self.tells else {}
            return httpx.Response(200, json=self._manifest, headers=told)
        age = NOON - parse_frame(request.content).header.time
        return None if -300 <= age <= 24 * HOUR else httpx.Response(400, json={"error": "time"})


@pytest.fixture
def clocks(network: Network, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(network, monkeypatch)


@pytest.mark.parametrize("off", [HOUR, 301, -25 * HOUR])
def test_a_wrong_clock_is_refused_before_a_charge_and_both_times_are_named(
    make: Make, network: Network, clocks: Clocks, off: int
) -> None:
    clocks.off = off
    with make() as client:
        with pytest.raises(InvalidInput, match=r"clock.*2027-01-15 08:00:00 UTC.*got 2027.* UTC") as refused:
            client.ask(TEXT)
        assert refused.value.exit_code == 2
        assert (client.summary().releases, network.posted) == (0, [])
        clocks.off = 0
        assert client.ask(TEXT).charge == 2.0


@pytest.mark.parametrize("off", [299, -23 * HOUR])
def test_a_clock_that_the_server_takes_is_taken_here(make: Make, clocks: Clocks, off: int) -> None:
    clocks.off = off
    with make() as client:
        assert client.ask(TEXT).charge == 2.0


def test_a_clock_that_is_set_while_a_client_lives_is_noticed_before_a_charge(
    make: Make, network: Network, clocks: Clocks
) -> None:
    with make() as client:
        client.ask(TEXT)
        clocks.off = HOUR
        with pytest.raises(InvalidInput, match="clock"):
            client.ask("a dull film")
        assert (client.summary().releases, len(network.posted)) == (1, 1)
        assert client.ask(TEXT).stored  # which needs no server


@pytest.mark.parametrize("off", [HOUR, 5 * HOUR, -25 * HOUR])
def test_a_text_that_was_drawn_by_a_wrong_clock_is_answered_when_the_clock_is_right(
    make: Make, network: Network, clocks: Clocks, off: int
) -> None:
    clocks.off, clocks.tells = off, False  # a server that tells no time
    with make() as client:
        with pytest.raises(ServerRefused, match="time"):
            client.ask(TEXT)
        assert client.summary().releases == 1
        clocks.off = 0
        answer = client.ask(TEXT)
        assert (answer.charge, answer.spent, client.summary().releases) == (0.0, 2.0, 1)
    refused, taken = network.posted
    assert integers(refused) == integers(taken)
    assert parse_frame(taken).header.time == NOON


def test_texts_that_differ_are_charged_each(make: Make, network: Network) -> None:
    with make() as client:
        for text in texts(3):
            client.ask(text)
        assert client.summary().spent == 6.0
    assert len({integers(body) for body in network.posted}) == 3


def test_a_long_text_is_cut_silently_towards_the_server(make: Make, network: Network) -> None:
    exact = " ".join(["film"] * 10)  # with [CLS] and [SEP], the 12 rows
    with make() as client:
        assert not client.ask(exact).truncated
        assert client.ask(exact + " dull", resend=True).truncated
        assert client.summary().releases == 1  # what was cut off was not released
    short, long = network.posted
    assert len(short) == len(long)


@pytest.mark.parametrize("text", ["", "\n\t ", "\u200b", "\x00", None, b"bytes", "\ud800"])
def test_nothing_to_read_is_refused_here(make: Make, network: Network, text: Any) -> None:
    with make() as client:
        with pytest.raises(InvalidInput):
            client.ask(text)
        assert client.summary().releases == 0
    assert network.posted == []


PAIR = ("a lovely film", "the plot is dull")


def test_a_pair_is_one_release_of_both_texts(make: Make, network: Network, user: UserSide) -> None:
    with make() as client:
        first = client.ask(PAIR)
        again = client.ask(tuple(part.upper() for part in PAIR))
        assert (first.charge, again.charge, again.resent, first.truncated) == (2.0, 0.0, True, False)
        for other in (PAIR[::-1], " ".join(PAIR), PAIR[0]):
            assert client.ask(other).charge == 2.0
        read = client.preview(PAIR).tokens
        (many,) = client.ask_many([PAIR])
        assert (many.charge, many.label) == (0.0, first.label)
    expected, _ = user.tokens.encode_arrays([PAIR[0]], [PAIR[1]])
    assert all(bool((read[name] == expected[name]).all()) for name in expected)
    assert sorted(set(read["token_type_ids"].ravel().tolist())) == [0, 1]
    assert {len(body) for body in network.posted} == {len(network.posted[0])}


def test_a_long_pair_is_cut_and_the_user_is_told(make: Make, network: Network) -> None:
    with make() as client:
        assert not client.ask(("film " * 4, "plot " * 5)).truncated  # with three marks, the 12 rows
        assert client.ask(("film " * 4, "plot " * 6)).truncated
        assert client.ask(("film " * 50, "plot")).truncated
    assert len({len(body) for body in network.posted}) == 1


@pytest.mark.parametrize(
    "pair",
    [
        ("", "a film"),
        ("a film", "\u200b"),
        ("a film", None),
        ("a film",),
        ("a", "b", "c"),
    ],
)
def test_half_a_pair_is_refused_here(make: Make, network: Network, pair: Any) -> None:
    with make() as client:
        with pytest.raises(InvalidInput):
            client.ask(pair)
        assert client.summary().releases == 0
    assert network.posted == []


# Whom to trust


def hostile(honest: dict[str, Any]) -> list[Any]:
    """Twenty manifests, and some that are none."""
    noise = honest["noise"]
    changes: list[dict[str, Any]] = [
        *({"noise": noise | change} for change in (
            {"epsilon": 2.1},
            {"epsilon": 1e6},
            {"epsilon": 1.0},  # more noise, which nobody allowed
            {"threshold_share": 0.0},
            {"threshold_share": 4.0},
            {"norm": 100.0},
            {"norm": 0.01},
            {"how": "clip"},
            {"unit": "token"},
            {"mechanism": "matrix-gaussian", "delta": 0.5},
            {"sigma": 0.0},
        )),
        {"noise": None},
        {"rows": 13},
        {"rows": 1, "matrix_rows": 1},
        {"width": 32},
        {"bits": 16},
        {"cut": "embeddings"},
        {"cut": "output", "matrix_rows": 1},
        {"front": "00" * 32},
        {"labels": ["good", "bad"]},
        {"labels": ["bad", "good", "more"]},
        {"version": 2},
        {"please": "less"},
    ]  # fmt: skip
    bare = {name: value for name, value in honest.items() if name != "noise"}
    others = [b"", b"null", b"[" * 100_000, b"\xff", b'{"noise": NaN}', b"x" * (2 << 20)]
    return [honest | change for change in changes] + [bare] + others


@pytest.mark.slow
def test_a_hostile_manifest_gets_nothing(make: Make, network: Network, user: UserSide) -> None:
    def guarded() -> Client:
        def untouchable(*_: Any) -> NoReturn:
            raise AssertionError("the text was used")

        client = make()
        client._pay = untouchable  # type: ignore[method-assign]
        return client

    manifests = hostile(network.manifest)
    assert len(manifests) >= 20
    for manifest in manifests:
        network.manifest = manifest
        with guarded() as client:
            with pytest.raises(ProtocolMismatch) as refused:
                client.ask(TEXT)
            assert refused.value.exit_code == 4
            assert client.summary().releases == 0
    assert network.posted == []
    network.manifest = tiny_user.manifest_of(Policy.of(user))
    with guarded() as client, pytest.raises(AssertionError):  # the control: an honest one gets there
        client.ask(TEXT)


def test_more_noise_is_drawn_where_the_user_asks_for_it(make: Make, network: Network) -> None:
    network.manifest["noise"]["epsilon"] = 1.0
    with make(epsilon=1.0) as client:
        assert client.ask(TEXT).charge == 1.0
    assert parse_frame(network.posted[0]).header.epsilon == pytest.approx(1.0, rel=1e-9)


def test_plain_http_is_for_this_machine_only(make: Make, network: Network) -> None:
    for server in ("http://provider.example", "ftp://127.0.0.1", "127.0.0.1:80", "", "https://me:word@host"):
        with pytest.raises(InvalidInput) as refused:
            make(server=server)
        assert "word" not in str(refused.value)
    for server in ("http://localhost:1", "http://[::1]:1", "https://provider.example/a/"):
        make(server=server).close()
    assert network.seen == []


def test_a_redirect_is_not_followed_and_a_cookie_not_kept(make: Make, network: Network) -> None:
    away = {"location": "https://elsewhere.example/", "set-cookie": "you=1"}
    with make() as client:
        client.ask(TEXT)
        network.weather = lambda request: httpx.Response(307, headers=away)
        with pytest.raises(ServerRefused):
            client.ask(TEXT, resend=True)
        network.weather = lambda request: None
        client.ask(TEXT, resend=True)
    assert {request.url.host for request in network.seen} == {"127.0.0.1"}
    assert all("cookie" not in request.headers for request in network.seen)


def answers(frame: bytes) -> list[httpx.Response]:
    """Answers that are none."""
    good = tiny_user.answer_to(frame)
    changed: list[Any] = [
        good | {"label": "evil"},
        good | {"request": "00" * 16},
        good | {"probabilities": {"bad": 2.0, "good": -1.0}},
        good | {"probabilities": {"bad": 0.1, "good": 0.1}},
        good | {"probabilities": {"bad": "1", "good": 0}},
        good | {"probabilities": {"bad": 1.0}},
        good | {"probabilities": [0.5, 0.5]},
        good | {"label": "bad", "probabilities": {"bad": 0.4999, "good": 0.5001}},
        {},
        [],
    ]
    bodies = [json.dumps(body).encode() for body in changed]
    bodies += [b"", b"{" * 50_000, b"[1e999]", json.dumps(good).encode() + b" " * (1 << 20)]
    packed = {"content-encoding": "gzip"}
    bomb = httpx.Response(200, stream=httpx.ByteStream(gzip.compress(bytes(1 << 24))), headers=packed)
    return [*(httpx.Response(200, content=body) for body in bodies), bomb]


@pytest.mark.slow
def test_an_answer_that_makes_no_sense_is_refused_and_costs_nothing_more(
    make: Make, network: Network
) -> None:
    with make() as client:
        client.ask(TEXT)
        for response in answers(network.posted[0]):
            network.weather = lambda request, response=response: response  # type: ignore[misc]
            with pytest.raises(ServerRefused):
                client.ask(TEXT, resend=True)
        assert client.summary().spent == 2.0


# The budget and the files


def test_an_exhausted_budget_sends_nothing(make: Make, network: Network) -> None:
    with make(budget=4.0) as client:
        for text in texts(2):
            client.ask(text)
        with pytest.raises(BudgetExhausted) as refused:
            client.ask(TEXT)
        assert refused.value.exit_code == 3
        assert len(network.posted) == 2
        assert client.ask(texts(2)[0]).resent  # what was paid for is still free


def test_a_new_ledger_needs_a_budget_and_an_old_one_keeps_its_own(make: Make) -> None:
    with pytest.raises(InvalidInput, match="budget"):
        make(budget=None)
    make().close()
    with make(budget=None) as client:
        assert client.summary().cap == BUDGET
    with pytest.raises(InvalidInput, match="cap"):
        make(budget=BUDGET + 1)


@pytest.mark.slow
def test_a_budget_per_day_is_a_second_cap(
    make: Make, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(budget=6.0, budget_per_day=4.0) as client:
        found = [client.ask(text) for text in texts(2)]
        assert [answer.remaining for answer in found] == [2.0, 0.0]
        with pytest.raises(BudgetExhausted, match="per day") as refused:
            client.ask(TEXT)
        assert refused.value.exit_code == 3
        assert len(network.posted) == 2
        assert client.ask(texts(1)[0]).resent
        tomorrow = time.time_ns() + 86_400 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda: tomorrow)
        assert client.ask(TEXT).remaining == 0.0  # 2 of the day and none of the cap
        assert client.summary().remaining_today == 2.0
    for other in ({"budget": 6.0, "budget_per_day": 3.0}, {"budget": 7.0}):
        with pytest.raises(InvalidInput, match="cap"):
            make(**{"budget": None, **other})
    with make(ledger=tmp_path / "daily", budget=None, budget_per_day=4.0) as client:
        assert (client.summary().cap, client.summary().per_day) == (None, 4.0)
        assert client.ask(TEXT).remaining == 2.0
    make(ledger=tmp_path / "plain").close()
    with pytest.raises(InvalidInput, match="per day, none"):
        make(ledger=tmp_path / "plain", budget_per_day=4.0)


@pytest.mark.slow
def test_gaussian_releases_add_up_slower_and_need_a_ledger_with_a_delta(
    make: Make, network: Network, user: UserSide, tmp_path: Path
) -> None:
    noise = NoiseSpec(mechanism="matrix-gaussian", epsilon=2.0, delta=1e-5)
    gaussian = replace(user, spec=replace(user.spec, noise=noise))
    network.manifest = tiny_user.manifest_of(Policy.of(gaussian))
    with make(gaussian, ledger=tmp_path / "gaussian") as client:
        found = [client.ask(text) for text in texts(4)]
    assert found[0].charge == pytest.approx(2.0, rel=1e-6)
    assert {answer.spent for answer in found} == {None}, "no epsilon, as long as more may be asked"
    assert found[-1].charged["mu"] == pytest.approx(2 * found[0].charged["mu"])
    assert BUDGET > found[-1].remaining > BUDGET - 4 * found[0].charge
    make().close()  # a ledger for pure releases
    with pytest.raises(InvalidInput, match="no Gaussian one"):
        make(gaussian)
    with pytest.raises(InvalidInput, match="Only pure noise goes by the day alone"):
        make(gaussian, ledger=tmp_path / "daily", budget=None, budget_per_day=4.0)
    assert not (tmp_path / "daily").exists()


@pytest.mark.slow
def test_a_front_that_protects_another_unit_is_refused_before_a_text_is_read(
    make: Make, network: Network, tmp_path: Path
) -> None:
    """A text and a token in one ledger would be one epsilon for two promises."""
    noise = NoiseSpec(epsilon=2.0, unit="token", rows=12)
    run = tiny_user.write_user(tmp_path / "by-token", noise=noise, cut="embeddings", width=None)
    by_token = load_user_side(run / "front")
    with make() as client:
        client.ask(TEXT)
        assert client.summary().unit == "text"
    with pytest.raises(InvalidInput, match="charges are per text; got token") as refused:
        make(by_token)
    assert refused.value.exit_code == 2
    network.manifest = tiny_user.manifest_of(Policy.of(by_token))
    empty = tmp_path / "empty"
    with make(by_token, ledger=empty) as first, make(ledger=empty) as second:
        first.ask(TEXT)
        assert first.summary().unit == "token"
        network.manifest = tiny_user.manifest_of(second.policy)
        with pytest.raises(InvalidInput, match="charges are per token; got text"):
            second.ask("a lovely warm scene")  # it was opened when the ledger had no unit
        assert (first.summary().releases, len(network.posted)) == (1, 2)


def test_the_policy_that_a_client_shows_is_the_one_it_asks_by(make: Make) -> None:
    client = make()
    shown, other = repr(client), client.policy.with_epsilon(0.5)
    assert "2.0-LDP per text" in shown
    with pytest.raises(AttributeError):
        client.policy = other  # type: ignore[misc]
    for owner, name, value in (
        (client.policy, "noise", other.noise),
        (client.policy.noise, "epsilon", 0.5),
        (client.policy.terms(), "charge", other.terms().charge),
    ):
        with pytest.raises(AttributeError):
            setattr(owner, name, value)
    assert repr(client) == shown
    client.close()


def test_what_lies_beside_the_ledger_is_its_owners_and_tells_no_text(make: Make, tmp_path: Path) -> None:
    with make() as client:
        client.ask(TEXT)
    for place in (tmp_path / "ledger", tmp_path / "ledger.secret", tmp_path / "ledger.answers"):
        assert place.stat().st_mode & 0o077 == 0
        assert b"lovely" not in place.read_bytes()


def test_a_lost_or_open_secret_is_refused(make: Make, tmp_path: Path) -> None:
    with make() as client:
        client.ask(TEXT)
    secret = tmp_path / "ledger.secret"
    secret.chmod(0o644)
    with pytest.raises(InvalidInput, match="owner"):
        make()
    secret.chmod(0o600)
    secret.rename(tmp_path / "away")
    with pytest.raises(InvalidInput, match="secret"):
        make()
    assert not secret.exists()


def test_another_secret_makes_other_keys(make: Make, tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        with make(ledger=tmp_path / name) as client:
            client.ask(TEXT)
        with Ledger.open(tmp_path / name) as ledger, ledger._reading():
            release_made = ledger._chain.get(1)
            assert release_made is not None
            keys.append(release_made.key)
    assert keys[0] != keys[1]


def test_a_file_that_is_no_ledger_sends_nothing(make: Make, network: Network, tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(b"not a ledger, but long enough to be read as one" * 100)
    with pytest.raises(LedgerCorrupt):
        make(budget=None)
    assert network.seen == []


def test_a_ledger_of_another_version_sends_nothing_and_is_left_alone(
    make: Make, network: Network, tmp_path: Path
) -> None:
    make().close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger")) as connection:
        connection.execute("PRAGMA user_version = 1")
    before = (tmp_path / "ledger").read_bytes()
    with pytest.raises(LedgerCorrupt, match=r"version 1.*a new ledger"):
        make()
    assert network.seen == []
    assert (tmp_path / "ledger").read_bytes() == before


@contextlib.contextmanager
def no_room(most: int) -> Iterator[None]:
    """The real thing: the system lets no file grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("made_first", [True, False])
def test_wherever_a_full_disk_stops_it_nothing_leaves_uncharged_and_nothing_is_charged_twice(
    make: Make, network: Network, tmp_path: Path, made_first: bool
) -> None:
    """From no room at all to enough: the making, the charge and the release each fail somewhere."""

    def attempt(place: Path, most: int) -> str:
        reached = "not made"
        with contextlib.suppress(LedgerUnavailable), contextlib.ExitStack() as stack:
            if not made_first:
                stack.enter_context(no_room(most))
            client = stack.enter_context(make(ledger=place))
            reached = "asked"
            if made_first:
                stack.enter_context(no_room(most))
            client.ask(TEXT)
            reached = "answered"
        return reached

    seen: set[str] = set()
    for number, most in enumerate([*range(0, 80_000, 5_000), 1 << 20]):
        place, sent, charged = tmp_path / f"l{number}", len(network.posted), 0
        reached = attempt(place, most)
        posted = network.posted[sent:]
        if place.exists():
            with Ledger.open(place) as ledger:
                ledger.verify()
                charged = ledger.releases
                for body in posted:
                    assert ledger.payload(1) == body
                for release_made in ledger.pending():
                    reached += f", {release_made.state}"
        assert charged == 1 or not posted
        seen.add(reached if charged or reached == "not made" else "asked, not charged")
        with make(ledger=place) as client:  # room again
            answer = client.ask(TEXT)
            assert answer.charge == (0.0 if charged else 2.0)
            assert (client.summary().releases, client.summary().delivered, answer.spent) == (1, 1, 2.0)
        assert len(set(network.posted[sent:])) == 1
    stopped_at = {"asked, not charged", "asked, reserved"} if made_first else {"not made", "asked, reserved"}
    assert seen >= {*stopped_at, "answered"}, seen


@pytest.mark.parametrize("file", ["answers", "ledger"])
def test_a_disk_that_fills_up_while_the_server_answers_costs_nothing(
    make: Make, network: Network, tmp_path: Path, file: str
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(*_: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))

    with make() as client:
        plain = client._ledger.delivered
        if file == "ledger":
            network.storm = fill
        else:
            client._ledger.delivered = lambda number: (plain(number), fill())  # type: ignore[method-assign]
        try:
            with pytest.raises(LedgerUnavailable, match="The release was sent") as refused:
                client.ask(TEXT)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "nothing was sent" not in str(refused.value)
        network.storm = lambda request: None
        assert (client.summary().releases, client.summary().delivered) == (1, int(file == "answers"))
        answer = client.ask(TEXT)
        assert (answer.charge, answer.spent, client.summary().delivered) == (0.0, 2.0, 1)
    assert len(set(network.posted)) == 1


def test_a_folder_where_nothing_may_be_written_is_a_clear_refusal(make: Make, network: Network) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(ledger=folder / "old").close()
        for place in (folder, *folder.iterdir()):
            place.chmod(0o555 if place == folder else 0o644)

        def try_both() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)  # the owner of a machine may write anywhere
            for ledger, match in (("new", "denied"), ("old", "rights")):
                with pytest.raises(LedgerUnavailable, match=match):
                    make(ledger=folder / ledger, budget=None if ledger == "old" else BUDGET)

        assert in_child(try_both) == 0
        folder.chmod(0o755)
        assert {place.name for place in folder.iterdir()} == {"old", "old.secret", "old.answers"}
    assert network.seen == []


# Failures


def test_hundreds_of_retries_are_one_charge_and_the_same_bytes(make: Make, network: Network) -> None:
    left = iter(range(300))

    def weather(request: httpx.Request) -> None:
        if request.method == "POST" and next(left, None) is not None:
            raise httpx.ReadError("lost")

    network.weather = weather
    with make(retry=RetryPolicy(attempts=301, first=0.0)) as client:
        answer = client.ask(TEXT)
        assert (answer.charge, client.summary().releases) == (2.0, 1)
    assert len(network.posted) == 301
    assert len(set(network.posted)) == 1


@pytest.mark.slow
def test_with_every_third_message_lost_each_text_has_one_charge_and_one_answer(
    make: Make, network: Network, tmp_path: Path
) -> None:
    luck = random.Random(5)
    lost = 0

    def weather(request: httpx.Request) -> httpx.Response | None:
        nonlocal lost
        kind = luck.random()
        lost += kind < 0.2
        if kind < 0.1:
            raise httpx.ConnectError("lost on the way there")
        return httpx.Response((429, 500, 503, 408)[luck.randrange(4)]) if kind < 0.2 else None

    def storm(request: httpx.Request) -> None:
        nonlocal lost
        if luck.random() < 0.125:  # of the four fifths that got here: 30 % in all
            lost += 1
            raise httpx.ReadError("lost on the way back")

    network.weather, network.storm = weather, storm
    wanted, found, tries = texts(80), {}, 0
    while len(found) < len(wanted):
        tries += 1
        with make(retry=RetryPolicy(attempts=3, first=0.0)) as client:
            try:
                for text, answer in zip(wanted, client.ask_many(wanted), strict=True):
                    found[text] = answer
            except ServerUnavailable:
                continue
    assert tries > 1  # it was begun anew, and found its way
    assert lost > 0.2 * len(network.seen)
    by_id: dict[bytes, set[bytes]] = {}
    for body in network.posted:
        by_id.setdefault(parse_frame(body).header.request, set()).add(body)
    assert len(by_id) == 80
    assert all(len(bodies) == 1 for bodies in by_id.values())
    with Ledger.open(tmp_path / "ledger") as ledger:
        summary = ledger.summary()
        ledger.verify()
    assert (summary.releases, summary.delivered, summary.spent) == (80, 80, 160.0)
    with make() as client:
        assert len(client._answers) == 80


def test_a_refusal_is_not_repeated(make: Make, network: Network) -> None:
    for status in (400, 401, 403, 404, 409, 413, 415, 422):
        network.seen.clear()
        network.weather = lambda request, status=status: (  # type: ignore[misc]
            httpx.Response(status, json={"error": "no_noise"}) if request.method == "POST" else None
        )
        with make() as client, pytest.raises(ServerRefused) as refused:
            client.ask(TEXT)
        assert refused.value.exit_code == 4
        assert len(network.seen) == 2
        assert ("token" if status == 401 else "no_noise") in str(refused.value)


def test_a_token_that_expired_leaves_the_charge_and_nothing_else(make: Make, network: Network) -> None:
    def weather(request: httpx.Request) -> httpx.Response | None:
        right = request.headers.get("authorization") == "Bearer the-new-token" or request.method == "GET"
        return None if right else httpx.Response(401, json={"error": "token"})

    network.weather = weather
    with make(token="the-old-token") as client:
        with pytest.raises(ServerRefused, match="token"):
            client.ask(TEXT)
        assert (client.summary().releases, client.summary().delivered) == (1, 0)
        assert len(client._answers) == 0
    with make(token="the-new-token") as client:
        answer = client.ask(TEXT)
        assert (answer.charge, answer.spent) == (0.0, 2.0)
    assert len(set(network.posted)) == 1


def test_retry_after_is_obeyed_within_reason() -> None:
    retry = RetryPolicy(first=1.0, longest=30.0)
    assert retry.wait(0, "7") == 7.0
    assert retry.wait(0, "9" * 400) == 30.0
    assert all(0.5 <= retry.wait(0, odd) <= 1.0 for odd in (None, "", "-3", "soon", "1e9", "\u0667"))
    assert all(15.0 <= retry.wait(n) <= 30.0 for n in (5, 60, 10_000))
    assert len({retry.wait(3) for _ in range(20)}) > 10  # clients do not come back all at once


def test_a_server_that_is_busy_is_asked_again_when_it_says(make: Make, network: Network) -> None:
    busy = iter([httpx.Response(429, headers={"retry-after": "0"}), httpx.Response(503)])
    network.weather = lambda request: next(busy, None) if request.method == "POST" else None
    with make() as client:
        assert client.ask(TEXT).charge == 2.0
    assert len(network.posted) == 3


@pytest.mark.slow
def test_an_answer_that_drips_is_given_up(make: Make, network: Network) -> None:
    dripped = 0

    class Dripping(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            nonlocal dripped
            for _ in range(500):
                time.sleep(0.02)
                dripped += 1
                yield b" "

    network.weather = lambda request: (
        httpx.Response(200, stream=Dripping()) if request.method == "POST" else None
    )
    with (
        make(retry=RetryPolicy(attempts=2, first=0.0, timeout=0.1)) as client,
        pytest.raises(ServerUnavailable),
    ):
        client.ask(TEXT)
    assert dripped < 500  # of each of the two answers
    assert len(set(network.posted)) == 1


STEPS = ("reserve", "_draw", "_frame", "ready", "send", "receive", "delivered", "store")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_step_sends_nothing_uncharged_and_no_second_draw(
    make: Make, network: Network, tmp_path: Path, step: str, when: str
) -> None:
    def unpaid(request: httpx.Request) -> None:
        """At the moment the bytes leave, they are charged and stored."""
        if request.method == "POST":
            with Ledger.open(tmp_path / "ledger") as ledger:
                assert ledger.releases == 1
                assert ledger.payload(1) == request.content

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> NoReturn:
            if when == "after":
                work(*args, **kwargs)
            os._exit(9)

        return wrapped

    def child() -> None:
        with make() as client:
            if step in ("send", "receive"):
                plain = network.weather if step == "send" else network.storm
                name = "weather" if step == "send" else "storm"
                setattr(
                    network, name, lambda request: dying(plain)(request) if request.method == "POST" else None
                )
            else:
                owner = next(o for o in (client, client._ledger, client._answers) if hasattr(o, step))
                setattr(owner, step, dying(getattr(owner, step)))
            client.ask(TEXT)

    network.weather = unpaid  # type: ignore[assignment]
    assert in_child(child) == 9
    before = len(network.posted)
    assert (before == 0) == (STEPS.index(step) < STEPS.index("send"))
    with make() as client:
        answer = client.ask(TEXT)
        assert (client.summary().releases, client.summary().delivered) == (1, 1)
    assert answer.spent == 2.0
    assert answer.charge == (2.0 if (step, when) == ("reserve", "before") else 0.0)
    assert len(set(network.posted)) == 1  # all bytes that ever left for this text


# Many questions


def test_a_batch_goes_on_where_it_was_interrupted(make: Make, network: Network) -> None:
    wanted, told = texts(6), []
    with make() as client:
        some = client.ask_many(wanted, progress=told.append, at_once=1)
        first = [next(some) for _ in range(3)]
    with make() as client:
        whole = list(client.ask_many(wanted, progress=told.append, at_once=1))
    assert told == [1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert [a.label for a in whole[:3]] == [a.label for a in first]
    assert [a.resent for a in whole] == [True] * 3 + [False] * 3
    assert len(network.posted) == 6  # the answers that were there were not asked for again


def test_an_answer_of_another_server_is_not_taken_for_this_ones(make: Make, network: Network) -> None:
    with make() as client:
        list(client.ask_many([TEXT]))
    with make(server="https://other.example") as client:
        (answer,) = client.ask_many([TEXT])
    assert answer.charge == 0.0  # the same release, to be sure
    assert len(network.posted) == 2
    assert len(set(network.posted)) == 1


def test_answers_that_were_deleted_or_damaged_cost_nothing(make: Make, tmp_path: Path) -> None:
    with make() as client:
        list(client.ask_many([TEXT]))
    (tmp_path / "ledger.answers").unlink()
    with make() as client:
        assert [answer.charge for answer in client.ask_many([TEXT])] == [0.0]
    (tmp_path / "ledger.answers").write_bytes(b"damaged" * 1000)
    with pytest.raises(LedgerUnavailable, match="remove"):
        make()


# Side by side


@pytest.mark.slow
def test_an_async_program_asks_in_threads(make: Make, network: Network) -> None:
    async def whole() -> list[Any]:
        with make() as client:
            asked = (anyio.to_thread.run_sync(client.ask, text) for text in ["a dull film"] * 5 + texts(5))
            return await asyncio.gather(*asked)

    assert sum(answer.charge for answer in asyncio.run(whole())) == 12.0
    assert len(set(network.posted)) == 6


def test_a_bad_text_in_a_batch_is_named_by_its_number_and_ends_it(make: Make, network: Network) -> None:
    found = []
    with make() as client, pytest.raises(InvalidInput, match="text 3"):
        found.extend(client.ask_many([*texts(2), "", *texts(9)], at_once=3))
    assert len(network.posted) == 2  # nothing behind it was charged or sent


@pytest.mark.slow
def test_forked_processes_never_draw_the_same_noise(make: Make, network: Network, tmp_path: Path) -> None:
    def draw_in_four(prefix: str) -> set[bytes]:
        before = len(network.posted)
        for number in range(4):
            assert in_child(lambda number=number: make(ledger=tmp_path / f"{prefix}{number}").ask(TEXT)) == 0  # type: ignore[misc]
        return {integers(body) for body in network.posted[before:]}

    with make() as client:
        client.ask(TEXT)
        assert len(draw_in_four("fresh") | {integers(network.posted[0])}) == 5


@pytest.mark.slow
def test_the_control_of_the_forks_can_fail(
    make: Make, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = random.Random(1)  # noise with a state that is copied by a fork
    monkeypatch.setattr(client_module, "release", lambda *a, **k: release(*a, **k, entropy=state.randbytes))
    for number in range(4):
        assert in_child(lambda number=number: make(ledger=tmp_path / f"{number}").ask(TEXT)) == 0  # type: ignore[misc]
    assert len({integers(body) for body in network.posted}) == 1


@pytest.mark.slow
def test_one_client_across_four_forks_pays_once(make: Make, network: Network) -> None:
    with make() as client:
        client.ask("a dull film")
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    client.ask(TEXT)
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert ends == [0] * 4
        assert client.ask(TEXT).charge == 0.0
        assert client.summary().releases == 2
    assert len(set(network.posted[1:])) == 1


def test_threads_draw_once_for_a_text(make: Make, network: Network) -> None:
    with make() as client:
        plain, draws = client._draw, []

        def slow(*args: Any) -> Any:
            draws.append(1)
            time.sleep(0.05)
            return plain(*args)

        client._draw = slow  # type: ignore[method-assign]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(client.ask, [TEXT] * 4))
        assert len(draws) == 1
    assert sum(answer.charge for answer in found) == 2.0
    assert len(set(network.posted)) == 1


# What is never told


def test_no_text_or_token_is_told(
    make: Make, network: Network, caplog: pytest.LogCaptureFixture, user: UserSide
) -> None:
    caplog.set_level(logging.DEBUG)
    marker, secret = "zebracrossing", "a-token-nobody-sees"
    responses: list[Any] = [httpx.Response(400), httpx.Response(500), httpx.Response(200, content=b"{}")]
    errors: list[BaseException] = []
    with make(token=secret) as client:
        for response in responses:
            network.weather = lambda request, r=response: r if request.method == "POST" else None  # type: ignore[misc]
            with pytest.raises(DpForwardError) as refused:
                client.ask(f"{marker} film")
            errors.append(refused.value)
        with pytest.raises(InvalidInput) as refused:
            client.ask(f"{marker} \ud800")
        errors.append(refused.value)
        shown = [repr(client), repr(client._answers), caplog.text]
    for error in errors:
        assert error.__cause__ is None
        assert error.__context__ is None
        shown += [str(error), repr(error)]
    frame = network.posted[0]
    for line in shown:
        assert marker not in line
        assert secret not in line
        assert repr(frame[HEADER_BYTES:])[2:-1][:12] not in line


# With the real server


@contextlib.contextmanager
def asgi_transport(app: Any) -> Iterator[httpx.MockTransport]:
    """A blocking way into an ASGI app."""
    with TestClient(app) as network:

        def answered(request: httpx.Request) -> httpx.Response:
            path, body = request.url.path, request.content
            found = network.request(request.method, path, content=body, headers=dict(request.headers))
            return httpx.Response(found.status_code, content=found.content)

        yield httpx.MockTransport(answered)


@pytest.mark.slow
def test_a_question_goes_through_the_real_server(make: Make, run: Path, user: UserSide) -> None:
    from dp_forward.service.server.app import make_app
    from dp_forward.service.server.settings import ServerSettings

    token = "a-token-of-sixteen-letters"
    provider = load_provider_side(run / "back")
    app = make_app(provider, front_digest=user.digest, settings=ServerSettings(token=token))

    with asgi_transport(app) as through:
        with make(transport=through) as stranger:
            with pytest.raises(ServerRefused, match="token"):
                stranger.ask(TEXT)
            assert stranger.summary().releases == 0
        with make(transport=through, token=token) as client:
            first, again = client.ask(TEXT), client.ask(TEXT)
            assert (first.charge, again.charge) == (2.0, 0.0)
            assert first.probabilities == again.probabilities
            assert {answer.label for answer in client.ask_many(texts(20))} <= set(tiny_user.LABELS)
            assert client.summary().delivered == 21
    other = make_app(provider, front_digest="00" * 32, settings=ServerSettings())
    with asgi_transport(other) as through, make(transport=through) as client:
        with pytest.raises(ProtocolMismatch, match="front"):
            client.ask("another dull film")
        assert client.summary().releases == 21


def test_a_whole_run_stands_for_its_front(tmp_path: Path) -> None:
    (tmp_path / "run" / "front").mkdir(parents=True)
    (tmp_path / "run" / "front" / "release.json").touch()
    assert front_of(tmp_path / "run") == tmp_path / "run" / "front"
    assert front_of(tmp_path / "run" / "front") == tmp_path / "run" / "front"
    assert front_of(tmp_path) == tmp_path
