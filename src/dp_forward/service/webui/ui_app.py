"""The page and its three calls.

    GET  /            the page, /page.css, /page.js; hold nothing of the user
    POST /api/state   where things stand
    POST /api/ask     {"text", "epsilon"} -> the answer, the charge, the guess rate
    POST /api/look    {"text", "epsilon"} -> what could be read from the release; charges and sends nothing

A refusal is ``{"error": code, "message": plain words}``. What may come in at all is decided in `fence`.

Guarantees:
    No text, answer or hidden value is written to disk or to a log; an error that nobody foresaw is told
    without its message. A body of more than `MOST_BYTES` is not read to its end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dp_forward.errors import (
    BudgetExhausted,
    DpForwardError,
    InvalidInput,
    LedgerCorrupt,
    LedgerUnavailable,
)
from dp_forward.service.protocol.policy import ProtocolMismatch
from dp_forward.service.protocol.sansio import ServerRefused, ServerUnavailable
from dp_forward.service.server.refusals import Refused
from dp_forward.service.webui.ui_security import Fence
from dp_forward.service.webui.ui_service import Desk

__all__ = ["MOST_BYTES", "make_page"]

MOST_BYTES: Final = 1 << 18
_BODY_SECONDS: Final = 10.0
_STATIC: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def make_page(desk: Desk, *, key: str, port: int) -> Fence:
    """The app for one desk, behind its fence; ``port`` is the one it listens on."""
    app = FastAPI(title="dp-forward", docs_url=None, redoc_url=None, openapi_url=None)
    for path, (name, kind) in _STATIC.items():
        _add_file(app, path, files(__package__).joinpath(name).read_bytes(), kind)

    @app.post("/api/state")
    async def _state(request: Request) -> Response:
        return await _answered(request, (), lambda found: desk.state())

    @app.post("/api/ask")
    async def _ask(request: Request) -> Response:
        return await _answered(request, _QUESTION, lambda found: desk.ask(*_question(found)))

    @app.post("/api/look")
    async def _look(request: Request) -> Response:
        return await _answered(request, _QUESTION, lambda found: desk.look(*_question(found)))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        return _json({"error": "not_found", "message": "There is nothing here."}, error.status_code)

    return Fence(app, key=key, port=port)


_QUESTION: Final = ("epsilon", "text")


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path)
    async def _file() -> Response:
        return Response(content, headers={"content-type": kind})


async def _answered(
    request: Request, keys: tuple[str, ...], work: Callable[[dict[str, Any]], dict[str, Any]]
) -> Response:
    """Read, work in a thread, answer. Nothing is raised on: a traceback may hold a text."""
    try:
        found = _object(await _body(request), keys)
        return _json(await asyncio.to_thread(work, found))
    except DpForwardError as error:
        code, status, message = _in_plain_words(error)
    except Exception:
        code, status, message = "internal", 500, "Something failed on this machine. Ask again."
    return _json({"error": code, "message": message}, status)


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BYTES:
                    raise Refused("too_long", "This text is far too long. Ask about a shorter one.")
                parts.append(part)
    except TimeoutError:
        raise Refused("slow", "The question took too long to arrive.") from None
    except ClientDisconnect:
        raise Refused("length", "The question ended early.") from None
    return b"".join(parts)


def _object(body: bytes, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or sorted(found) != list(keys):
        raise Refused("body", "This is not a question of this page. Reload it.")
    return found


def _question(found: dict[str, Any]) -> tuple[str, float]:
    text, epsilon = found["text"], found["epsilon"]
    if not isinstance(text, str) or type(epsilon) not in (int, float):
        raise Refused("body", "This is not a question of this page. Reload it.")
    return text, float(epsilon)


def _in_plain_words(error: DpForwardError) -> tuple[str, int, str]:
    """Code, status and message. No message of ours holds a text."""
    if isinstance(error, Refused):
        return error.code, error.status, error.message
    if isinstance(error, InvalidInput) and error.name == "text":
        return "text", 422, "There is nothing here that the model can read. Type a few words."
    for kind, (code, status, first) in _SAID.items():
        if isinstance(error, kind):
            return code, status, f"{first} {error}".strip()
    return "input", 422, str(error)


_SAID: Final[dict[type[DpForwardError], tuple[str, int, str]]] = {
    BudgetExhausted: ("budget", 402, ""),
    ProtocolMismatch: ("mismatch", 502, "The server and your front do not agree."),
    ServerRefused: ("server", 502, ""),
    ServerUnavailable: ("unavailable", 503, ""),
    LedgerCorrupt: ("ledger", 500, "Your ledger cannot be used."),
    LedgerUnavailable: ("ledger", 500, "Your ledger cannot be used now."),
}
"""Error -> its code, its status, and what is said before its own words."""


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(body, allow_nan=False), status, media_type="application/json")
