"""Pictures by a real browser, Chromium.

    python docs/_build/screenshots.py [RUN]     the page of `dpf ui`: docs/figures/page.png, page-phone.png
    python docs/_build/screenshots.py site      after `make docs`: home page and README, beside this file, in
                                                the light and the dark scheme

RUN is a folder of `dpf finetune rotten-tomatoes --epsilon 4`; without one it is made first, in minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import markdown
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from service.webui import chromium, page_cases  # noqa: E402
from service.webui.chromium import Tab  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
SITE = ROOT / "build" / "site"
KEPT = Path(__file__).parent / "screenshots"
LOOK = """<meta charset="utf-8"><base href="{base}"><style>
body {{ font: 16px/1.5 sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em }} img {{ max-width: 100% }}
code {{ font-size: 85%; background: #f0f1f3 }} pre {{ background: #f0f1f3; padding: 1em; overflow: auto }}
td, th {{ border: 1px solid #ccc; padding: 4px 12px }} table {{ border-collapse: collapse }}
</style>"""
STILL = "* { transition: none !important }"
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
            take(tab, FIGURES / name)


def take(tab: Tab, path: Path) -> None:
    """A picture of all of the page, in 256 colours: fewer bytes."""
    tab.screenshot(path)
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE)
    few.save(path, optimize=True)
    print(path)  # noqa: T201


def look_at_site() -> None:
    """The home page on a wide and a narrow screen, and the README as a reader of the repository sees it.

    The site is served: from a file, a browser gives it no search. Each scheme has a browser of its own, since
    the site remembers the first one that it was shown in.
    """
    KEPT.mkdir(exist_ok=True)
    serve = partial(Quiet, directory=SITE)
    with tempfile.TemporaryDirectory() as scratch, ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        home, readme = f"http://127.0.0.1:{server.server_port}/", Path(scratch) / "readme.html"
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        body = markdown.markdown(text, extensions=["fenced_code", "tables"])
        readme.write_text(LOOK.format(base=f"{ROOT.as_uri()}/") + body, encoding="utf-8")
        for scheme in ("", "-dark"):
            with chromium.opened(Path(scratch) / f"profile{scheme}") as tab:
                look_at(tab, home, 1280, f"home-wide{scheme}.png")
                look_at(tab, home, 390, f"home-narrow{scheme}.png")
                if not scheme:
                    look_at(tab, readme.as_uri(), 1000, "readme.png")
        server.shutdown()


def look_at(tab: Tab, address: str, width: int, name: str) -> None:
    """A picture of one page, which must not be wider than the screen."""
    tab.look(width, 900, dark="-dark" in name)
    tab.open(address)
    tab.until("[...document.images].every(image => image.complete)")
    tab.value(
        f"document.head.append(Object.assign(document.createElement('style'), {{textContent: {STILL!r}}}))"
    )
    assert tab.value("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
    take(tab, KEPT / name)


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


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
    look_at_site() if sys.argv[1:] == ["site"] else main(*map(Path, sys.argv[1:2]))
