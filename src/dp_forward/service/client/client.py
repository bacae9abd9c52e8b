"""`Client`: ask a server about texts.

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

import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.ledger import Summary
from dp_forward.progress import Count
from dp_forward.service.client.session import Answer, Preview, Question, Session, Text
from dp_forward.service.client.transport import Reply, RetryPolicy, Transport
from dp_forward.service.protocol.policy import Policy
from dp_forward.split.artifacts import UserSide, front_of, load_user_side

__all__ = ["Client"]

_Begun = Answer | DpForwardError | Question | tuple[Question, Future[Reply]]


class Client:
    """Asks a server about texts. Threads and forks may share one.

    ``front`` is the user's folder of a run (or the run), ``budget`` the cap of a new ledger (epsilon in all),
    and ``budget_per_day`` a second one for each day of UTC. The ledger holds the kind of noise of the front:
    pure releases (delta 0; then a budget per day alone will do), or Gaussian ones at its delta. ``token`` is
    what the server knows the user by. ``epsilon`` asks with more noise than the front says, if the server
    offers it. ``transport`` is one of httpx.
    """

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
        self._connection: dict[str, Any] = {"token": token, "retry": retry, "transport": transport}
        self._transport = Transport(server, **self._connection)
        self._more: list[Transport] = []
        user = front if isinstance(front, UserSide) else load_user_side(front_of(front))
        policy = Policy.of(user, bits=bits)
        if epsilon is not None:
            policy = policy.with_epsilon(epsilon)
        caps: dict[str, Any] = {"budget": budget, "per_day": budget_per_day}
        self._session = Session(user, policy, self._transport, place=Path(ledger).resolve(), **caps)

    @property
    def policy(self) -> Policy:
        """What this user allows, and what every question is asked by; see `Policy`."""
        return self._session.policy

    def summary(self) -> Summary:
        """What has been spent, and what is left."""
        return self._session.summary()

    def __repr__(self) -> str:
        return f"Client({self._transport.address}) -> {self.policy.terms().mechanism.promise()}"

    def ask(self, text: Text, *, epsilon: float | None = None, resend: bool = False) -> Answer:
        """Ask about one text; the same text again is answered from what is stored here, and nothing is sent.

        ``epsilon`` is for this question only; the same text at another epsilon is another release.
        ``resend`` sends the stored release again, which costs nothing: for a provider that changed its back.
        The receiver then learns that the text is the same as before.
        """
        return self._session.ask(text, epsilon=epsilon, resend=resend)

    def offered_epsilons(self) -> tuple[float, ...]:
        """At which epsilons the server answers, of those that the front allows; greatest first."""
        return self._session.offered()

    def preview(self, text: Text, *, epsilon: float | None = None) -> Preview:
        """What the provider could see of a text; nothing of it is drawn, charged or sent."""
        return self._session.preview(text, epsilon=epsilon)

    def ask_many(
        self,
        texts: Iterable[Text],
        *,
        progress: Count | None = None,
        at_once: int = 8,
        resend: bool = False,
    ) -> Iterator[Answer]:
        """An answer for each text, in order; ``progress`` is called with how many there are so far.

        Up to ``at_once`` requests are on their way at a time, over kept-alive connections.

        Edges:
            Up to ``at_once`` texts are charged ahead of the answer that is waited for (with 1, none is).
            A text whose answer is stored is not sent (see `ask`), so whoever was interrupted starts anew. The
            first error ends it, at its place; what was answered before is stored, and what was charged ahead
            stays paid: asked again, it costs nothing. A fork of the process that asks is refused.
        """
        if at_once < 1:
            raise InvalidInput("at_once", "be at least 1", at_once, "Leave it out.")
        transport, process = Transport(self._transport.address, **self._connection), os.getpid()
        self._more.append(transport)
        begun, waiting = self._begin(texts, transport, resend), deque[_Begun]()
        try:
            for number in itertools.count(1):
                if process != os.getpid():  # the threads that wait are in the other one
                    remedy = "Ask again in it."
                    raise InvalidInput("answers", "be taken by the process that asked", "a fork", remedy)
                waiting.extend(itertools.islice(begun, at_once - len(waiting)))
                if not waiting:
                    return
                answer = self._finish(waiting.popleft())
                if progress is not None:
                    progress(number)
                yield answer
        finally:
            transport.close()  # whatever is on its way is given up
            self._more.remove(transport)

    def _begin(self, texts: Iterable[Text], transport: Transport, resend: bool) -> Iterator[_Begun]:
        """Charge and send one text after the other; a text that cannot be asked about is the last one."""
        sent: set[bytes] = set()
        for number, text in enumerate(texts, start=1):
            try:
                question = self._session.prepare(text, resend=resend, name=f"text {number}")
            except DpForwardError as error:
                yield error
                return
            if isinstance(question, Answer) or (question.key in sent and not resend):
                yield question  # the same text is on its way: its answer will be stored
                continue
            sent.add(question.key)
            yield question, transport.start(question.call)

    def _finish(self, begun: _Begun) -> Answer:
        match begun:
            case Answer():
                return begun
            case DpForwardError():
                raise begun
            case Question():
                stored = self._session.recall(begun.key, truncated=begun.truncated)
                return stored or self._session.finish(begun, self._transport.send(begun.call))
            case question, reply:
                return self._session.finish(question, reply.result())

    def close(self) -> None:
        """Give back the ledger and the connections; an `ask_many` that was not finished ends."""
        for transport in (*self._more, self._transport):
            transport.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
