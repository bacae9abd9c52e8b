"""`Client` and `AsyncClient`: ask a server about texts, blocking or with asyncio.

    with Client("run/front", server="https://provider.example", ledger="me.ledger", budget=50.0) as client:
        client.ask("a quiet, generous film").label

Guarantees:
    Those of `session` (what is charged, drawn and sent) and of `transport` (how).
Edges:
    A client may be used on both sides of a fork: no connection to a server is shared between processes.
    Texts are read, charged and drawn one after the other, in their order, also by `ask_many`. No library
    promises that a batch of texts rounds as each of them does alone, and what is released must not depend on
    what else was asked.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from dp_forward.ledger import Summary
from dp_forward.progress import Count
from dp_forward.service.client.session import Answer, Preview, Session, Text
from dp_forward.service.client.transport import AsyncTransport, BlockingPool, OrderedPool, Transport
from dp_forward.service.protocol.policy import Policy
from dp_forward.service.protocol.sansio import RetryPolicy, Steps
from dp_forward.split.artifacts import UserSide, load_user_side

__all__ = ["AsyncClient", "Client"]

L = TypeVar("L", bound=Transport | AsyncTransport)


class _Base(Generic[L]):
    """What both clients are made of."""

    _kind: type[L]

    def __init__(
        self,
        front: str | os.PathLike[str] | UserSide,
        *,
        server: str,
        ledger: str | os.PathLike[str],
        budget: float | None = None,
        budget_per_day: float | None = None,
        token: str | None = None,
        transport: Any = None,
        bits: int | None = None,
        epsilon: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        retry = retry or RetryPolicy()
        self._connection: dict[str, Any] = {"token": token, "retry": retry, "transport": transport}
        self._transport: L = self._kind(server, **self._connection)
        self._pools: list[BlockingPool[Answer]] = []
        user = front if isinstance(front, UserSide) else load_user_side(Path(front))
        policy = Policy.of(user, bits=bits)
        if epsilon is not None:
            policy = policy.with_epsilon(epsilon)
        caps: dict[str, Any] = {"budget": budget, "per_day": budget_per_day}
        address, place = self._transport.address, Path(ledger).resolve()
        self._session = Session(user, policy, server=address, place=place, **caps, retry=retry)

    @property
    def policy(self) -> Policy:
        """What this user allows, and what every question is asked by; see `Policy`."""
        return self._session.policy

    def summary(self) -> Summary:
        """What has been spent, and what is left."""
        return self._session.summary()

    def __repr__(self) -> str:
        promise = self.policy.terms().mechanism.promise()
        return f"{type(self).__name__}({self._transport.address}) -> {promise}"

    def _questions(self, texts: Iterable[Text]) -> Iterator[Steps[Answer]]:
        for number, text in enumerate(texts, start=1):
            yield self._session.ask(text, recall=True, name=f"text {number}")


class Client(_Base[Transport]):
    """Asks a server about texts, blocking.

    ``front`` is the user's folder of a run, ``budget`` the cap of a new ledger (epsilon in all), and
    ``budget_per_day`` a second one for each day of UTC. The ledger holds the kind of noise of the front: pure
    releases (delta 0; then a budget per day alone will do), or Gaussian ones at its delta. ``token`` is what
    the server knows the user by. ``epsilon`` asks with more noise than the front says, if the server offers
    it. ``transport`` is one of httpx.
    """

    _kind = Transport

    def ask(self, text: Text, *, epsilon: float | None = None) -> Answer:
        """Ask about one text; the same text again sends the stored release, and costs nothing.

        ``epsilon`` is for this question only; the same text at another epsilon is another release.
        """
        return self._transport.drive(self._session.ask(text, epsilon=epsilon))

    def offered_epsilons(self) -> tuple[float, ...]:
        """At which epsilons the server answers, of those that the front allows; greatest first."""
        return self._transport.drive(self._session.offered())

    def preview(self, text: Text, *, epsilon: float | None = None) -> Preview:
        """What the provider could see of a text; nothing of it is drawn, charged or sent."""
        return self._transport.drive(self._session.preview(text, epsilon=epsilon))

    def ask_many(
        self, texts: Iterable[Text], *, progress: Count | None = None, at_once: int = 8
    ) -> Iterator[Answer]:
        """An answer for each text, in order; ``progress`` is called with how many there are so far.

        Up to ``at_once`` requests are on their way at a time, over kept-alive connections.

        Edges:
            A text whose answer is stored is not asked again, so whoever was interrupted starts anew. The
            first error ends it; what was answered before is stored, and what was charged ahead stays paid:
            asked again, it costs nothing. With a ``transport`` that only blocks, the texts go one by one.
        """
        for number, answer in enumerate(self._answers(texts, at_once), start=1):
            if progress is not None:
                progress(number)
            yield answer

    def _answers(self, texts: Iterable[Text], at_once: int) -> Iterator[Answer]:
        import httpx

        questions, own = self._questions(texts), self._connection["transport"]
        self._transport.drive(self._session.agree())  # once, before they go side by side
        if own is not None and not isinstance(own, httpx.AsyncBaseTransport):
            for steps in questions:
                yield self._transport.drive(steps)
            return
        transport = AsyncTransport(self._transport.address, **self._connection)
        pool = BlockingPool[Answer](transport, at_once=at_once)
        self._pools.append(pool)
        try:
            yield from pool.results(questions)
        finally:
            self._pools.remove(pool)
            pool.close()

    def close(self) -> None:
        """Give back the ledger and the connections; an `ask_many` that was not finished ends."""
        for pool in self._pools:
            pool.close()
        self._transport.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClient(_Base[AsyncTransport]):
    """As `Client`, for asyncio. The front and the ledger run in threads, so the loop is never held up."""

    _kind = AsyncTransport

    async def ask(self, text: Text, *, epsilon: float | None = None) -> Answer:
        """Ask about one text; see `Client.ask`."""
        return await self._transport.drive(self._session.ask(text, epsilon=epsilon))

    async def offered_epsilons(self) -> tuple[float, ...]:
        """See `Client.offered_epsilons`."""
        return await self._transport.drive(self._session.offered())

    async def ask_many(
        self, texts: Iterable[Text], *, progress: Count | None = None, at_once: int = 8
    ) -> AsyncIterator[Answer]:
        """An answer for each text, in order; see `Client.ask_many`."""
        pool = OrderedPool[Answer](self._transport, at_once=at_once)
        questions, done = self._questions(texts), 0
        try:
            await self._transport.drive(self._session.agree())  # once, before they go side by side
            while True:
                while not pool.full and (steps := next(questions, None)) is not None:
                    await pool.add(steps)
                if not pool:
                    return
                answer = await pool.next()
                done += 1
                if progress is not None:
                    progress(done)
                yield answer
        finally:
            await pool.close()

    async def close(self) -> None:
        """Give back the ledger and the connections."""
        await self._transport.close()
        self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
