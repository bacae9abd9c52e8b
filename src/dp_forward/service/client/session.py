"""Session of a user with a server: one question from text to answer.

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
    No byte that depends on a text is sent before its charge is on disk. All integers that are ever
    sent for one key are the stored ones: at most one draw of a text leaves, whatever is retried, killed or
    run side by side. A retry sends identical bytes; a question that is asked again hours later has a new
    header, since servers refuse an old time.
    Within a process a text is drawn for once. A draw that a crash took before it was stored, or that came
    second to another process's, was seen by nobody; which one is kept does not depend on what was drawn.
    No error or repr holds a text, a token, a hidden value or the server's token.
Edges:
    A text that is longer than n tokens is cut: the server cannot tell, the user is told (`Answer.truncated`).
    A release that is sent again (``resend``, or because no answer came) looks the same, so whoever got it
    before learns that the text is the same. Epsilon does not bound that: it bounds what is learnt about the
    text.
"""

from __future__ import annotations

import functools
import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from dp_forward.errors import InvalidInput, LedgerUnavailable
from dp_forward.ledger import Cap, Ledger, Release, State, Summary
from dp_forward.noise.released.released_matrix import Released, dequantise, release
from dp_forward.privacy import Budget
from dp_forward.privacy.charge import Charge
from dp_forward.service.client.answer_cache import AnswerCache
from dp_forward.service.client.transport import Call, Reply, ServerRefused, Transport
from dp_forward.service.protocol.frame import (
    HEADER_BYTES,
    MOST_AHEAD_S,
    MOST_BEHIND_S,
    frame_of,
    parse_frame,
)
from dp_forward.service.protocol.manifest import Offer
from dp_forward.service.protocol.policy import Policy
from dp_forward.split.artifacts import UserSide

__all__ = ["Preview"]

Text = str | tuple[str, str]
"""What is asked about: one text, or a pair of them in one release."""
Tokens = Mapping[str, Tensor]

_FRESH_SECONDS: Final = 6 * 3600
"""Servers refuse frames with an old time, so a stored release gets a new header after this long."""
_CLOCK_SECONDS: Final = 60.0
"""A clock that moved by more than this was set, or the machine slept: the server is asked for its time."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server answered, and what it cost.

    ``charge`` is the epsilon that was charged for it now, alone: 0 where the text was paid for before.
    ``resent`` says that no new release was made, ``stored`` that the answer was stored here, and nothing was
    sent. Where a release was sent again, whoever got it before learns that the text is the same.
    ``truncated`` says that the text was longer than the front reads. ``charged`` is the sum in the ledger:
    pure epsilon, and the mu of Gaussian releases; ``spent`` is that sum where it is a valid epsilon at any
    time, in a pure ledger, and else None. ``remaining`` is the lesser of what the cap and, where there is
    one, the budget of this day leave.
    """

    label: str
    probabilities: dict[str, float]
    charge: float
    charged: dict[str, float]
    spent: float | None
    remaining: float
    resent: bool
    stored: bool
    truncated: bool

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Preview:
    """What the two parties see of a text, for its owner only; nothing of it is sent.

    ``hidden`` [rows, width] is what the front computes, ``noisy`` the release as the provider reads it (None
    where the text was never released at this epsilon), ``tokens`` what the front read.
    """

    tokens: Tokens
    hidden: Tensor
    noisy: Tensor | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Question:
    """A text that is paid for: the call that asks about it, and what becomes of the reply."""

    call: Call
    request: bytes
    key: bytes
    entry: Release
    """In the ledger, from before the draw."""
    charge: Charge | None
    truncated: bool


class Session:
    """One user, one server and one ledger (at ``place``), made if there is none. Threads and forks may share
    it. ``budget`` and ``per_day`` are the caps of a new ledger; an old one keeps its own.
    """

    def __init__(
        self,
        user: UserSide,
        policy: Policy,
        transport: Transport,
        *,
        place: Path,
        budget: float | None,
        per_day: float | None,
    ) -> None:
        self._user, self._policy, self._transport = user, policy, transport
        self._manifest: object = None
        self._terms: dict[float, Offer] = {}
        self._clock = _clock()
        self._with_epsilon = functools.cache(policy.with_epsilon)
        self._turn, self._process = threading.Lock(), os.getpid()
        user.front.train(False)
        self._ledger = _open_ledger(place, policy, budget, per_day)
        try:
            self._answers = AnswerCache(place, self._ledger)
        except BaseException:
            self._ledger.close()
            raise

    @property
    def policy(self) -> Policy:
        """What this user allows; it does not change."""
        return self._policy

    def close(self) -> None:
        """Give the ledger and the answers back."""
        self._answers.close()
        self._ledger.close()

    def summary(self) -> Summary:
        """Where the ledger stands."""
        return self._ledger.summary()

    def _agree(self, policy: Policy) -> Offer:
        """Agree on terms with the server, at the front's own epsilon or a smaller one.

        It is asked once, and again where the clock here was set since.
        """
        if abs(_clock() - self._clock) > _CLOCK_SECONDS:
            self._terms, self._manifest = {}, None
        if policy.epsilon not in self._terms:
            found = self._fetch_manifest()
            self._terms[policy.epsilon] = policy.read(found)
            self._manifest = found
        return self._terms[policy.epsilon]

    def offered(self) -> tuple[float, ...]:
        """The epsilons at which the server answers and the front allows it, greatest first."""
        found = self._fetch_manifest()
        epsilons = self.policy.offered(found)
        self._manifest = found
        return epsilons

    def _fetch_manifest(self) -> object:
        """The manifest that was agreed to, or what the server says now."""
        if self._manifest is not None:
            return self._manifest
        reply = self._transport.send(Call("GET", "/v1/manifest"))
        _check_clock(reply.date)
        self._clock = _clock()
        return reply.json()

    def ask(self, text: Text, *, epsilon: float | None = None, resend: bool = False) -> Answer:
        """Ask about a text or a pair."""
        question = self.prepare(text, epsilon=epsilon, resend=resend)
        if isinstance(question, Answer):
            return question
        return self.finish(question, self._transport.send(question.call))

    def prepare(
        self, text: Text, *, epsilon: float | None = None, resend: bool = False, name: str = "text"
    ) -> Question | Answer:
        """Charge a text and draw its release, unless that was done before; nothing of it is sent yet.

        Where this server's answer is stored, that is the answer, unless the release shall be sent again.
        """
        policy = self._policy_at(epsilon)
        tokens, key, truncated = self._read(text, policy, name)
        answer = None if resend else self.recall(key, truncated=truncated)
        if answer is not None:
            return answer
        stored, entry, charge = self._pay(tokens, key, self._agree(policy))
        request, frame = _refresh(stored, int(time.time()))
        return Question(Call("POST", "/v1/answer", body=frame), request, key, entry, charge, truncated)

    def recall(self, key: bytes, *, truncated: bool) -> Answer | None:
        """The stored answer of this server, if there is one."""
        known = self._answers.find(key, self._transport.address)
        if known is None or known[0] not in self.policy.release.labels:
            return None
        return self._answer(known, resent=True, stored=True, truncated=truncated)

    def finish(self, question: Question, reply: Reply) -> Answer:
        """Check and store the server's reply to a question."""
        found = _check_answer(reply.json(), self.policy.release.labels, question.request)
        state, flags = question.entry.state, {"stored": False, "truncated": question.truncated}
        try:
            if state is not State.DELIVERED:
                self._ledger.delivered(question.entry.id)
            self._answers.store(question.key, self._transport.address, *found)
        except LedgerUnavailable:  # its message says that nothing was sent
            raise LedgerUnavailable(
                "The release was sent, and its answer cannot be stored: see that the disk has room and that "
                "the ledger's folder may be written to. It is paid for: asking again costs nothing."
            ) from None
        return self._answer(found, question.charge, resent=state is not State.RESERVED, **flags)

    def preview(self, text: Text, *, epsilon: float | None = None) -> Preview:
        """What the provider could see of a text; draws, charges and sends nothing that depends on it."""
        policy = self._policy_at(epsilon)
        terms = self._agree(policy)
        tokens, key, _ = self._read(text, policy, "text")
        known, noisy = self._ledger.find(key), None
        if known is not None and known.state is not State.RESERVED:
            values = parse_frame(self._ledger.payload(known.id)).values
            noisy = torch.from_numpy(dequantise(values, terms.mechanism, self.policy.release.bits))
        return Preview(tokens, self._hidden(tokens), noisy)

    def _policy_at(self, epsilon: float | None) -> Policy:
        return self.policy if epsilon is None else self._with_epsilon(float(epsilon))

    def _read(self, text: Text, policy: Policy, name: str) -> tuple[Tokens, bytes, bool]:
        """Read a text: its tokens, the ledger's key for them, and whether it was cut."""
        _check_text(text, name)
        fixed, spec, failed = self._user.tokens, self.policy.release, False
        parts = [[part] for part in ((text,) if isinstance(text, str) else text)]
        with self._lock():  # a fast tokenizer must not be used by two threads at once
            try:
                tokens = fixed.encode(*parts)
                # One more than fits is enough to know that it does not.
                just_more = {"truncation": True, "max_length": spec.rows + 1}
                long = fixed.tokenizer(*parts, **just_more)["input_ids"][0]
                alone = [fixed.tokenizer(part, **just_more)["input_ids"][0] for part in parts]
                bare = fixed.tokenizer([""])["input_ids"][0]
            except Exception:  # of any type, and its message may hold the text
                failed = True
        if failed:
            raise InvalidInput(name, "be text that the tokenizer reads", "something else", "Check it.")
        if any(len(part) <= len(bare) for part in alone):
            raise InvalidInput(name, "hold something to read", "nothing", "Leave it out.")
        public = {"front": spec.front, "noise": policy.noise.as_dict(), "bits": spec.bits}
        return tokens, self._answers.key(tokens, public), len(long) > spec.rows

    def _pay(self, tokens: Tokens, key: bytes, terms: Offer) -> tuple[bytes, Release, Charge | None]:
        """Charge, draw, store, in this order; or what was stored before.

        The frame, to be sent as it is; the ledger's entry from before the draw; what was charged now.
        """
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

    @torch.inference_mode()
    def _hidden(self, tokens: Tokens) -> Tensor:
        hidden: Tensor = self._user.front(**tokens)
        if tuple(hidden.shape) != (1, *self.policy.release.shape):
            raise AssertionError("the front gives another shape than the policy says")
        return hidden[0]

    def _frame(self, released: Released) -> bytes:
        spec, now = self.policy.release, int(time.time())
        return frame_of(released, cut=spec.cut, front=spec.front, request=secrets.token_bytes(16), time=now)

    def _answer(
        self, found: tuple[str, dict[str, float]], charge: Charge | None = None, **flags: bool
    ) -> Answer:
        summary = self._ledger.summary()
        paid = 0.0 if charge is None else charge.epsilon(summary.delta)
        return Answer(
            label=found[0],
            probabilities=found[1],
            charge=paid,
            charged=summary.charged,
            spent=summary.spent,
            remaining=summary.usable,
            **flags,
        )

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
        remedy = "Say how much may be spent in all, such as 50. Only pure noise goes by the day alone."
        raise InvalidInput("budget", "be given for a new ledger", "none", remedy)
    else:
        wanted = None if budget is None else Budget(budget, policy.noise.delta or 0.0)
        cap = None if wanted is None else Cap.like(own.charge, wanted)
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


def _check_text(text: object, name: str) -> None:
    parts = text if isinstance(text, tuple) else (text,)
    if len(parts) != (2 if isinstance(text, tuple) else 1):
        raise InvalidInput(name, "be a string or a pair of them", f"{len(parts)} parts", "Give two texts.")
    for part in parts:
        if not isinstance(part, str):
            raise InvalidInput(name, "be a string", type(part).__name__, "Decode it first.")
        if not part.strip():
            raise InvalidInput(name, "hold something to read", "nothing", "Leave it out.")


def _refresh(frame: bytes, now: int) -> tuple[bytes, bytes]:
    """The request id and the bytes to send: the stored ones, or, where their time is hours ago or (by a wrong
    clock) ahead, the same integers under a new id and time. Those are the same release: nothing is drawn, and
    nothing is learnt from it that was not before.
    """
    header = parse_frame(frame).header
    if 0 <= now - header.time <= _FRESH_SECONDS:
        return header.request, frame
    header = replace(header, request=secrets.token_bytes(16), time=now)
    return header.request, header.pack() + frame[HEADER_BYTES:]


def _clock() -> float:
    """Of the wall, as far as it was set and did not just go on."""
    return time.time() - time.monotonic()


def _check_clock(date: str | None) -> None:
    """Refuse a clock by which a server that says this ``Date`` would refuse every frame."""
    try:
        there = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):  # it says none
        return
    here = time.time()
    if not -MOST_BEHIND_S <= here - there <= MOST_AHEAD_S:
        shown = [time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)) for now in (there, here)]
        rule = f"be at most {MOST_AHEAD_S} s ahead of the server's and {MOST_BEHIND_S // 3600} h behind it"
        remedy = "Set it. Nothing was charged or sent."
        raise InvalidInput("clock", f"{rule}: {shown[0]}", shown[1], remedy)


def _check_answer(found: Any, labels: tuple[str, ...], request: bytes) -> tuple[str, dict[str, float]]:
    """The label and the probabilities, if this is an answer to this request at all."""
    match found:
        case {"label": str(label), "probabilities": dict(given), "request": str(echoed)} if (
            label in labels and echoed == request.hex() and given.keys() == set(labels)
        ):
            values = [given[name] for name in labels]
            sound = all(type(value) in (int, float) and 0 <= value <= 1 for value in values)
            if sound and abs(sum(values) - 1) <= 1e-3:
                return label, {name: float(given[name]) for name in labels}
    raise ServerRefused(
        "The server's answer does not fit the request. The release is kept, and is resent free."
    )
