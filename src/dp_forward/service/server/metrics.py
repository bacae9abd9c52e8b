"""Counters of a server as a Prometheus page: only numbers, and codes of this package's own.

Of several workers each answers with the sum over all, also over those that have ended: prometheus_client then
keeps its numbers in files of a folder that the supervisor made (its multiprocess mode).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, Final

import prometheus_client
from prometheus_client import CollectorRegistry, Metric, generate_latest, values
from prometheus_client.core import CounterMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.service.protocol.access import is_loopback
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.users import Guard

_FORWARDED: Final = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})


class _Counts(Counter[str]):
    """Counts by ``label``, which go to the page too, but for the ``hidden`` ones."""

    def __init__(
        self, name: str, what: str, label: str, hidden: Set[str], registry: CollectorRegistry
    ) -> None:
        super().__init__()
        self._hidden = hidden
        self._page = prometheus_client.Counter(name, what, [label], registry=registry)

    def __setitem__(self, key: str, value: int) -> None:
        if key not in self._hidden:
            self._page.labels(key).inc(value - self[key])
        super().__setitem__(key, value)


class Metrics(Collector):
    """Outcomes of requests and of training records, and whatever else a server adds; one registry for each.

    ``hidden`` outcomes are counted, and neither shown nor logged.

    Guarantees:
        No series tells when something first happened: prometheus_client's ``_created`` series are left out,
        and the others are in the order of their labels.
    """

    def __init__(self, *, hidden: Iterable[str] = ()) -> None:
        self._hidden = frozenset(hidden)
        self._counters: list[tuple[str, str, Callable[[], float]]] = []
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()  # what else the page shows registers itself here
        self.registry.register(self)
        more: Any = {"hidden": self._hidden, "registry": self.registry}
        # "ok", "resent" (a retry), or why it was refused; "stored", or "known" (sent before)
        self.outcomes = _Counts("dpf_requests", "Requests by outcome.", "outcome", **more)
        self.records = _Counts("dpf_records", "Training records by outcome.", "outcome", **more)
        what = "Answers and bodies of records by class of user."
        self.classes = _Counts("dpf_classes", what, "class", **more)

    def add_counter(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Add a number that only grows; ``name`` goes without its ``_total``."""
        self._counters.append((name, what, value))

    def shown(self, counts: Counter[str]) -> dict[str, int]:
        """Those of the counts that are not hidden."""
        return {outcome: times for outcome, times in counts.items() if outcome not in self._hidden}

    def collect(self) -> Iterator[Metric]:
        for name, what, value in self._counters:
            yield CounterMetricFamily(name, what, value=value())

    def route(self, token: str | None) -> Route:
        """`GET /metrics`: the page in the text format 0.0.4, for the operator.

        That is whoever has the ``token``; where there is none, whoever asks on loopback past every proxy.
        """
        check = _check_local if token is None else Guard(token)

        async def get(request: Request) -> Response:
            check(request)
            headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
            return Response(generate_latest(_Page(self.registry)), headers=headers)

        return Route("/metrics", get)


class _Page(Collector):
    """What a page shows: a registry, or where there are several workers that of all of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        several = values.ValueClass._multiprocess
        self._source = MultiProcessCollector(None) if several else registry  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        for metric in self._source.collect():
            if metric.type == "counter":
                metric.samples.sort(key=lambda sample: sorted(sample.labels.items()))
            yield metric


def _check_local(request: Request) -> None:
    asked_here = request.client is not None and is_loopback(request.client.host)
    if not asked_here or not _FORWARDED.isdisjoint(request.headers):
        raise Refused("operator", "Metrics are for the operator, on loopback or with a token of their own.")
