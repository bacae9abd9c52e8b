"""The pictures of the page of `dpf ui`: docs/figures/page.png, and page-phone.png on the screen of a phone.

    python docs/_build/screenshots.py [RUN]

RUN is a folder of `dpf finetune rotten-tomatoes --epsilon 4`; without one it is made first, in minutes. Needs
Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from service.webui import chromium, page_cases  # noqa: E402
from service.webui.chromium import Tab  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
TEXTS = ("a quiet, generous film", "a dull and lifeless film")


def main(run: Path | None = None) -> None:
    """Ask, compare and take the pictures."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        place = Path(scratch)
        if run is None:
            run = place / "run"
            words = ["finetune", "rotten-tomatoes", "--epsilon", "4", "--out", str(run)]
            subprocess.run([sys.executable, "-m", "dp_forward.cli.main", *words], check=True)  # noqa: S603
        server = stack.enter_context(page_cases.provider(run))
        page = stack.enter_context(page_cases.page(run, server, place / "ledger", budget=50.0))
        tab = stack.enter_context(chromium.opened(place / "profile"))
        for width, name in ((1000, "page.png"), (390, "page-phone.png")):
            tab.look(width, 1000)
            tab.open("about:blank")
            tab.open(page.address)
            tab.until("state !== null")
            visit(tab)
            tab.screenshot(FIGURES / name)
            with Image.open(FIGURES / name) as drawn:  # few colours: a third of the bytes
                few = drawn.convert("RGB").quantize(64)
            few.save(FIGURES / name, optimize=True)
            print(FIGURES / name)  # noqa: T201


def visit(tab: Tab) -> None:
    """Ask about one text, and compare it with another."""
    tab.click("#text")
    tab.type(TEXTS[0])
    tab.click("#ask")
    tab.until("!document.querySelector('#result').hidden")
    for box, text in zip(("#first-text", "#other-text"), TEXTS, strict=True):
        tab.click(box)
        tab.type(text)
    tab.click("#compare")
    tab.until("!document.querySelector('#outcome').hidden")
    tab.value("document.activeElement.blur()")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
