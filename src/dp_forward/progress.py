"""Progress of anything that takes more than a moment: one callable for the whole package.

    def show(stage: str, done: int, total: int, numbers: Mapping[str, float]) -> None: ...

``total`` is 0 where it is not known; ``numbers`` are losses, accuracies and the like, often empty. A caller
that wants no progress passes None. What is shown is never a text, a token or a hidden value.
"""

import os
from collections.abc import Callable, Mapping
from typing import Protocol

__all__ = ["Count", "Progress", "counter", "is_first_process"]

Count = Callable[[int], None]
"""Called with how much is done: one stage of a `Progress`, see `counter`."""


class Progress(Protocol):
    """Anything that shows how far a stage is."""

    def __call__(self, stage: str, done: int, total: int, numbers: Mapping[str, float], /) -> None:
        """``done`` of ``total`` in this stage, with what was measured."""


def counter(progress: Progress | None, stage: str, total: int = 0) -> Count | None:
    """One stage as a callable that takes only how much is done; None without a progress."""
    if progress is None:
        return None
    return lambda done: progress(stage, done, total, {})


def is_first_process() -> bool:
    """Whether this process speaks, writes, draws and charges: the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0
