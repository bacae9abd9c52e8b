"""The last step of the demo: a few sentences through the real server, over loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dp_forward.cli.local_server import serve_locally

__all__ = ["SENTENCES", "ask_a_few"]

SENTENCES = (
    "a quiet, generous film that earns its tears",
    "loud, lazy and far too long",
    "the cast is wonderful and the story never lets go",
)
"""Ours, and public; what a real user asks is shown nowhere."""


def ask_a_few(run: Path, ledger: Path, *, epsilon: float) -> list[dict[str, Any]]:
    """Serve the back of a run and ask through its front; asked again, it costs nothing."""
    from dp_forward.service.client.client import Client

    # One release more than is asked for: the cap of a ledger is never changed.
    budget = (len(SENTENCES) + 1) * epsilon
    with (
        serve_locally(run) as address,
        Client(run / "front", server=address, ledger=ledger, budget=budget) as client,
    ):
        return [{"text": text, **client.ask(text).as_dict()} for text in SENTENCES]
