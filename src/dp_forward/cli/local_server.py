"""The back of a run and its server: the digest beside it, and a temporary loopback server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.storage.json_files import read_json

_START_SECONDS = 60.0


def front_digest_beside(back: Path) -> str:
    """The digest of the front that was cut together with this back."""
    place = back.resolve().parent / "split.json"
    try:
        return str(read_json(place, name="back", remedy="")["digest_front"])
    except (InvalidInput, KeyError):
        found = f"no digest in {place.name} beside the back"
        raise InvalidInput("front-digest", "be known", found, "Give --front-digest.") from None


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

    told = {"say": lambda line: found.update(json.loads(line)), "ready": ready}
    thread = threading.Thread(target=run_server, args=(app, settings), kwargs=told, daemon=True)
    thread.start()
    if not listening.wait(_START_SECONDS):
        raise DpForwardError("The server did not start within a minute.")
    try:
        yield str(found["address"])
    finally:
        found["server"].should_exit = True
        thread.join(_START_SECONDS)
