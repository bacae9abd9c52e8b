"""ASGI app of the local web UI, and its listener on loopback.

    GET  /            the page, /page.css, /page.js; hold nothing of the user
    POST /api/state   budget, offered epsilons, reconstruction
    POST /api/ask     {"text", "epsilon", "resend"} -> the answer, the charge, the guess rate
    POST /api/look    {"text", "epsilon"} -> what could be read from the release; charges and sends nothing

A refusal is ``{"error": code, "message": plain words}``. Who is answered at all is decided in `ui_security`.

Guarantees:
    No text, answer or hidden value is written to disk or to a log; an unforeseen error is reported without
    its message. A body of more than `MOST_BYTES` is not read to its end.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Set
from importlib.resources import files
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.errors import (
    BudgetExhausted,
    DpForwardError,
    InvalidInput,
    LedgerCorrupt,
    LedgerUnavailable,
)
from dp_forward.service.client.transport import ServerRefused, ServerUnavailable
from dp_forward.service.protocol.policy import ProtocolMismatch
from dp_forward.service.server.request_limits import Refused, json_response, parse_object, read_body
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import bind_socket, print_line, run_until_signal
from dp_forward.service.webui.ui_security import AccessControl
from dp_forward.service.webui.ui_service import UiService

__all__ = ["run_ui"]

MOST_BYTES: Final = 1 << 18
_HOST: Final = "127.0.0.1"
_STATIC: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_LOOKED: Final = frozenset(("epsilon", "text"))
_ASKED: Final = _LOOKED | {"resend"}
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
    ServerSettings(port=port)  # refuses what is no port
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
        proxy_headers=False,
        limit_concurrency=64,
        timeout_graceful_shutdown=10,
    )


def make_ui_app(service: UiService, *, key: str, port: int) -> AccessControl:
    """Make the app behind its access control; ``port`` is the one it listens on."""
    routes = [
        Route("/api/state", _call(lambda body: service.state(), keys=frozenset()), methods=["POST"]),
        Route("/api/ask", _call(lambda body: service.ask(**_question(body)), keys=_ASKED), methods=["POST"]),
        Route("/api/look", _call(lambda body: service.preview(**_question(body))), methods=["POST"]),
    ]
    for path, (name, kind) in _STATIC.items():
        page = Response(files(__package__).joinpath(name).read_bytes(), headers={"content-type": kind})
        routes.append(Route(path, page, methods=["GET"]))
    return AccessControl(
        Starlette(routes=routes, exception_handlers={HTTPException: _not_found}), key=key, port=port
    )


def _call(
    work: Callable[[dict[str, Any]], dict[str, Any]], *, keys: Set[str] = _LOOKED
) -> Callable[[Request], Awaitable[Response]]:
    """Read a body, work in a thread, answer. Nothing is raised further: a traceback may hold a text."""

    async def post(request: Request) -> Response:
        try:
            question = parse_object(await read_body(request, MOST_BYTES, seconds=10.0), keys)
            if question is None:
                raise Refused("body", "This is not a question of this page. Reload it.")
            return json_response(await asyncio.to_thread(work, question))
        except DpForwardError as error:
            code, status, message = _explain(error)
        except Exception:
            code, status, message = "internal", 500, "Something failed on this machine. Ask again."
        return json_response({"error": code, "message": message}, status)

    return post


def _question(body: dict[str, Any]) -> dict[str, Any]:
    numbers = type(body["epsilon"]) in (int, float) and type(body.get("resend", False)) is bool
    if not numbers or not isinstance(body["text"], str):
        raise Refused("body", "This is not a question of this page. Reload it.")
    return {**body, "epsilon": float(body["epsilon"])}


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


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return json_response({"error": "not_found", "message": "There is nothing here."}, status)
