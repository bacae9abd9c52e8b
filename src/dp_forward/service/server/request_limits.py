"""How a server reads what it is posted, and how it refuses: one way for frames, records and batches.

Guarantees:
    Nothing is read before the token, the kind and the announced length are right; then no more than allowed,
    and not for longer. Nothing of a body is logged, shown or kept. A refusal never holds a value of a
    payload, a token or a header that was not the server's own.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dp_forward.errors import DpForwardError
from dp_forward.service.protocol.access import network_of

_OCTETS: Final = "application/octet-stream"
_STATUS: Final = {
    **dict.fromkeys(("token", "key"), 401),
    **dict.fromkeys(("host", "origin", "shuffler", "operator"), 403),
    "not_found": 404,
    "method": 405,
    "slow": 408,
    **dict.fromkeys(("batch", "replayed"), 409),
    "too_long": 413,
    **dict.fromkeys(("content_type", "compressed"), 415),
    **dict.fromkeys(("no_noise", "too_much_noise"), 422),
    **dict.fromkeys(("busy", "quota"), 429),
    **dict.fromkeys(("back", "internal"), 500),
    **dict.fromkeys(("disk", "stopping"), 503),
    "full": 507,
}
"""Code -> status; whatever is not here is a malformed or mismatched frame: 400."""


class Refused(DpForwardError):
    """A request that gets no answer: a code for machines, a line for people, and an HTTP status.

    ``retry_after`` (seconds) is set where the same bytes may succeed; ``delay`` is that of the response.
    """

    exit_code = 4

    def __init__(
        self, code: str, message: str, *, retry_after: int | None = None, delay: float = 0.0
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.retry_after, self.delay = code, message, retry_after, delay

    @property
    def status(self) -> int:
        return _STATUS.get(self.code, 400)


def address_of(connection: HTTPConnection) -> str:
    """The address that limits count for (`network_of`)."""
    return "" if connection.client is None else network_of(connection.client.host)


def sender_of(connection: HTTPConnection, user: str | None) -> str:
    """Whom a payload is counted for: its user, else its address; no name of a user has a slash."""
    return user or f"/{address_of(connection)}"


def busy(what: str = "Too many requests wait. Send the same bytes again.") -> Refused:
    return Refused("busy", what, retry_after=1)


def check_head(
    request: Request, check_length: Callable[[int], None], *, what: str = "A frame", kind: str = _OCTETS
) -> None:
    """All that can be refused before a byte of the body is read; ``check_length`` raises `Refused`."""
    head = request.headers
    if any(word.strip().lower() != "identity" for word in head.getlist("content-encoding")):
        raise Refused("compressed", f"{what} is never compressed. Leave Content-Encoding out.")
    if head.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise Refused("content_type", f"{what} comes as {kind}.")
    length = head.get("content-length")
    if length is None:
        return
    # int() would take +1, 1_0 and digits of other scripts.
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise Refused("length", "Content-Length is not a number.")
    check_length(int(length))


class BodyBudget:
    """The bytes of bodies that are being read; beyond ``most`` the body that began first is given up."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, dict[asyncio.Timeout, int]()

    def hold(self, deadline: asyncio.Timeout, size: int) -> None:
        """Note how much has come of the body with this deadline."""
        self._held[deadline] = size
        while sum(self._held.values()) > self._most:
            oldest = next(iter(self._held))
            self.drop(oldest)
            oldest.reschedule(0)  # a time that has passed

    def drop(self, deadline: asyncio.Timeout) -> None:
        """Forget a body; twice is harmless."""
        self._held.pop(deadline, None)


async def read_body(
    request: Request, most: int, *, seconds: float, what: str = "A frame", budget: BodyBudget | None = None
) -> bytes:
    """The body, of at most so many bytes."""
    parts, size, deadline = [], 0, asyncio.timeout(seconds)
    try:
        async with deadline:
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused("too_long", f"{what} for this server has at most {most} bytes.")
                parts.append(part)
                if budget is not None:
                    budget.hold(deadline, size)
    except TimeoutError:
        raise Refused("slow", f"The body took longer than {seconds:g} seconds, or than others.") from None
    except ClientDisconnect:
        raise Refused("length", "The body ended early.") from None
    finally:
        if budget is not None:
            budget.drop(deadline)
    return b"".join(parts)


def refusal(refused: Refused, *, close: bool = False) -> Response:
    """The response that says no."""
    headers = {} if refused.retry_after is None else {"retry-after": str(refused.retry_after)}
    if refused.code == "token":
        headers["www-authenticate"] = "Bearer"
    if close or refused.code == "token":
        headers["connection"] = "close"
    response = DelayedResponse({"error": refused.code, "message": refused.message}, refused.status, headers)
    response.delay = refused.delay
    return response


class DelayedResponse(JSONResponse):
    """A response that is sent after ``delay`` seconds; meanwhile its connection gives way to others."""

    delay = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.delay:
            if (connection := scope.get("state", {}).get("connection")) is not None:
                connection.give_way()
            await asyncio.sleep(self.delay)
        await super().__call__(scope, receive, send)


def json_route(path: str, page: Mapping[str, Any], guard: Callable[[Request], object]) -> Route:
    """`GET` of a JSON object that stays the same, for whom ``guard`` lets pass."""

    async def get(request: Request) -> Response:
        guard(request)
        return JSONResponse(page)

    return Route(path, get)


def parse_object(data: bytes, keys: Set[str]) -> dict[str, Any] | None:
    """The JSON object of exactly these keys; None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.keys() == keys else None


def error_handlers(outcomes: Counter[str], *, who: str) -> dict[Any, Any]:
    """Exception handlers of an app: whatever is refused anywhere looks the same, and is counted."""

    async def refused(request: Request, error: Refused) -> Response:
        outcomes[error.code] += 1
        return refusal(error)

    async def http(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method"}.get(error.status_code, "request")
        outcomes[code] += 1
        return JSONResponse({"error": code, "message": "There is nothing here."}, error.status_code)

    async def failed(request: Request, error: Exception) -> Response:
        outcomes["internal"] += 1
        return refusal(Refused("internal", f"The {who} failed on this request."))

    return {Refused: refused, HTTPException: http, Exception: failed}
