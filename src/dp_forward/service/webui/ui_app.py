"""ASGI app of the local web UI, and its listener on loopback.

    GET  /            the page, /page.css, /page.js; hold nothing of the user
    POST /api/state    budget, offered epsilons and their promises, history
    POST /api/ask      {"text", "epsilon", "resend"} -> the answer, the charge, the integers that were sent
    POST /api/look     {"text", "epsilon"} -> what could be read from the release; charges and sends nothing
    POST /api/compare  {"text", "other", "epsilon"} -> how well a release tells the two apart; alike

A text is a string, or a list of two where the run is about pairs.
A refusal is ``{"error": code, "message": plain words}``.

A server on loopback is reached by every page that the user's browser shows. What keeps those out:

* the *key*, 128 random bits in the fragment of the printed address. A fragment is not sent to any server; the
  page sends the key as a header, which another page can neither know nor set without a preflight request
  (and no preflight is granted: there are no CORS headers);
* the *Host* must be this server's. A foreign name that was made to point to 127.0.0.1 (DNS rebinding) would
  let a foreign page count as our own;
* an *Origin*, where there is one, must be our own, and so must what fetch metadata says;
* only JSON is read, which no form can send.

Guarantees:
    A request that fails any of this reaches no handler, and its body is not read. Every response, refusals
    included, carries `HEADERS`: nothing from elsewhere is loaded, run, framed or kept.
    No text, answer or hidden value is written to disk or to a log; an unforeseen error is reported without
    its message. A body of more than `MOST_BYTES` is not read to its end.
"""

import asyncio
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Set
from importlib.resources import files
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dp_forward.errors import BudgetExhausted, DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.service.client.transport import ServerRefused, ServerUnavailable
from dp_forward.service.protocol.policy import ProtocolMismatch
from dp_forward.service.server.request_limits import Refused, error_handlers, parse_object, read_body, refusal
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import bind_socket, print_line, run_until_signal
from dp_forward.service.webui.ui_service import UiService

__all__ = ["run_ui"]

MOST_BYTES: Final = 1 << 18
_HOST: Final = "127.0.0.1"
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_STATIC: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_BODY_MESSAGES: Final = {
    "too_long": "This text is far too long. Ask about a shorter one.",
    "slow": "The question took too long to arrive.",
    "length": "The question ended early.",
}
_ERRORS: Final[dict[type[DpForwardError], tuple[str, int, str]]] = {
    BudgetExhausted: ("budget", 402, ""),
    ProtocolMismatch: ("mismatch", 502, "The server and your front do not agree."),
    ServerRefused: ("server", 502, ""),
    ServerUnavailable: ("unavailable", 503, ""),
    LedgerCorrupt: ("ledger", 500, "Your ledger cannot be used."),
    LedgerUnavailable: ("ledger", 500, "Your ledger cannot be used now."),
}
"""Error -> its code, its status, and what is said before its own words."""


class AccessControl:
    """ASGI middleware before an app; see the module. What lies under ``/api/`` needs the key."""

    def __init__(self, app: ASGIApp, *, key: str, port: int) -> None:
        self._app, self._key = app, key.encode()
        self._hosts = tuple(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
        self._origins = tuple(f"http://{host}" for host in self._hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise AssertionError("the page is served over HTTP only")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            self._check(scope["path"], Headers(scope=scope))
        except Refused as refused:
            app: ASGIApp = refusal(refused, close=True)
        else:
            app = self._app
        await app(scope, receive, send_with_headers)

    def _check(self, path: str, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise Refused("host", "This page has another address.")
        if any(origin not in self._origins for origin in headers.getlist("origin")):
            raise Refused("origin", "Another page may not ask.")
        if not path.startswith("/api/"):
            return
        if any(site != "same-origin" for site in headers.getlist("sec-fetch-site")):
            raise Refused("origin", "Another page may not ask.")
        given = headers.get("x-dpf-key", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._key):
            raise Refused("key", "The key is missing or old. Open the address that `dpf ui` printed last.")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused("content_type", "Only JSON is read.")


def run_ui(
    service: UiService,
    *,
    port: int = 8766,
    say: Callable[[str], None] = print_line,
    ready: Callable[[uvicorn.Server], None] = lambda server: None,
) -> None:
    """Serve the page until SIGINT or SIGTERM, then finish what was asked and return. Nothing is logged.

    When it listens, it prints one line of JSON on stdout: ``{"address", "port"}``. The address holds the key
    of this start; whoever has it may ask. ``ready`` is called next; see `run_until_signal`.
    """
    settings = ServerSettings(port=port, connections=64)  # refuses what is no port
    listening = bind_socket(_HOST, port)
    port, key = listening.getsockname()[1], secrets.token_urlsafe(16)
    address = {"address": f"http://{_HOST}:{port}/#key={key}", "port": port}
    run_until_signal(
        make_ui_app(service, key=key, port=port),
        listening,
        lambda: say(json.dumps(address)),
        ready,
        log_level="critical",
        lifespan="off",
        limits=settings,
        timeout_graceful_shutdown=10,
    )


def make_ui_app(service: UiService, *, key: str, port: int) -> AccessControl:
    """Make the app behind its access control; ``port`` is the one it listens on."""
    looked = frozenset(("epsilon", "text"))
    answers: dict[str, tuple[Callable[..., dict[str, Any]], Set[str]]] = {
        "state": (service.state, frozenset()),
        "ask": (service.ask, looked | {"resend"}),
        "look": (service.preview, looked),
        "compare": (service.compare, looked | {"other"}),
    }
    routes = [Route(f"/api/{name}", _call(*how), methods=["POST"]) for name, how in answers.items()]
    for path, (name, kind) in _STATIC.items():
        page = Response(files(__package__).joinpath(name).read_bytes(), headers={"content-type": kind})
        routes.append(Route(path, page, methods=["GET"]))
    lost = error_handlers(Counter(), who="page")[HTTPException]
    app = Starlette(routes=routes, exception_handlers={HTTPException: lost})
    app.router.redirect_slashes = False
    return AccessControl(app, key=key, port=port)


def _call(work: Callable[..., dict[str, Any]], keys: Set[str]) -> Callable[[Request], Awaitable[Response]]:
    """Read a body, work in a thread, answer. Nothing is raised further: a traceback may hold a text."""

    async def post(request: Request) -> Response:
        try:
            question = parse_object(await read_body(request, MOST_BYTES, seconds=10.0), keys)
            if question is None:
                raise Refused("body", "This is not a question of this page. Reload it.")
            return JSONResponse(await asyncio.to_thread(lambda: work(**_question(question))))
        except DpForwardError as error:
            code, status, message = _explain(error)
        except Exception:
            code, status, message = "internal", 500, "Something failed on this machine. Ask again."
        return JSONResponse({"error": code, "message": message}, status)

    return post


def _question(body: dict[str, Any]) -> dict[str, Any]:
    if not body:
        return body
    numbers = type(body["epsilon"]) in (int, float) and type(body.get("resend", False)) is bool
    texts: dict[str, Any] = {name: body[name] for name in ("text", "other") if name in body}
    for name, text in texts.items():
        parts = text if isinstance(text, list) and len(text) == 2 else [text]
        if not numbers or not all(isinstance(part, str) for part in parts):
            raise Refused("body", "This is not a question of this page. Reload it.")
        texts[name] = tuple(parts) if parts is text else text
    return {**body, **texts, "epsilon": float(body["epsilon"])}


def _explain(error: DpForwardError) -> tuple[str, int, str]:
    """Code, status and message. No message of ours holds a text."""
    if isinstance(error, Refused):
        return error.code, error.status, _BODY_MESSAGES.get(error.code, error.message)
    if isinstance(error, InvalidInput) and error.name == "text":
        return "text", 422, "There is nothing here that the model can read. Type a few words."
    for kind, (code, status, first) in _ERRORS.items():
        if isinstance(error, kind):
            return code, status, f"{first} {error}".strip()
    return "input", 422, str(error)
