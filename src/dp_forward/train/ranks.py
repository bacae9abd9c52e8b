"""Several processes of one run (torchrun, accelerate): the first one writes, draws and charges."""

from __future__ import annotations

import os

import torch

__all__ = ["is_first", "processes", "wait_for_everyone"]


def processes() -> int:
    """How many processes work on this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is the process that writes."""
    return int(os.environ.get("RANK", "0")) == 0


def wait_for_everyone() -> None:
    """Go on when all processes have come here."""
    if processes() > 1:
        from accelerate import PartialState  # type: ignore[import-untyped]

        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()
