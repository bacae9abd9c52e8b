"""The page's own server: answers for its key alone, and whatever comes from elsewhere spends nothing."""

from __future__ import annotations

import itertools
import math
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dp_forward.errors import InvalidInput
from dp_forward.ledger import Cap, Charge, Ledger
from dp_forward.privacy import Budget
from dp_forward.privacy.rounding import percent_down
from dp_forward.service.protocol.frame import parse_frame
from dp_forward.service.webui.ui_app import HEADERS, MOST_BYTES, run_ui
from dp_forward.service.webui.ui_service import _budget, _picture
from service.webui import page_cases
from service.webui.page_cases import EPSILON, Page

TEXT = "a lovely warm film"
OTHERS = ("the dull film", "a grim and cold story", "moving")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_cases.write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[str]:
    with page_cases.provider(run) as address:
        yield address


@pytest.fixture
def page(run: Path, server: str, tmp_path: Path) -> Iterator[Page]:
    with page_cases.page(run, server, tmp_path / "ledger", budget=20.0) as listening:
        yield listening


@pytest.fixture(scope="module")
def shared(run: Path, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """For tests in which nothing is charged; this is checked at the end."""
    ledger = tmp_path_factory.mktemp("shared") / "ledger"
    with page_cases.page(run, server, ledger, budget=20.0) as listening:
        yield listening
        assert listening.client.summary().releases == 0


# What is told


def test_the_budget_of_any_ledger_is_shown_without_flattery(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "gaussian", cap=Cap.gaussian(Budget(8.0, 1e-5))) as book:
        book.reserve(bytes(16), Charge.gaussian(1.0))
        found = _budget(book.summary())
    assert (found["spent"], found["charged"], found["by_day"]) == (None, {"epsilon": 0.0, "mu": 1.0}, False)
    assert found["share"] == pytest.approx(1 - 1 / 1.66604**2, rel=1e-4)
    assert found["shown"]["cap"] == "8"
    with Ledger.create(tmp_path / "daily", per_day=4.0) as book:
        book.reserve(bytes(16), Charge.pure(1.0))
        found = _budget(book.summary())
    assert (found["shown"], found["share"]) == ({"remaining": "3", "cap": "4"}, 0.75)
    assert found["by_day"]


def test_the_state_says_what_is_offered_and_what_is_left(shared: Page, server: str) -> None:
    state = shared.post("/api/state").json()
    assert [offer["epsilon"] for offer in state["epsilons"]] == [2.0, 4.0, 8.0]
    assert state["server"] == server
    assert state["rows"] == 12
    budget = state["budget"]
    assert budget["shown"] == {"remaining": "20", "cap": "20"}
    assert (budget["cap"], budget["spent"], budget["charged"], budget["share"]) == (
        20.0,
        0.0,
        {"epsilon": 0.0, "mu": 0.0},
        1.0,
    )
    assert "20.0-DP" in budget["promise"]
    assert "nearest of" in state["reconstruction"]
    assert (state["pair"], state["history"]) == (False, [])


def test_the_curves_are_those_of_the_noise_and_end_at_the_offers(shared: Page) -> None:
    state = shared.post("/api/state").json()
    curves = state["curves"]
    assert curves["epsilon"][-1] == EPSILON
    for epsilon, of_two, of_hundred in zip(curves["epsilon"], curves["of_2"], curves["of_100"], strict=True):
        odds = math.exp(epsilon)
        assert (of_two, of_hundred) == pytest.approx((odds / (odds + 1), odds / (odds + 99)))
    assert set(curves["accuracy"]) == {None}, "a front alone says nothing of its accuracy"
    assert [offer["accuracy"] for offer in state["epsilons"]] == ["", "", ""]


def test_an_answer_comes_with_its_charge_and_its_promise_in_context(page: Page) -> None:
    found = page.ask(TEXT, 2.0).json()
    assert found["label"] in ("bad", "good")
    assert sum(found["probabilities"].values()) == pytest.approx(1)
    assert (found["charge"], found["resent"], found["truncated"]) == (2.0, False, False)
    assert found["kept"] == "", "the number is the model's"
    assert found["budget"]["remaining"] == 18.0
    assert page.client.summary().spent == 2.0
    # e^2 / (1 + e^2) = 0.88079..., rounded up
    assert found["context"][0] == "Before: 1 of 2 candidates, 50 %. After: at most 88.1 %."
    assert found["about"] == "any two texts"


def test_an_answer_comes_with_the_integers_that_were_sent(page: Page) -> None:
    picture = page.ask(TEXT).json()["picture"]
    sent = parse_frame(page.client._ledger.payload(1)).values
    assert picture["values"] == sent.tolist()
    assert picture["words"] == f"12 x {sent.shape[1]} integers from {sent.min()} to {sent.max()}"


def test_a_large_release_is_shown_in_part_and_says_so() -> None:
    shown = _picture(np.ones((100, 1024), dtype=np.int8))
    assert len(shown["values"]) == 32
    assert shown["words"] == "100 x 1024 integers from 1 to 1, the first 32 rows shown"


def test_the_history_lists_charges_and_free_answers_newest_first_and_no_text(page: Page) -> None:
    for resend in (False, False, True):
        last = page.ask(TEXT, resend=resend)
    rows = last.json()["history"]
    assert [row["charge"] for row in rows] == ["0", "0", "8"]
    assert [row["what"].partition(",")[0] for row in rows] == [
        "stored release sent again",
        "answered from this disk",
        "new release",
    ]
    assert page.post("/api/state").json()["history"] == rows
    assert all(before["time"] >= after["time"] for before, after in itertools.pairwise(rows))
    assert abs(rows[0]["time"] / 1000 - time.time()) < 60
    assert "lovely" not in last.text.replace(TEXT, "")


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["privunit", "matrix-gaussian", "k-ary-response"])
def test_two_texts_are_told_apart_as_often_as_the_law_says(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, mechanism: str
) -> None:
    run = page_cases.write_run(tmp_path_factory.mktemp("one"), cut="output", mechanism=mechanism)
    with (
        page_cases.provider(run) as server,
        page_cases.page(run, server, tmp_path / "ledger", budget=20.0) as page,
    ):
        assert page.post("/api/state").json()["reconstruction"] is None
        found = [page.compare(TEXT, other).json() for other in (TEXT, *OTHERS)]
        assert found[0]["exact"] == 0.5
        assert any(one["exact"] > 0.5 for one in found)
        for one in found:
            error = 5 * math.sqrt(0.25 / one["draws"])
            assert one["exact"] - 0.03 - error <= one["right"] / one["draws"] <= one["exact"] + error
            assert one["exact"] <= one["ceiling"] * (1 + 1e-9)
        less = page.compare(TEXT, OTHERS[0], 2.0).json()
        assert less["ceiling"] < found[1]["ceiling"]
        assert page.client.summary().releases == 0, "nothing is charged"


def test_texts_are_compared_only_where_one_row_crosses(shared: Page) -> None:
    refused = shared.compare(TEXT, OTHERS[0])
    assert (refused.status_code, refused.json()["error"]) == (400, "body")


@pytest.mark.slow
def test_a_pair_is_asked_about_as_one_release(run: Path, server: str, tmp_path: Path) -> None:
    with page_cases.page(run, server, tmp_path / "ledger", budget=20.0, pair=True) as page:
        assert page.post("/api/state").json()["pair"]
        found = page.ask(["a lovely film", "the dull film"]).json()
        assert (found["charge"], found["resent"]) == (EPSILON, False)
        assert page.ask(["a lovely film", "the dull film"]).json()["stored"]
        assert not page.ask(["the dull film", "a lovely film"]).json()["resent"], (
            "another order, another pair"
        )
        assert page.ask(["a film", " "]).json()["error"] == "text"
        assert page.client.summary().releases == 2


@pytest.mark.slow
def test_a_run_of_four_labels_says_what_to_expect(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = page_cases.write_run(tmp_path_factory.mktemp("four"), mechanism="k-ary-response")
    with (
        page_cases.provider(run) as server,
        page_cases.page(run, server, tmp_path / "ledger", budget=20.0) as page,
    ):
        state = page.post("/api/state").json()
        keep = math.exp(2) / (math.exp(2) + 3)
        wanted = 0.8 * keep + 0.2 * (1 - keep) / 3
        assert state["epsilons"][0]["accuracy"] == f"Expect {100 * wanted:.0f} % of answers to be right."
        assert state["curves"]["accuracy"][7] == pytest.approx(wanted)
        found, keep8 = page.ask(TEXT).json(), math.exp(8) / (math.exp(8) + 3)
        assert set(found["probabilities"]) == set(page_cases.FOUR)
        assert found["kept"].startswith(f"The noise keeps the decision in {percent_down(keep8)} of cases")
        assert found["picture"]["words"] == "a choice among 4 labels, as 4 integers of which one is 1"


@pytest.mark.slow
def test_the_same_text_again_costs_nothing_and_is_answered_the_same(page: Page) -> None:
    first, again = page.ask(TEXT).json(), page.ask(TEXT).json()
    assert (first["charge"], again["charge"], again["stored"]) == (EPSILON, 0.0, True)
    resent = page.ask(TEXT, resend=True).json()
    assert (resent["charge"], resent["resent"], resent["stored"]) == (0.0, True, False)
    assert again["probabilities"] == first["probabilities"]
    other = page.ask(TEXT, 4.0).json()
    assert (other["charge"], other["resent"]) == (4.0, False)


def test_a_long_text_is_said_to_be_cut(page: Page) -> None:
    assert page.ask(" ".join(["film"] * 40)).json()["truncated"]


@pytest.mark.slow
def test_what_could_be_read_is_all_without_noise_and_comes_from_the_sent_bytes_with_it(page: Page) -> None:
    question = {"text": TEXT, "epsilon": EPSILON}
    before = page.post("/api/look", question).json()
    assert [word["word"] for word in before["without"]["words"]] == TEXT.split()
    assert before["without"]["recall"] == 1.0
    assert before["with"] is None
    assert page.client.summary().releases == 0  # to look charges nothing
    page.ask(TEXT)
    after = page.post("/api/look", question).json()
    assert after["without"] == before["without"]
    assert len(after["with"]["words"]) == 4
    assert page.post("/api/look", question).json() == after  # one release, so one reading
    assert page.client.summary().releases == 1


@pytest.mark.slow
def test_a_reconstruction_on_its_way_says_how_far_it_is(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = page_cases.write_run(tmp_path_factory.mktemp("inner"), cut="encoder.1")
    with (
        page_cases.provider(run) as server,
        page_cases.page(run, server, tmp_path / "ledger", budget=8.0, prepare=False) as page,
    ):
        question = {"text": TEXT, "epsilon": EPSILON}
        assert page.post("/api/look", question).json() == {"prepared": 0.0}
        assert "approximation" in page.post("/api/state").json()["reconstruction"]
        assert page.reader is not None
        page.reader.prepare()
        found = page.post("/api/look", question).json()
        assert found["prepared"] == 1.0
        assert len(found["without"]["words"]) == 4


@pytest.mark.slow
def test_a_promise_per_token_speaks_of_texts_that_differ_in_one(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = page_cases.write_run(tmp_path_factory.mktemp("token"), unit="token")
    with (
        page_cases.provider(run) as server,
        page_cases.page(run, server, tmp_path / "ledger", budget=8.0) as page,
    ):
        found = page.ask(TEXT).json()
        assert found["about"] == "any two texts of one length that differ in one token"
        assert "After: at most 99.97 %" in found["context"][0]
        read = page.post("/api/look", {"text": TEXT, "epsilon": EPSILON}).json()
        assert read["without"]["recall"] == 1.0
        assert len(read["with"]["words"]) == 4


# What is refused in plain words


@pytest.mark.slow
def test_an_exhausted_budget_is_told_and_nothing_is_sent(page: Page) -> None:
    for text in ("a film", "the film"):
        assert page.ask(text).status_code == 200
    refused = page.ask("the lovely film")
    assert refused.status_code == 402
    assert refused.json()["error"] == "budget"
    assert "used up: 4 is left" in refused.json()["message"]
    assert page.client.summary().releases == 2
    assert page.ask("a film").json()["charge"] == 0.0
    assert page.ask("the lovely film", 4.0).json()["budget"]["remaining"] == 0.0


@pytest.mark.parametrize("text", ["", "  \n", "\u200b"])
def test_nothing_to_read_is_told(shared: Page, text: str) -> None:
    refused = shared.ask(text)
    assert (refused.status_code, refused.json()["error"]) == (422, "text")
    assert shared.client.summary().releases == 0


@pytest.mark.parametrize("epsilon", [1.0, 9.0, -1, 0, 1e300, True, "8", None])
def test_only_an_offered_epsilon_is_asked_with(shared: Page, epsilon: Any) -> None:
    refused = shared.ask(TEXT, epsilon)
    assert refused.status_code in (400, 422)
    assert shared.client.summary().releases == 0


@pytest.mark.slow
def test_a_server_that_is_away_is_told(run: Path, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with page_cases.page(run, away, tmp_path / "ledger", budget=8.0) as page:
            for answer in (page.post("/api/state"), page.ask(TEXT)):
                assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
            assert page.client.summary().releases == 0


BODIES: list[Any] = [b"", b"null", b"[]", b"{", b"\xff", b"[" * 10_000, {"text": "a film"}]
BODIES += [{"text": 7, "epsilon": 8.0, "resend": False}, {"text": "a film", "epsilon": 8.0, "resend": 1}]
BODIES += [{"text": "a film", "epsilon": 8.0, "resend": False, "more": 1}]
BODIES += [
    {"text": parts, "epsilon": 8.0, "resend": False} for parts in (["a"], ["a", "b", "c"], ["a", 7], {})
]


@pytest.mark.parametrize("body", BODIES)
def test_another_body_is_refused(shared: Page, body: Any) -> None:
    refused = shared.post("/api/ask", body)
    assert (refused.status_code, refused.json()["error"]) == (400, "body")
    assert shared.client.summary().releases == 0


def test_a_huge_body_is_not_read(shared: Page) -> None:
    refused = shared.ask("film " * MOST_BYTES)
    assert (refused.status_code, refused.json()["error"]) == (413, "too_long")


@pytest.mark.slow
def test_one_question_at_a_time(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    on_its_way, go_on = threading.Event(), threading.Event()
    ask = page.client.ask

    def slow(text: str, **settings: Any) -> Any:
        on_its_way.set()
        assert go_on.wait(30)
        return ask(text, **settings)

    monkeypatch.setattr(page.client, "ask", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(page.ask, TEXT)
        assert on_its_way.wait(30)
        second = page.ask("the dull film")
        go_on.set()
        assert first.result().status_code == 200
    assert (second.status_code, second.json()["error"]) == (429, "busy")
    assert page.client.summary().releases == 1


def test_an_error_that_nobody_foresaw_is_told_without_its_message(
    shared: Page, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(text: str, **settings: Any) -> Any:
        raise RuntimeError(f"cannot read {text}")

    monkeypatch.setattr(shared.client, "ask", broken)
    refused = shared.ask("zebracrossing film")
    assert (refused.status_code, refused.json()["error"]) == (500, "internal")
    told = capfd.readouterr()
    assert "zebracrossing" not in refused.text + told.out + told.err


# Who is kept out


STRANGERS: dict[str, tuple[dict[str, str], int]] = {
    "no key": ({"x_dpf_key": ""}, 401),
    "another key": ({"x_dpf_key": "AAAAAAAAAAAAAAAAAAAAAA"}, 401),
    "a rebound name": ({"host": "evil.example"}, 403),
    "a rebound name with our port": ({"host": "evil.example:PORT"}, 403),
    "our address without the port": ({"host": "127.0.0.1"}, 403),
    "another page": ({"origin": "https://evil.example"}, 403),
    "a page without an origin": ({"origin": "null"}, 403),
    "another port of this machine": ({"origin": "http://127.0.0.1:1"}, 403),
    "an older browser's other page": ({"origin": "", "sec_fetch_site": "cross-site"}, 403),
    "another port, by metadata": ({"origin": "", "sec_fetch_site": "same-site"}, 403),
    "a form": ({"content_type": "text/plain"}, 415),
    "a form with fields": ({"content_type": "application/x-www-form-urlencoded"}, 415),
    "no type": ({"content_type": ""}, 415),
}


@pytest.mark.slow
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_refused_and_nothing_is_charged(shared: Page, stranger: str) -> None:
    headers, status = STRANGERS[stranger]
    port = shared.origin.rpartition(":")[2]
    given = {name: value.replace("PORT", port) for name, value in headers.items()}
    for path in ("/api/ask", "/api/look", "/api/state", "/api/compare"):
        refused = shared.post(path, {"text": TEXT, "epsilon": EPSILON}, **given)
        assert refused.status_code == status
        assert refused.json().keys() == {"error", "message"}
    assert shared.client.summary().releases == 0


def test_the_control_is_answered_by_name_too(page: Page) -> None:
    port = page.origin.rpartition(":")[2]
    own = f"http://localhost:{port}"
    assert (
        page.ask(TEXT, host=f"localhost:{port}", origin=own, sec_fetch_site="same-origin").status_code == 200
    )


def test_two_hosts_are_none(shared: Page) -> None:
    port = int(shared.origin.rpartition(":")[2])
    lines = (
        "GET / HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Host: evil.example",
        "Connection: close",
        "",
        "",
    )
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(64).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "PUT"])
def test_nobody_is_told_that_other_pages_may_ask(shared: Page, method: str) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-headers": "x-dpf-key"}
    for headers in (asked, {"x-dpf-key": shared.key, "content-type": "application/json"}):
        found = httpx.request(method, shared.origin + "/api/ask", headers=headers, trust_env=False)
        assert found.status_code in (403, 405, 401)
        assert not any(name.startswith("access-control") for name in found.headers)


@pytest.mark.slow
def test_every_response_forbids_what_comes_from_elsewhere(shared: Page) -> None:
    responses = [
        httpx.get(shared.origin + path, trust_env=False) for path in ("/", "/page.css", "/page.js", "/no")
    ]
    assert [response.status_code for response in responses] == [200, 200, 200, 404]
    responses += [shared.post("/api/state"), shared.post("/api/state", x_dpf_key="")]
    for response in responses:
        for name, value in HEADERS.items():
            assert response.headers[name] == value
        assert "set-cookie" not in response.headers
    policy = responses[0].headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.slow
def test_the_page_holds_nothing_from_elsewhere_and_no_key(shared: Page) -> None:
    for path in ("/", "/page.css", "/page.js"):
        text = httpx.get(shared.origin + path, trust_env=False).text
        assert shared.key not in text
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text
        assert "style=" not in text


@pytest.mark.slow
def test_every_start_has_another_key_of_128_bits(run: Path, server: str, tmp_path: Path) -> None:
    keys = set()
    for _ in range(2):
        with page_cases.page(run, server, tmp_path / "ledger", budget=20.0) as page:
            keys.add(page.key)
            assert page.address.startswith("http://127.0.0.1:")
    assert len(keys) == 2
    assert all(len(key) == 22 for key in keys)


def test_only_this_machine_is_listened_to(shared: Page) -> None:
    port = int(shared.origin.rpartition(":")[2])
    with pytest.raises(InvalidInput, match="free"):
        run_ui(object(), port=port)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="65536"):
        run_ui(object(), port=1 << 16)  # type: ignore[arg-type]
    # Bound to 127.0.0.1 and not to all addresses: another loopback address finds nobody.
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=5)
