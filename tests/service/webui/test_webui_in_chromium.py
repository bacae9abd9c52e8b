"""The page as a person sees it, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dp_forward.service.protocol.frame import parse_frame
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
ANSWERED = "!document.querySelector('#result').hidden && !document.querySelector('#ask').disabled"
READ = "!document.querySelector('#panels').hidden"
LOADED = "document.querySelectorAll('#stops span').length === 3"
CONTRASTS = """[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&
  e.matches(':not(.unseen)') && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())
  ).map(e => {
    const numbers = c => c.match(/[0-9.]+/g).map(Number);
    const light = c => numbers(c).slice(0, 3).map(v => v / 255).map(
      v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce(
      (sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const clear = c => (numbers(c)[3] ?? 1) === 0;
    let back = e;
    while (back.parentElement && clear(getComputedStyle(back).backgroundColor)) back = back.parentElement;
    const style = getComputedStyle(e), ink = e instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(ink), light(getComputedStyle(back).backgroundColor)];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 60)];
  }).sort((a, b) => a[0] - b[0])"""
NAMED = "input, textarea, button, [role=img], [role=progressbar], section, form"
UNNAMED = f"""[...document.querySelectorAll('{NAMED}')].filter(
  e => !(e.labels?.length || e.ariaLabel || e.textContent.trim() ||
    document.getElementById(e.getAttribute('aria-labelledby')))).map(e => e.id)"""


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
        tab.until(LOADED)
        yield listening


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A run of K-ary response among four labels, and its server."""
    made = page_cases.write_run(tmp_path_factory.mktemp("four"), mechanism="k-ary-response")
    with page_cases.provider(made) as address:
        yield made, address


@pytest.fixture
def output_page(four: tuple[Path, str], tmp_path: Path, tab: Tab) -> Iterator[Page]:
    with page_cases.page(*four, tmp_path / "other", budget=40.0) as listening:
        tab.events.clear()
        tab.look(900, 1200)
        tab.open(listening.address)
        tab.until(LOADED)
        yield listening


def choose(tab: Tab, stop: int) -> None:
    """With the keyboard, from the last stop downwards."""
    tab.value("document.querySelector('#epsilon').focus()")
    tab.press("Home", 36)
    for _ in range(stop):
        tab.press("ArrowRight", 39)


def fill(tab: Tab, selector: str, text: str) -> None:
    tab.value(f"document.querySelector({selector!r}).value = ''")
    tab.click(selector)
    tab.type(text)


def ask(tab: Tab, text: str) -> None:
    """Type over what is there, click, and wait for the answer."""
    fill(tab, "#text", text)
    tab.click("#ask")
    tab.until(f"document.querySelector('#asked').textContent === {text!r} && {ANSWERED}")


def test_a_question_from_the_first_key_to_the_reconstruction(tab: Tab, page: Page, tmp_path: Path) -> None:
    assert tab.text("#left") == "20 of 20 left"
    ask(tab, TEXT)
    tab.until(READ)
    assert tab.text("#label") in ("bad", "good")
    assert tab.text("#charge") == "epsilon 8"
    assert tab.text("#left") == "12 of 20 left"
    assert tab.value("document.querySelector('#budget').ariaValueNow") == "60"
    # e^8 / (1 + e^8) = 0.999664..., rounded up
    assert "Before: 1 of 2 candidates, 50 %. After: at most 99.97 %." in tab.text("#context")
    assert tab.text("#without").split() == TEXT.split()
    assert tab.text("#without-recall") == "100 % of the tokens found"
    assert len(tab.text("#with").split()) == 4
    assert tab.text("#with-recall").endswith("of the tokens found")
    assert tab.text("#resent") == tab.text("#game") == ""
    assert "Answer: " in tab.value("document.querySelector('#status').textContent"), "said to screen readers"

    ask(tab, TEXT)
    assert tab.text("#charge") == "0"
    assert "Nothing was sent, and it cost 0" in tab.text("#stored")
    assert tab.text("#resent") == ""
    tab.click("#resend")
    tab.until("!document.querySelector('#resent').hidden")
    assert "learns that the text is the same" in tab.text("#resent")
    assert tab.text("#stored") == ""
    assert tab.text("#left") == "12 of 20 left"

    choose(tab, 1)
    ask(tab, TEXT)
    assert tab.text("#charge") == "epsilon 4"
    assert tab.text("#left") == "8 of 20 left"
    assert "98.3 %" in tab.text("#context")

    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert tab.complaints() == []
    assert tab.requested() == {page.origin}


def test_the_slider_moves_the_marker_and_what_is_promised(tab: Tab, page: Page) -> None:
    seen = []
    for stop, epsilon in enumerate(("2", "4", "8")):
        choose(tab, stop)
        assert tab.text("#chosen") == epsilon
        assert f"epsilon {epsilon}. Before" in tab.value("document.querySelector('#epsilon').ariaValueText")
        seen.append(
            (float(tab.value("document.querySelector('#marker').getAttribute('x1')")), tab.text("#context"))
        )
    assert seen == sorted(seen, key=lambda one: one[0])
    assert len({said for _, said in seen}) == 3
    assert tab.value("document.querySelectorAll('#curves polyline').length") == 2, "no accuracy is invented"
    assert tab.text("#key-accuracy") == tab.text("#accuracy") == ""
    assert page.client.summary().releases == 0


def test_the_picture_shows_the_integers_that_were_sent(tab: Tab, page: Page) -> None:
    ask(tab, TEXT)
    words = tab.text("#sent-words")
    assert re.fullmatch(r"12 x \d+ integers from -\d+ to \d+\.", words)
    assert tab.text("#sent-meaning") == ""
    assert tab.value("document.querySelector('#picture').ariaLabel") == words[:-1]
    sent = parse_frame(page.client._ledger.payload(1)).values
    assert tab.value("(c => [c.height, c.width])(document.querySelector('#picture'))") == list(sent.shape)
    red = "[...document.querySelector('#picture').getContext('2d').getImageData(0, 0, 99, 1).data]"
    pixels = np.reshape(tab.value(red), (-1, 4))[: sent.shape[1]]
    away = np.abs(sent[0]) > np.abs(sent).max() / 4  # a faint colour is rounded
    assert (pixels[away, 0] > pixels[away, 1]).tolist() == (sent[0][away] < 0).tolist()


def test_the_history_is_a_table_newest_first(tab: Tab, page: Page) -> None:
    assert tab.text("#history") == ""
    ask(tab, TEXT)
    ask(tab, TEXT)
    rows = [row.split("\t")[1:] for row in tab.text("#charges").splitlines()]
    assert rows == [["0", "answered from this disk"], ["8", "new release"]]
    assert tab.value("document.querySelectorAll('#history th[scope=col]').length") == 3
    assert TEXT not in tab.text("#history")
    tab.open(page.origin + "/")
    tab.until(LOADED)
    assert "new release" in tab.text("#charges"), "a reload keeps it"


def test_four_labels_one_row_and_the_game(tab: Tab, output_page: Page) -> None:
    ask(tab, TEXT)
    assert tab.value("document.querySelectorAll('#probabilities li').length") == 4
    assert tab.text("#more") == tab.text("#reading") == ""
    assert tab.text("#sent-words") == "a choice among 4 labels, as 4 integers of which one is 1."
    assert "A cell for each of the 4 labels" in tab.text("#sent-meaning")
    assert "of answers to be right" in tab.text("#accuracy")
    assert "keeps the decision in 99.8 % of cases" in tab.text("#kept")
    assert tab.value("document.querySelectorAll('#curves polyline').length") == 3
    spent = output_page.client.summary().spent
    fill(tab, "#first-text", TEXT)
    fill(tab, "#other-text", "the dull film")
    tab.click("#compare")
    tab.until("!document.querySelector('#outcome').hidden")
    # TV = (e^8 - 1) / (e^8 + 3), so (1 + TV) / 2 = 0.99933, rounded up
    assert tab.text("#rates").split("\n")[-4:] == ["These two", "99.94 %", "Proved: any two texts", "99.97 %"]
    right = int(re.search(r"it named (\d+) rightly", tab.text("#verdict"))[1])  # type: ignore[index]
    assert 980 <= right <= 1000
    fill(tab, "#first-text", "moving")
    tab.press("Enter", 13)
    tab.until("document.querySelector('#verdict').textContent.includes('exactly alike')")
    assert "50 %" in tab.text("#rates").split("These two")[1]
    fill(tab, "#other-text", " ")
    tab.click("#compare")
    assert "nothing here that the model can read" in tab.until("document.querySelector('#problem').innerText")
    assert output_page.client.summary().spent == spent, "nothing is charged"
    assert tab.complaints() == []


def test_of_many_labels_the_first_six_are_shown_and_the_rest_on_demand(tab: Tab, output_page: Page) -> None:
    ask(tab, TEXT)
    tab.value("showLabels(Object.fromEntries([...Array(9).keys()].map(i => ['label ' + i, i / 36])), false)")
    assert tab.text("#probabilities").splitlines()[::2] == [f"label {i}" for i in range(8, 2, -1)]
    assert tab.text("#more") == "Show all 9 labels"
    tab.value("document.querySelector('#more').focus()")
    tab.press("Enter", 13, text="\r")
    assert tab.value("document.querySelectorAll('#probabilities li').length") == 9
    assert tab.value("document.querySelector('#more').ariaExpanded") == "true"


def test_a_pair_has_two_boxes_and_one_charge(tab: Tab, four: tuple[Path, str], tmp_path: Path) -> None:
    with page_cases.page(*four, tmp_path / "ledger", budget=40.0, pair=True) as page:
        tab.open(page.address)
        tab.until(LOADED)
        fill(tab, "#text", "a lovely film")
        tab.click("#ask")
        assert "nothing here" in tab.until("document.querySelector('#problem').innerText"), (
            "the second is empty"
        )
        fill(tab, "#second", "the dull film")
        tab.click("#ask")
        tab.until(ANSWERED)
        assert tab.text("#asked") == "a lovely film\nthe dull film"
        for box in ("#first-text", "#first-second", "#other-text", "#other-second"):
            fill(tab, box, "a film")
        tab.click("#compare")
        tab.until("document.querySelector('#verdict').textContent.includes('exactly alike')")
        assert page.client.summary().releases == 1


def test_the_keyboard_is_enough(tab: Tab, output_page: Page) -> None:
    """Every step by Tab, arrows, Enter and letters; the focus is seen at each."""
    met: list[str] = []

    def go_to(name: str) -> None:
        for _ in range(20):
            if (here := tab.value("document.activeElement.id")) == name:
                return
            tab.press("Tab", 9)
            met.append(tab.value("document.activeElement.id"))
            assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid", met[-1]
        raise AssertionError(f"{name} is not reached from {here}")

    assert tab.value("document.activeElement.id") == "text"
    tab.type("the dull film")
    go_to("epsilon")
    tab.press("ArrowLeft", 37)
    assert tab.text("#chosen") == "4"
    go_to("ask")
    tab.press("Enter", 13, text="\r")
    tab.until(ANSWERED)
    assert (tab.text("#charge"), tab.text("#asked")) == ("epsilon 4", "the dull film")
    for box, text in (("first-text", "a film"), ("other-text", "the lovely film")):
        go_to(box)
        tab.type(text)
    go_to("compare")
    tab.press("Enter", 13, text="\r")
    tab.until("!document.querySelector('#outcome').hidden")
    assert output_page.client.summary().releases == 1
    assert tab.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("where", ["rows", "one row"])
def test_text_stands_out_and_everything_has_a_name(
    tab: Tab, page: Page, output_page: Page, dark: bool, where: str
) -> None:
    tab.look(900, 1200, dark=dark)
    tab.open((page if where == "rows" else output_page).address)
    tab.until(LOADED)
    ask(tab, TEXT)
    if where == "rows":
        tab.until(READ)
    else:
        fill(tab, "#first-text", TEXT)
        fill(tab, "#other-text", "moving")
        tab.click("#compare")
        tab.until("!document.querySelector('#outcome').hidden")
    tab.value("for (const id of ['problem', 'resent', 'stored', 'truncated']) byId(id).hidden = false")
    tab.value("byId('problem').textContent = byId('truncated').textContent = 'words'")
    found = tab.value(CONTRASTS)
    assert len(found) > 30
    assert found[0][0] >= 4.5, found[:5]
    assert tab.value(UNNAMED) == []
    assert tab.value("document.querySelectorAll('[aria-live], [role=status], [role=alert]').length") <= 4
    tab.value("document.body.style.color = document.body.style.backgroundColor = 'rgb(120, 120, 120)'")
    assert tab.value(CONTRASTS)[0][0] < 4.5, "the control"


def test_reduced_motion_is_respected(tab: Tab, page: Page) -> None:
    duration = "getComputedStyle(document.querySelector('#budget-fill')).transitionDuration"
    assert tab.value(duration) == "0.3s"
    tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    assert tab.value(duration) == "0s"


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
    tab.until(LOADED)
    tab.value("sessionStorage.clear()")
    tab.open(page.origin + "/")
    assert "key is missing or old" in tab.until("document.querySelector('#problem').innerText")
    assert tab.value("document.querySelectorAll('#stops span').length") == 0


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
    tab.until(READ)
    tab.value("byId('game').hidden = false")
    assert tab.value("document.documentElement.scrollWidth") <= 360
    back = tab.value("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(16, 19, 23)" if dark else "rgb(244, 245, 247)")
    smallest = (
        "Math.min(...[...document.querySelectorAll('#epsilon, #ask, #compare')].map(e => e.offsetHeight))"
    )
    assert tab.value(smallest) >= 44, "large enough for a finger"
