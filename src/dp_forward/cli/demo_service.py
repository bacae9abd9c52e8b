"""The last step of the demo: a few sentences through the real server, over loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_forward.errors import DpForwardError

__all__ = ["SENTENCES", "ask_a_few"]

SENTENCES = (
    "a quiet, generous film that earns its tears",
    "loud, lazy and far too long",
    "the cast is wonderful and the story never lets go",
)
"""Ours, and public; what a real user asks is shown nowhere."""

_PATIENCE_S = 60.0


def ask_a_few(run: Path, ledger: Path, *, epsilon: float) -> list[dict[str, Any]]:
    """Serve the back of a run and ask through its front; asked again, it costs nothing."""
    from dp_forward.serve.client import Client

    # One release more than is asked for: the cap of a ledger is never changed.
    budget = (len(SENTENCES) + 1) * epsilon
    with (
        _served(run) as address,
        Client(run / "front", server=address, ledger=ledger, budget=budget) as client,
    ):
        return [{"text": text, **client.ask(text).as_dict()} for text in SENTENCES]


@contextmanager
def _served(run: Path) -> Iterator[str]:
    """The provider in a thread of this process, on a free port of loopback."""
    from dp_forward.handed import load_provider_side
    from dp_forward.serve.server import make_app, run_server
    from dp_forward.serve.settings import ServerSettings

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
        raise DpForwardError("The server of the demo did not start within a minute.")
    try:
        yield str(told["address"])
    finally:
        told["server"].should_exit = True
        thread.join(_PATIENCE_S)
