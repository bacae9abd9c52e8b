"""Access control of the local web UI: a browser on this machine that has the key, and no other page in it.

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
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dp_forward.service.server.request_limits import Refused, refusal

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
