"""The page as a person sees it, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.webui import chromium, page_cases
from service.webui.chromium import Tab
from service.webui.page_cases import Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        chromium.found() is None, reason="needs chromium, chromium-browser or google-chrome, and websockets"
    ),
]

TEXT = "a lovely warm film"
HOSTILE = "<img src=x onerror=\"document.title='run'\"> film"
ANSWERED = "!document.querySelector('#result').hidden && !document.querySelector('#panels').hidden"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_cases.write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[str]:
    with page_cases.provider(run) as address:
        yield address


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium.opened(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(run: Path, server: str, tmp_path: Path, tab: Tab) -> Iterator[Page]:
    with page_cases.page(run, server, tmp_path / "ledger", budget=20.0) as listening:
        tab.events.clear()
        tab.look(900, 1200)
        tab.open(listening.address)
        tab.until("document.querySelectorAll('#offers input').length === 3")
        yield listening


def ask(tab: Tab, text: str) -> None:
    """Type over what is there, click, and wait for everything."""
    tab.value("document.querySelector('#text').value = ''")
    tab.click("#text")
    tab.type(text)
    tab.click("#ask")
    tab.until(f"document.querySelector('#asked').textContent === {text!r} && {ANSWERED}")


def test_a_question_from_the_first_key_to_the_reconstruction(tab: Tab, page: Page, tmp_path: Path) -> None:
    assert tab.text("#left") == "20 of 20 left"
    ask(tab, TEXT)
    assert tab.text("#label") in ("bad", "good")
    assert tab.text("#charge") == "epsilon 8"
    assert tab.text("#left") == "12 of 20 left"
    assert tab.value("document.querySelector('#budget').ariaValueNow") == "60"
    # e^8 / (1 + e^8) = 0.999664..., rounded up
    assert "at most 99.97 % of the time; a coin has 50 %" in tab.text("#guess")
    assert tab.text("#without").split() == TEXT.split()
    assert tab.text("#without-recall") == "100 % of the tokens found"
    assert len(tab.text("#with").split()) == 4
    assert tab.text("#with-recall").endswith("of the tokens found")
    assert tab.text("#resent") == ""

    ask(tab, TEXT)
    assert tab.text("#charge") == "0"
    assert "Nothing was sent, and it cost 0" in tab.text("#stored")
    assert tab.text("#resent") == ""
    tab.click("#resend")
    tab.until("!document.querySelector('#resent').hidden")
    assert "learns that the text is the same" in tab.text("#resent")
    assert tab.text("#stored") == ""
    assert tab.text("#left") == "12 of 20 left"

    tab.click("#offers label:nth-child(2)")
    ask(tab, TEXT)
    assert tab.text("#charge") == "epsilon 4"
    assert tab.text("#left") == "8 of 20 left"
    assert "98.3 %" in tab.text("#guess")

    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert tab.complaints() == []
    assert tab.requested() == {page.origin}


def test_the_keyboard_is_enough(tab: Tab, page: Page) -> None:
    assert tab.value("document.activeElement.id") == "text"
    tab.type("the dull film")
    tab.press("Tab", 9)
    assert tab.value("document.activeElement.value") == "8"
    tab.press("ArrowRight", 39)
    assert tab.value("document.querySelector('input:checked').value") == "4"
    tab.click("#text")
    tab.press("Enter", 13)
    tab.until(ANSWERED)
    assert tab.text("#charge") == "epsilon 4"
    assert tab.text("#asked") == "the dull film"
    assert page.client.summary().releases == 1
    assert tab.complaints() == []


def test_what_was_typed_is_shown_and_never_run(tab: Tab, page: Page) -> None:
    ask(tab, HOSTILE)
    assert tab.text("#asked") == HOSTILE
    assert tab.value("document.title") == "dp-forward"
    assert tab.value("document.querySelectorAll('img').length") == 0
    assert tab.complaints() == []


def test_troubles_are_told_in_plain_words(tab: Tab, page: Page) -> None:
    ask(tab, " ".join(["film"] * 40))
    assert "cut to its first 12 tokens" in tab.text("#truncated")
    ask(tab, "a film")
    tab.value("document.querySelector('#text').value = 'the cold film'")
    tab.click("#ask")
    assert "The budget is used up: 4 is left" in tab.until("document.querySelector('#problem').innerText")
    assert tab.text("#label") == "", "no old answer stands beside the refusal"
    tab.value("document.querySelector('#text').value = '  '")
    tab.click("#ask")
    assert "nothing here that the model can read" in tab.text("#problem")
    assert page.client.summary().releases == 2


def test_the_key_leaves_the_address_and_without_it_nothing_is_told(tab: Tab, page: Page) -> None:
    assert tab.value("location.href") == page.origin + "/"
    tab.open(page.origin + "/")  # a reload keeps it
    tab.until("document.querySelectorAll('#offers input').length === 3")
    tab.value("sessionStorage.clear()")
    tab.open(page.origin + "/")
    assert "key is missing or old" in tab.until("document.querySelector('#problem').innerText")
    assert tab.value("document.querySelectorAll('#offers input').length") == 0


def test_another_page_in_the_same_browser_gets_nothing(tab: Tab, page: Page) -> None:
    question = '{method: \'POST\', body: \'{"text": "a film", "epsilon": 8}\', headers: HEADERS}'
    plain, whole = "{}", f"{{'content-type': 'application/json', 'x-dpf-key': {page.key!r}}}"
    with page_cases.elsewhere() as foreign:
        tab.open(foreign)
        tab.until("document.title === 'elsewhere'")
        for headers in (plain, whole):  # with the very key, too
            asked = question.replace("HEADERS", headers)
            outcome = f"fetch('{page.origin}/api/ask', {asked}).then(() => 'read', () => 'kept out')"
            assert tab.value(outcome) == "kept out"
        tab.value(
            f"new Promise(done => {{ const f = document.createElement('iframe'); f.src = '{page.origin}/';"
            "f.onload = () => done(true); document.body.append(f); })"
        )
        assert tab.value("document.querySelector('iframe').contentDocument") is None
    assert page.client.summary().releases == 0


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_in_both_schemes(tab: Tab, page: Page, dark: bool) -> None:
    tab.look(360, 740, dark=dark)
    ask(tab, TEXT)
    assert tab.value("document.documentElement.scrollWidth") <= 360
    back = tab.value("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(16, 19, 23)" if dark else "rgb(244, 245, 247)")
    smallest = "Math.min(...[...document.querySelectorAll('#offers label, #ask')].map(e => e.offsetHeight))"
    assert tab.value(smallest) >= 44, "large enough for a finger"
