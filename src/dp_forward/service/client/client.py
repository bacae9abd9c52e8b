"""The client: two thin shells around `exchange`, one that blocks and one that does not.

    with Client("run/front", server="https://provider.example", ledger="me.ledger", budget=50.0) as client:
        client.ask("a quiet, generous film").label

Guarantees:
    Those of `exchange`. Redirects are not followed, no cookie is kept, no compressed answer is opened, and an
    answer is read up to a fixed size and time. Without TLS only this machine is spoken to.
Edges:
    A client may be used on both sides of a fork: no connection to a server is shared between processes.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from dp_forward.ledger import Summary
from dp_forward.service.client.session import Answer, Exchange, Look, Text
from dp_forward.service.client.transport import AsyncLine, Line
from dp_forward.service.protocol.policy import Policy
from dp_forward.service.protocol.sansio import Call, NoReply, Patience, Reply, Steps
from dp_forward.split.artifacts import UserSide, load_user_side

if TYPE_CHECKING:
    from dp_forward.service.client.bulk import Batch

__all__ = ["Answer", "AsyncClient", "Client", "Look", "Patience", "Text"]

L = TypeVar("L", bound=Line | AsyncLine)
Progress = Callable[[int], None]


class _Common(ABC, Generic[L]):
    """What both clients are made of."""

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
        allow_more_noise: bool = False,
        patience: Patience | None = None,
    ) -> None:
        patience, self._over_network = patience or Patience(), transport is None
        self._line: L = self._kind()(server, token=token, patience=patience, transport=transport)
        user = front if isinstance(front, UserSide) else load_user_side(Path(front))
        policy = Policy.of(user, bits=bits, allow_more_noise=allow_more_noise)
        self._exchange = Exchange(
            user,
            policy if epsilon is None else policy.with_epsilon(epsilon),
            server=self._line.address,
            ledger=ledger,
            budget=budget,
            budget_per_day=budget_per_day,
            patience=patience,
        )

    @staticmethod
    @abstractmethod
    def _kind() -> type[L]:
        """Which line to speak over."""

    @property
    def policy(self) -> Policy:
        """What this user allows, and what every question is asked by; see `Policy`."""
        return self._exchange.policy

    def summary(self) -> Summary:
        """What has been spent, and what is left."""
        return self._exchange.summary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._line.address}) -> {self.policy.terms().mechanism.promise()}"

    def _questions(self, texts: Iterable[Text]) -> Iterator[Steps[Answer]]:
        for number, text in enumerate(texts, start=1):
            yield self._exchange.ask(text, recall=True, name=f"text {number}")

    def _batch(self, at_once: int, otherwise: Callable[[Call], Awaitable[Reply | NoReply]]) -> Batch:
        from dp_forward.service.client.bulk import Batch, Stream

        stream, line = None, self._line
        if self._over_network:
            stream = Stream(line.address, headers=line.headers, timeout=line.patience.timeout)
        return Batch(self._exchange.greet(), at_once=at_once, stream=stream, otherwise=otherwise)


class Client(_Common[Line]):
    """Asks a server about texts, blocking; see the module and `exchange`.

    ``front`` is the user's folder of a run, ``budget`` the cap of a new ledger (epsilon in all), and
    ``budget_per_day`` a second one for each day of UTC; where only that is given, the cap is the largest that
    a ledger can have. ``token`` is what the server knows the user by. ``epsilon`` asks with more noise than
    the front says, if the server offers it. ``transport`` is one of httpx.
    """

    @staticmethod
    def _kind() -> type[Line]:
        return Line

    def ask(self, text: Text, *, epsilon: float | None = None) -> Answer:
        """One question; the same text again sends the stored release, and costs nothing.

        ``epsilon`` is for this question only; the same text at another epsilon is another release.
        """
        return self._line.drive(self._exchange.ask(text, epsilon=epsilon))

    def offered_epsilons(self) -> tuple[float, ...]:
        """At which epsilons the server answers, of those that the front allows; greatest first."""
        return self._line.drive(self._exchange.offered())

    def look(self, text: Text, *, epsilon: float | None = None) -> Look:
        """What the provider could see of a text; nothing of it is drawn, charged or sent."""
        return self._line.drive(self._exchange.look(text, epsilon=epsilon))

    def ask_many(
        self, texts: Iterable[Text], *, progress: Progress | None = None, at_once: int = 8
    ) -> Iterator[Answer]:
        """An answer for each text, in order; ``progress`` is called with how many there are so far.

        Up to ``at_once`` questions are on their way at a time, over one WebSocket (`bulk`).

        Edges:
            A text whose answer is stored is not asked again, so whoever was interrupted starts anew. The
            first error ends it; what was answered before is stored, and what was charged ahead stays paid.
            With a ``transport`` the texts go one by one.
        """
        answers = self._side_by_side(texts, at_once) if self._over_network else self._one_by_one(texts)
        for number, answer in enumerate(answers, start=1):
            if progress is not None:
                progress(number)
            yield answer

    def _one_by_one(self, texts: Iterable[Text]) -> Iterator[Answer]:
        for steps in self._questions(texts):
            yield self._line.drive(steps)

    def _side_by_side(self, texts: Iterable[Text], at_once: int) -> Iterator[Answer]:
        from dp_forward.service.client.bulk import LoopThread

        batch = self._batch(at_once, lambda call: asyncio.to_thread(self._line.call, call))
        questions = self._questions(texts)
        with LoopThread() as loop:
            try:
                while True:
                    while not batch.full and (steps := next(questions, None)) is not None:
                        loop.run(batch.add(steps))
                    if not batch:
                        return
                    yield loop.run(batch.next())
            finally:
                loop.end(batch.close())

    def close(self) -> None:
        """Give back the ledger and the connections."""
        self._line.close()
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Common[AsyncLine]):
    """As `Client`, for asyncio. The front and the ledger run in threads, so the loop is never held up."""

    @staticmethod
    def _kind() -> type[AsyncLine]:
        return AsyncLine

    async def ask(self, text: Text, *, epsilon: float | None = None) -> Answer:
        """One question; see `Client.ask`."""
        return await self._line.drive(self._exchange.ask(text, epsilon=epsilon))

    async def offered_epsilons(self) -> tuple[float, ...]:
        """See `Client.offered_epsilons`."""
        return await self._line.drive(self._exchange.offered())

    async def ask_many(
        self, texts: Iterable[Text], *, progress: Progress | None = None, at_once: int = 8
    ) -> AsyncIterator[Answer]:
        """As `Client.ask_many`; also with a ``transport`` up to ``at_once`` questions are on their way."""
        batch, questions, done = self._batch(at_once, self._line.call), self._questions(texts), 0
        try:
            while True:
                while not batch.full and (steps := next(questions, None)) is not None:
                    await batch.add(steps)
                if not batch:
                    return
                answer = await batch.next()
                done += 1
                if progress is not None:
                    progress(done)
                yield answer
        finally:
            await batch.close()

    async def close(self) -> None:
        """Give back the ledger and the connections."""
        await self._line.close()
        self._exchange.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
