"""A headless Chromium, driven over its DevTools protocol: as much of it as the tests of the page need."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)


def found() -> str | None:
    """Where Chromium is, if it and the `websockets` that drive it are installed."""
    if importlib.util.find_spec("websockets") is None:
        return None
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Tab:
    """One page; what it logs, throws and loads is kept in `events`."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._last = socket, 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            reply = json.loads(self._socket.recv(PATIENCE_S))
            if reply.get("id") == self._last:
                assert "error" not in reply, reply
                return dict(reply["result"])
            self.events.append(reply)

    def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """The size of the screen, and its colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Go there, until all of it is loaded."""
        assert "errorText" not in self.send("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not (value := self.value(expression)):
            assert time.monotonic() < end, expression
            time.sleep(0.05)
        return value

    def text(self, selector: str) -> str:
        """What a person reads there; nothing where it is hidden."""
        seen = f"(e => e.checkVisibility() ? e.innerText : '')(document.querySelector({selector!r}))"
        return str(self.value(seen))

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of it."""
        place = f"document.querySelector({selector!r})"
        self.value(f"{place}.scrollIntoView({{block: 'center'}})")
        box = self.value(f"(({place}).getBoundingClientRect()).toJSON()")
        where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int, **more: Any) -> None:
        """A key, down and up."""
        names = {"key": key, "code": key, "windowsVirtualKeyCode": code, **more}
        self.send("Input.dispatchKeyEvent", type="keyDown", **names)
        self.send("Input.dispatchKeyEvent", type="keyUp", **names)

    def screenshot(self, path: Path) -> None:
        """The whole page, as PNG."""
        self.value("scrollTo(0, 0)")
        time.sleep(0.5)  # bars that grow
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """What a developer would see in red: exceptions, errors that were logged, blocked content."""
        self.value("0")  # what is on its way arrives first
        bad = []
        for event in self.events:
            method, told = event.get("method"), event.get("params", {})
            logged = method == "Log.entryAdded" and told["entry"]["level"] == "error"
            printed = method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert")
            if logged or printed or method == "Runtime.exceptionThrown":
                bad.append(json.dumps(told))
        return bad

    def requested(self) -> set[str]:
        """All addresses that were asked for, without what follows the host."""
        asked = (
            e["params"]["request"]["url"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        )
        return {"/".join(url.split("/")[:3]) for url in asked if not url.startswith(("data:", "about:"))}


@contextmanager
def opened(folder: Path) -> Iterator[Tab]:
    """A tab of a new Chromium with an empty profile in ``folder``."""
    from websockets.sync.client import connect

    binary = found()
    assert binary is not None
    words = [binary, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port, path = _port(folder / "DevToolsActivePort", process)
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=1 << 26, proxy=None) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _port(file: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    end = time.monotonic() + PATIENCE_S
    while not (file.exists() and len(lines := file.read_text().splitlines()) == 2):
        assert process.poll() is None, "Chromium ended"
        assert time.monotonic() < end, "Chromium does not start"
        time.sleep(0.05)
    return int(lines[0]), lines[1]
