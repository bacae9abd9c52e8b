"""Counters of a server as a Prometheus page: only numbers, and codes of this package's own."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.service.protocol.access import is_loopback
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.users import Guard

_FORWARDED: Final = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})


class Metrics(Collector):
    """Outcomes of requests and of training records, and whatever else a server adds; one registry for each.

    ``hidden`` outcomes are counted, and neither shown nor logged.

    Guarantees:
        No series tells when something first happened: prometheus_client's ``_created`` series are left out.
    """

    def __init__(self, *, hidden: Iterable[str] = ()) -> None:
        self._hidden = frozenset(hidden)
        self.outcomes = Counter[str]()  # requests: "ok", "resent" (a retry), or why it was refused
        self.records = Counter[str]()  # training records: "stored", or "known" (sent before)
        self.classes = Counter[str]()  # answers and bodies of records by class of user
        self._counters: list[tuple[str, str, Callable[[], float]]] = []
        self.registry = CollectorRegistry()  # what else the page shows registers itself here
        self.registry.register(self)
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

    def add_counter(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Add a number that only grows; ``name`` goes without its ``_total``."""
        self._counters.append((name, what, value))

    def shown(self, counts: Counter[str]) -> dict[str, int]:
        """Those of the counts that are not hidden."""
        return {outcome: times for outcome, times in counts.items() if outcome not in self._hidden}

    def collect(self) -> Iterator[Metric]:
        for name, what, counts, label in (
            ("dpf_requests", "Requests by outcome.", self.outcomes, "outcome"),
            ("dpf_records", "Training records by outcome.", self.records, "outcome"),
            ("dpf_classes", "Answers and bodies of records by class of user.", self.classes, "class"),
        ):
            family = CounterMetricFamily(name, what, labels=[label])
            for outcome, times in sorted(self.shown(counts).items()):
                family.add_metric([outcome], times)
            yield family
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
            return Response(generate_latest(self.registry), headers=headers)

        return Route("/metrics", get)


def _check_local(request: Request) -> None:
    asked_here = request.client is not None and is_loopback(request.client.host)
    if not asked_here or not _FORWARDED.isdisjoint(request.headers):
        raise Refused("operator", "Metrics are for the operator, on loopback or with a token of their own.")
