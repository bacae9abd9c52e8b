"""Temporary loopback server for the back of a run (context manager)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_forward.cli.service_options import front_digest_beside
from dp_forward.errors import DpForwardError

__all__ = ["serve_locally"]

_START_SECONDS = 60.0


@contextmanager
def serve_locally(run: Path) -> Iterator[str]:
    """The address of a provider that runs in a thread of this process, on a free port."""
    from dp_forward.service.server.app import make_app
    from dp_forward.service.server.settings import ServerSettings
    from dp_forward.service.server.uvicorn_runner import run_server
    from dp_forward.split.artifacts import load_provider_side

    back, settings = run / "back", ServerSettings(port=0)
    app = make_app(load_provider_side(back), front_digest=front_digest_beside(back), settings=settings)
    listening, found = threading.Event(), dict[str, Any]()

    def ready(server: Any) -> None:
        found["server"] = server
        listening.set()

    thread = threading.Thread(
        target=run_server,
        args=(app, settings),
        kwargs={"say": lambda line: found.update(json.loads(line)), "ready": ready},
        daemon=True,
    )
    thread.start()
    if not listening.wait(_START_SECONDS):
        raise DpForwardError("The server did not start within a minute.")
    try:
        yield str(found["address"])
    finally:
        found["server"].should_exit = True
        thread.join(_START_SECONDS)
