"""A few counters in the text format of Prometheus, version 0.0.4.

Nothing here can hold a payload, a token or a request id: only numbers, and codes of this package's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["CONTENT_TYPE", "Histogram", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts by upper limit."""

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits = tuple(limits)
        self._counts = [0] * (len(self.limits) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.limits, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def lines(self, name: str) -> list[str]:
        """Cumulative, as Prometheus wants them."""
        below, lines = 0, []
        for limit, count in zip((*map(_number, self.limits), "+Inf"), self._counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{limit}"}} {below}')
        return [*lines, f"{name}_sum {_number(self._sum)}", f"{name}_count {below}"]


class Metrics:
    """What a server counts; touched by its event loop alone."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        """By code: "ok", "resent" (a retry that got its answer again), or why it was refused."""
        self.seconds = Histogram(_SECONDS)
        """From a whole frame to its answer."""
        self.batches = Histogram(_SIZES)
        self.waiting: Callable[[], int] = int
        """How many requests wait now."""
        self.records: Counter[str] = Counter()
        """Training records by outcome: "stored", or "known" (sent before)."""
        self.streams = 0
        """Open WebSockets."""

    def render(self) -> str:
        """The page."""
        blocks = [
            _block(
                "dpf_requests_total",
                "counter",
                "Requests by outcome.",
                [f'dpf_requests_total{{outcome="{c}"}} {n}' for c, n in sorted(self.outcomes.items())],
            ),
            _block(
                "dpf_request_seconds",
                "histogram",
                "Time from a whole frame to its answer.",
                self.seconds.lines("dpf_request_seconds"),
            ),
            _block(
                "dpf_batch_size",
                "histogram",
                "Requests that were computed together.",
                self.batches.lines("dpf_batch_size"),
            ),
            _block("dpf_queue", "gauge", "Requests that wait.", [f"dpf_queue {self.waiting()}"]),
            _block("dpf_streams", "gauge", "Open WebSockets.", [f"dpf_streams {self.streams}"]),
        ]
        if self.records:  # only a collector has any
            lines = [f'dpf_records_total{{outcome="{c}"}} {n}' for c, n in sorted(self.records.items())]
            blocks.append(_block("dpf_records_total", "counter", "Training records by outcome.", lines))
        return "".join(blocks)


def _block(name: str, kind: str, what: str, lines: list[str]) -> str:
    return "\n".join([f"# HELP {name} {what}", f"# TYPE {name} {kind}", *lines]) + "\n"


def _number(value: float) -> str:
    return f"{value:.9g}"
