"""Listening for the user's own browser, on loopback and nowhere else."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Final

import uvicorn

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.service.server.uvicorn_runner import bind_socket, print_line, run_until_signal
from dp_forward.service.webui.ui_app import make_page
from dp_forward.service.webui.ui_service import Desk

__all__ = ["run_page"]

_HOST: Final = "127.0.0.1"
_KEY_BYTES: Final = 16


def run_page(
    desk: Desk,
    *,
    port: int = 8766,
    say: Callable[[str], None] | None = None,
    ready: Callable[[uvicorn.Server], None] | None = None,
) -> None:
    """Serve the page until SIGINT or SIGTERM, then finish what was asked and return.

    When it listens, it prints one line of JSON on stdout: ``{"address", "port"}``. The address holds the key
    of this start; whoever has it may ask. ``ready`` is called next, with the server: setting its
    ``should_exit`` stops it. Nothing is logged.
    """
    if not 0 <= checks.count("port", port, at_least=0, remedy="Use 0 for a free one.") < 1 << 16:
        raise InvalidInput("port", "be below 65536", port, "Use 0 for a free one.")
    listening = bind_socket(_HOST, port)
    port, key = listening.getsockname()[1], secrets.token_urlsafe(_KEY_BYTES)

    def started(server: uvicorn.Server) -> None:
        line = {"address": f"http://{_HOST}:{port}/#key={key}", "port": port}
        (say or print_line)(json.dumps(line))
        if ready is not None:
            ready(server)

    settings = uvicorn.Config(
        make_page(desk, key=key, port=port),
        access_log=False,
        log_level="critical",
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=64,
        timeout_graceful_shutdown=10,
    )
    run_until_signal(settings, listening, started)
