"""A tiny provider and a tiny user's page, both listening on loopback in threads of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

import tiny_user
from dp_forward.attacks.inversion.nearest_token import NearestTokens
from dp_forward.cli.explain import RunAccuracy
from dp_forward.cli.ui import TokenReconstructor
from dp_forward.privacy import NoiseSpec
from dp_forward.service.client.client import Client
from dp_forward.service.client.transport import RetryPolicy
from dp_forward.service.server.app import make_app
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import run_server
from dp_forward.service.webui.ui_app import run_ui
from dp_forward.service.webui.ui_service import UiService
from dp_forward.split.artifacts import load_provider_side, load_user_side

EPSILON = 8.0
FOUR = ("bad", "dull", "fair", "good")
QUICK = RetryPolicy(attempts=2, first=0.0, longest=0.0)


def write_run(folder: Path, *, cut: str = "embeddings", unit: str = "text", **noise: Any) -> Path:
    """RUN/front and RUN/back; `k-ary-response` among four labels, with the report of a run."""
    if noise.get("mechanism") != "k-ary-response":
        made = NoiseSpec(epsilon=EPSILON, unit=unit, rows=None if unit == "text" else 12, **noise)
        return tiny_user.write_user(folder, noise=made, cut=cut, width=None)
    made = NoiseSpec(epsilon=EPSILON, columns=len(FOUR), **noise)
    tiny_user.write_user(folder, noise=made, cut="output", width=len(FOUR), labels=FOUR, seed=5)
    (folder / "report.json").write_text(json.dumps({"labels": FOUR, "accuracy_without_noise": 0.8}))
    return folder


@contextmanager
def _listening(run: Callable[..., None], *arguments: Any, **settings: Any) -> Iterator[dict[str, Any]]:
    listens, told = threading.Event(), dict[str, Any]()

    def ready(server: Any) -> None:
        told["server"] = server
        listens.set()

    def say(line: str) -> None:
        told.update(json.loads(line))

    thread = threading.Thread(
        target=run, args=arguments, kwargs={**settings, "say": say, "ready": ready}, daemon=True
    )
    thread.start()
    assert listens.wait(30)
    try:
        yield told
    finally:
        told["server"].should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def provider(run: Path) -> Iterator[str]:
    """The real server of the back; its address."""
    settings = ServerSettings(port=0)
    digest = load_user_side(run / "front").digest
    app = make_app(load_provider_side(run / "back"), front_digest=digest, settings=settings)
    with _listening(run_server, app, settings) as told:
        yield told["address"]


@dataclass
class Page:
    """A page that listens, and the client behind it."""

    address: str
    client: Client
    reader: TokenReconstructor | None

    @property
    def origin(self) -> str:
        return self.address.partition("/#key=")[0]

    @property
    def key(self) -> str:
        return self.address.partition("#key=")[2]

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """As the page's own script asks; ``headers`` on top, an empty one is left out."""
        usual = {"content-type": "application/json", "x-dpf-key": self.key, "origin": self.origin}
        given = usual | {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        sent = {name: value for name, value in given.items() if value}
        return httpx.post(self.origin + path, content=content, headers=sent, trust_env=False, timeout=30)

    def compare(self, text: Any, other: Any, epsilon: float = EPSILON) -> httpx.Response:
        return self.post("/api/compare", {"text": text, "other": other, "epsilon": epsilon})

    def ask(
        self, text: str | list[str], epsilon: float = EPSILON, *, resend: bool = False, **headers: str
    ) -> httpx.Response:
        return self.post("/api/ask", {"text": text, "epsilon": epsilon, "resend": resend}, **headers)


@contextmanager
def page(
    run: Path, server: str, ledger: Path, *, budget: float | None, prepare: bool = True, pair: bool = False
) -> Iterator[Page]:
    """The page for a user of this run, as `dpf ui` makes it."""
    user, reader, shown = load_user_side(run / "front"), None, {"pair": pair}
    if user.spec.cut != "output":
        by_row = user.spec.required_noise().bound.over == "row"
        reader = TokenReconstructor(NearestTokens(user), by_row=by_row)
        if prepare:
            reader.prepare()
    if (run / "report.json").is_file():
        shown["accuracy"] = RunAccuracy.read(run).at
    with (
        Client(user, server=server, ledger=ledger, budget=budget, retry=QUICK) as client,
        _listening(run_ui, UiService(client, reader, server=server, **shown), port=0) as told,
    ):
        yield Page(told["address"], client, reader)


@contextmanager
def elsewhere() -> Iterator[str]:
    """A page of somebody else, at another origin of this machine; its address."""

    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title><link rel=icon href=data:,><body>")

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()
        thread.join(30)
