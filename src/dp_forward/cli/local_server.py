"""A server for as long as something is done with it: the back of a run, on a free port of loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_forward.errors import DpForwardError

__all__ = ["serve_locally"]

_PATIENCE_S = 60.0


@contextmanager
def serve_locally(run: Path) -> Iterator[str]:
    """The address of the provider, which runs in a thread of this process."""
    from dp_forward.service.server.app import make_app
    from dp_forward.service.server.settings import ServerSettings
    from dp_forward.service.server.uvicorn_runner import run_server
    from dp_forward.split.artifacts import load_provider_side

    digest = json.loads((run / "split.json").read_text(encoding="utf-8"))["digest_front"]
    settings = ServerSettings(port=0)
    app = make_app(load_provider_side(run / "back"), front_digest=digest, settings=settings)
    listening, told = threading.Event(), dict[str, Any]()

    def ready(server: Any) -> None:
        told["server"] = server
        listening.set()

    thread = threading.Thread(
        target=run_server,
        args=(app, settings),
        kwargs={"say": lambda line: told.update(json.loads(line)), "ready": ready},
        daemon=True,
    )
    thread.start()
    if not listening.wait(_PATIENCE_S):
        raise DpForwardError("The server did not start within a minute.")
    try:
        yield str(told["address"])
    finally:
        told["server"].should_exit = True
        thread.join(_PATIENCE_S)
