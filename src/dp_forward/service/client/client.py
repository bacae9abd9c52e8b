"""`Client`: ask a server about texts.

The order of one question, each step on disk before the next:

1. the text becomes tokens, and the tokens a key (`answer_cache`); where this server's answer is stored, that
   is the end, and nothing is sent;
2. the manifest of the server is held against the policy, and its time against the clock here: refused here,
   nothing of a text was used;
3. `reserve`: charged, or known already, or `BudgetExhausted` and nothing leaves;
4. the release is drawn, put into a frame, and stored with `ready`;
5. the stored bytes are sent; on a network failure, the same bytes again;
6. the answer is checked, the release noted as `delivered`, and the answer stored.

Guarantees:
    No byte that depends on a text is sent before its charge is on disk. All integers that are ever sent for
    one key are the stored ones: at most one draw of a text leaves, whatever is retried, killed or run side by
    side. A retry sends identical bytes; hours later a question has a new header, as servers refuse old times.
    Within a process a text is drawn for once. A draw that a crash took before it was stored, or that came
    second to another process's, was seen by nobody; which one is kept does not depend on what was drawn.
    No error or repr holds a text, a token, a hidden value or the server's token.
Edges:
    A client may be used on both sides of a fork: no connection to a server is shared between processes.
    Texts are read, charged and drawn one after the other, also by `ask_many`: no library promises that a
    batch rounds as each text does alone, and what is released must not depend on what else was asked.
    A text that is longer than n tokens is cut: the server cannot tell, the user is told (`Answer.truncated`).
    Whoever gets a release again (``resend``, or because no answer came) learns that the text is the same.
    Epsilon does not bound that: it bounds what is learnt about the text.
"""

import functools
import itertools
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self, Unpack

from numpy.typing import NDArray

from dp_forward.errors import DpForwardError, InvalidInput, LedgerUnavailable, refuse_if
from dp_forward.ledger import Cap, Ledger, Release, State, Summary
from dp_forward.noise import Released, dequantise, release
from dp_forward.optional_packages import name_extra
from dp_forward.privacy import Budget
from dp_forward.privacy.charge import Charge
from dp_forward.progress import Count
from dp_forward.service.client import question as asking
from dp_forward.service.client.answer_cache import AnswerCache
from dp_forward.service.client.question import Answer, Preview, Question, Said, Text, Tokens
from dp_forward.service.client.transport import Call, Connection, Reply, Transport
from dp_forward.service.protocol.frame import frame_of, parse_frame
from dp_forward.service.protocol.manifest import Offer
from dp_forward.service.protocol.policy import Policy
from dp_forward.split.artifacts import AskingSide, front_of, load_asking_side

__all__ = ["Client"]

_CLOCK_SECONDS: Final = 60.0  # a clock that moved by more was set, or the machine slept


class Client:
    """Asks a server about texts. Threads and forks may share one.

    >>> with Client("run/front", server=address, ledger="me.ledger", budget=50.0) as client:
    ...     answer = client.ask("a quiet, generous film")
    ...     print(answer.label in client.policy.release.labels, answer.charge, answer.remaining)
    ...     print(client.ask("a quiet, generous film").charge)  # the stored answer
    True 8.0 42.0
    0.0

    Args:
        front: the user's folder of a run, or the run. One that has ONNX is computed by onnxruntime, where
            that is installed, and torch is not loaded.
        server: the address of the provider: https, or this machine.
        ledger: the file of what was spent; it is made if there is none. It holds the kind of noise of the
            front: pure releases (delta 0), or Gaussian ones at its delta.
        budget: the cap of a new ledger, epsilon in all; an old one keeps its own.
        budget_per_day: a second cap for each day of UTC; for pure releases it will do alone.
        bits: of each released integer, 8 or 16; by default what the front says.
        epsilon: less than the front says, which is more noise, if the server offers it.
        connection: how the server is spoken to: ``token``, ``ca``, ``proxy`` and more (see `Connection`).
    """

    @name_extra("A client")  # httpx
    def __init__(
        self,
        front: str | os.PathLike[str] | AskingSide,
        *,
        server: str,
        ledger: str | os.PathLike[str],
        budget: float | None = None,
        budget_per_day: float | None = None,
        bits: int | None = None,
        epsilon: float | None = None,
        **connection: Unpack[Connection],
    ) -> None:
        self._connection = connection
        self._transport, self._more = Transport(server, **connection), list[Transport]()
        self._user = front if isinstance(front, AskingSide) else load_asking_side(front_of(front))
        policy = Policy.of(self._user, bits=bits)
        self._policy = policy if epsilon is None else policy.with_epsilon(epsilon)
        self._with_epsilon = functools.cache(self._policy.with_epsilon)
        self._manifest: object = None
        self._terms: dict[float, Offer] = {}
        self._clock = _clock()
        self._turn, self._process = threading.Lock(), os.getpid()
        place = Path(ledger).resolve()
        self._ledger = _open_ledger(place, self._policy, budget, budget_per_day)
        try:
            self._answers = AnswerCache(place, self._ledger)
        except BaseException:
            self._ledger.close()
            raise

    @property
    def policy(self) -> Policy:
        """What this user allows, and what every question is asked by; see `Policy`."""
        return self._policy

    def summary(self) -> Summary:
        """What has been spent, and what is left."""
        return self._ledger.summary()

    def latest(self, most: int = 20) -> tuple[Release, ...]:
        """The last releases that were charged, newest first; see `Ledger.latest`."""
        return self._ledger.latest(most)

    def __repr__(self) -> str:
        return f"Client({self._transport.address}) -> {self.policy.terms().mechanism.promise()}"

    def ask(self, text: Text, *, epsilon: float | None = None, resend: bool = False) -> Answer:
        """Ask about one text; the same text again is answered from what is stored here, and nothing is sent.

        ``epsilon`` is for this question only; the same text at another epsilon is another release.
        ``resend`` sends the stored release again, which costs nothing: for a provider that changed its back.
        """
        question = self._prepare(text, epsilon=epsilon, resend=resend)
        return question if isinstance(question, Answer) else self._send(question)

    def offered_epsilons(self) -> tuple[float, ...]:
        """At which epsilons the server answers, of those that the front allows; greatest first."""
        found = self._fetch_manifest()
        epsilons = self.policy.offered(found)
        self._manifest = found
        return epsilons

    def preview(self, text: Text, *, epsilon: float | None = None) -> Preview:
        """What the provider could see of a text; nothing of it is drawn, charged or sent."""
        policy = self._policy_at(epsilon)
        terms = self._agree(policy)
        tokens, key, _ = self._read(text, policy, "text")
        known, values, noisy = self._ledger.find(key), None, None
        if known is not None and known.state is not State.RESERVED:
            values = parse_frame(self._ledger.payload(known.id)).values
            noisy = dequantise(values, terms.mechanism, self.policy.release.bits)
        return Preview(tokens, self._hidden(tokens), values, noisy)

    def ask_many(
        self, texts: Iterable[Text], *, progress: Count | None = None, at_once: int = 8, resend: bool = False
    ) -> Iterator[Answer]:
        """An answer for each text, in order; ``progress`` is called with how many there are so far.

        Edges:
            Up to ``at_once`` requests are on their way, and as many texts charged ahead of the answer that is
            waited for (with 1, none is). The first error ends it, at its place; what was answered before is
            stored, and what was charged ahead stays paid: asked again, it costs nothing, so whoever was
            interrupted starts anew. A fork of the process that asks is refused.
        """
        refuse_if(at_once < 1, "at_once", "be at least 1", at_once, "Leave it out.")
        transport, process = Transport(self._transport.address, **self._connection), os.getpid()
        self._more.append(transport)
        begun, waiting = self._begin(texts, transport, resend), deque[Callable[[], Answer]]()
        try:
            for number in itertools.count(1):
                if process != os.getpid():  # the threads that wait are in the other one
                    remedy = "Ask again in it."
                    raise InvalidInput("answers", "be taken by the process that asked", "a fork", remedy)
                waiting.extend(itertools.islice(begun, at_once - len(waiting)))
                if not waiting:
                    return
                answer = waiting.popleft()()
                if progress is not None:
                    progress(number)
                yield answer
        finally:
            transport.close()  # whatever is on its way is given up
            self._more.remove(transport)

    def _begin(
        self, texts: Iterable[Text], transport: Transport, resend: bool
    ) -> Iterator[Callable[[], Answer]]:
        """Charge and send one text after the other; each comes with the function that gets its answer."""
        sent: set[bytes] = set()
        for number, text in enumerate(texts, start=1):
            try:
                question = self._prepare(text, resend=resend, name=f"text {number}")
            except DpForwardError as error:  # raised at its place, after which nothing is asked
                ended: Future[Answer] = Future()
                ended.set_exception(error)
                yield ended.result
                return
            reply = None
            if isinstance(question, Question) and (resend or question.key not in sent):
                sent.add(question.key)
                reply = transport.start(question.call)
            yield functools.partial(self._receive, question, reply)

    def _receive(self, begun: Question | Answer, reply: Future[Reply] | None) -> Answer:
        if isinstance(begun, Answer):
            return begun
        if reply is not None:
            return self._finish(begun, reply.result())
        # The same text was on its way: by now its answer is stored.
        return self._recall(begun.key, truncated=begun.truncated) or self._send(begun)

    def close(self) -> None:
        """Give back the ledger and the connections; an `ask_many` that was not finished ends."""
        for transport in (*self._more, self._transport):
            transport.close()
        self._answers.close()
        self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _agree(self, policy: Policy) -> Offer:
        """The server's agreement to this policy; it is asked once, and again where the clock was set."""
        if abs(_clock() - self._clock) > _CLOCK_SECONDS:
            self._terms, self._manifest = {}, None
        if policy.epsilon not in self._terms:
            found = self._fetch_manifest()
            self._terms[policy.epsilon] = policy.read(found)
            self._manifest = found
        return self._terms[policy.epsilon]

    def _fetch_manifest(self) -> object:
        """The manifest that was agreed to, or what the server says now."""
        if self._manifest is not None:
            return self._manifest
        reply = self._transport.send(Call("GET", "/v1/manifest", kept="Nothing was charged."))
        asking.check_clock(reply.date)
        self._clock = _clock()
        return reply.json()

    def _prepare(
        self, text: Text, *, epsilon: float | None = None, resend: bool = False, name: str = "text"
    ) -> Question | Answer:
        """Steps 1 to 4 of the module: a question that is paid for, or the answer that is stored."""
        policy = self._policy_at(epsilon)
        tokens, key, truncated = self._read(text, policy, name)
        answer = None if resend else self._recall(key, truncated=truncated)
        if answer is not None:
            return answer
        stored, entry, charge = self._pay(tokens, key, self._agree(policy))
        request, frame = asking.refresh_frame(stored, int(time.time()))
        call = Call("POST", "/v1/answer", body=frame, kept=asking.KEPT)
        return Question(call, request, key, entry, charge, truncated)

    def _recall(self, key: bytes, *, truncated: bool) -> Answer | None:
        """The stored answer of this server, if there is one."""
        known = self._answers.find(key, self._transport.address)
        if known is None or known.label not in self.policy.release.labels:
            return None
        return self._answer(known, resent=True, stored=True, truncated=truncated)

    def _finish(self, question: Question, reply: Reply) -> Answer:
        """Check and store the server's reply to a question."""
        found = asking.check_answer(reply.json(), self.policy.release.labels, question.request)
        state = question.entry.state
        try:
            if state is not State.DELIVERED:
                self._ledger.delivered(question.entry.id)
            self._answers.store(question.key, self._transport.address, found)
        except LedgerUnavailable:  # its message says that nothing was sent
            raise LedgerUnavailable(
                "The release was sent, and its answer cannot be stored: see that the disk has room and that "
                "the ledger's folder may be written to. It is paid for: asking again costs nothing."
            ) from None
        flags = {"resent": state is not State.RESERVED, "truncated": question.truncated}
        return self._answer(found, question.charge, stored=False, **flags)

    def _send(self, question: Question) -> Answer:
        return self._finish(question, self._transport.send(question.call))

    def _policy_at(self, epsilon: float | None) -> Policy:
        return self.policy if epsilon is None else self._with_epsilon(float(epsilon))

    def _read(self, text: Text, policy: Policy, name: str) -> tuple[Tokens, bytes, bool]:
        """Read a text: its tokens, the ledger's key for them, and whether it was cut."""
        asking.check_text(text, name)
        fixed, spec, failed = self._user.tokens, self.policy.release, False
        parts = [[part] for part in ((text,) if isinstance(text, str) else text)]
        with self._lock():  # a fast tokenizer must not be used by two threads at once
            try:
                tokens, _ = fixed.encode_arrays(*parts)
                # One more than fits is enough to know that it does not.
                just_more = {"truncation": True, "max_length": spec.rows + 1}
                long = fixed.tokenizer(*parts, **just_more)["input_ids"][0]
                alone = [fixed.tokenizer(part, **just_more)["input_ids"][0] for part in parts]
                bare = fixed.tokenizer([""])["input_ids"][0]
            except Exception:  # of any type, and its message may hold the text
                failed = True
        refuse_if(failed, name, "be text that the tokenizer reads", "something else", "Check it.")
        if any(len(part) <= len(bare) for part in alone):
            raise InvalidInput(name, "hold something to read", "nothing", "Leave it out.")
        public = {"front": spec.front, "noise": policy.noise.as_dict(), "bits": spec.bits}
        return tokens, self._answers.key(tokens, public), len(long) > spec.rows

    def _pay(self, tokens: Tokens, key: bytes, terms: Offer) -> tuple[bytes, Release, Charge | None]:
        """The frame to send, the ledger's entry from before the draw, and what was charged now."""
        ledger, name = self._ledger, f"ask: {terms.mechanism.name} per {terms.mechanism.unit}"
        with self._lock():
            known = ledger.find(key)
            entry = ledger.reserve(key, terms.charge, mechanism=name, unit=terms.mechanism.unit)
            if entry.state is State.RESERVED:
                frame = ledger.ready(entry.id, self._frame(self._draw(tokens, terms)))
            else:
                frame = ledger.payload(entry.id)
        return frame, entry, terms.charge if known is None else None

    def _draw(self, tokens: Tokens, terms: Offer) -> Released:
        """Draw one release; only ever called for a charge that has none."""
        return release(self._hidden(tokens), terms.mechanism, bits=self.policy.release.bits)

    def _hidden(self, tokens: Tokens) -> NDArray[Any]:
        hidden = self._user.hidden(tokens)
        if hidden.shape != (1, *self.policy.release.shape):
            raise AssertionError("the front gives another shape than the policy says")
        return hidden.reshape(self.policy.release.shape)

    def _frame(self, released: Released) -> bytes:
        spec, now = self.policy.release, int(time.time())
        return frame_of(released, cut=spec.cut, front=spec.front, request=secrets.token_bytes(16), time=now)

    def _answer(self, found: Said, charge: Charge | None = None, **flags: bool) -> Answer:
        summary = self._ledger.summary()
        paid = 0.0 if charge is None else charge.epsilon(summary.delta)
        rest: dict[str, Any] = {"charge": paid, "charged": summary.charged, "spent": summary.spent, **flags}
        return Answer(**asdict(found), remaining=summary.usable, **rest)

    def _lock(self) -> threading.Lock:
        """The lock of this process; one that was held at a fork is never given back in the child."""
        if self._process != os.getpid():
            self._turn, self._process = threading.Lock(), os.getpid()
        return self._turn


def _open_ledger(path: Path, policy: Policy, budget: float | None, per_day: float | None) -> Ledger:
    """The ledger, made where there is none for this kind of release; it must be able to hold it."""
    own = policy.terms()
    if path.exists():
        ledger = Ledger.open(path)
    elif budget is None and (per_day is None or own.charge.mu2_units):
        remedy = "Say how much may be spent in all: budget=50. Only pure noise goes by the day alone."
        raise InvalidInput("budget", "be given for a new ledger", "none", remedy)
    else:
        delta = policy.noise.delta or 0.0
        cap = None if budget is None else Cap.like(own.charge, Budget(budget, delta))
        ledger = Ledger.open_or_create(path, cap=cap, per_day=per_day)
    stated = None if ledger.cap is None else ledger.cap.epsilon
    kept = (("budget", "cap", budget, stated), ("budget_per_day", "cap per day", per_day, ledger.per_day))
    try:
        for name, word, given, found in kept:
            if given is not None and given != found:
                remedy = "A cap is never changed: leave it out, or use another ledger."
                raise InvalidInput(name, f"be the ledger's {word}, {found or 'none'}", given, remedy)
        ledger.check_kind(own.charge, own.mechanism.unit)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _clock() -> float:
    """Of the wall, as far as it was set and did not just go on."""
    return time.time() - time.monotonic()
