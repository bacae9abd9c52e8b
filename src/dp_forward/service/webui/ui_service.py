"""Operations of the local web UI: state, one answer, and what could be read from its release.

They return plain dictionaries for JSON. Every number that people read as a promise is rounded so that it
never flatters.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Final, Protocol

from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.ledger import Summary
from dp_forward.privacy import Deployment
from dp_forward.privacy.rounding import brief, percent_up, shown_down, shown_up
from dp_forward.service.client.client import Client
from dp_forward.service.client.question import Preview
from dp_forward.service.server.request_limits import Refused

__all__ = ["UiService"]

_NO_TORCH: Final = "It is computed with torch, which is not installed here: pip install 'dp-forward[train]'."


class Reconstructor(Protocol):
    """Reads matrices as a provider could; passed in, since the service imports no attack."""

    @property
    def how(self) -> str:
        """What it does, and where it falls short, in plain words."""

    @property
    def pooled(self) -> bool:
        """Whether it names words near one vector, and not a token for every row."""

    @property
    def prepared(self) -> float | None:
        """How far it is, from 0 to 1; None if it failed."""

    def __call__(self, preview: Preview) -> list[dict[str, Any]]:
        """What is read without noise and, if there is a release, from it.

        Each holds the ``words``, right or wrong, and the share of the text that was found (``recall``).
        """


class UiService:
    """One client and, where torch is installed, one reconstructor of its releases, for one page.

    Guarantees:
        One question at a time; a second one is refused and not queued. Only `ask` charges.
    """

    def __init__(self, client: Client, reconstructor: Reconstructor | None, *, server: str) -> None:
        self._client, self._reconstructor, self._server = client, reconstructor, server
        self._asking, self._reading = threading.Lock(), threading.Lock()
        self._offer = functools.cache(self._make_offer)

    def state(self) -> dict[str, Any]:
        """Budget, offered epsilons and reconstruction; asks the server once."""
        policy, reader = self._client.policy, self._reconstructor
        return {
            "server": self._server,
            "rows": policy.release.rows,
            "cut": policy.release.cut,
            "epsilons": [self._offer(epsilon) for epsilon in self._client.offered_epsilons()],
            "budget": _budget(self._client.summary()),
            "reconstruction": {
                "how": _NO_TORCH if reader is None else reader.how,
                "pooled": reader is not None and reader.pooled,
                "prepared": None if reader is None else reader.prepared,
            },
        }

    def ask(self, text: str, epsilon: float, resend: bool) -> dict[str, Any]:
        """One answer, and what it cost; see `Client.ask`."""
        if not self._asking.acquire(blocking=False):
            raise Refused("busy", "Another question is on its way. Ask again when it is answered.")
        try:
            offer = self._offer(self._offered(epsilon))
            answer = self._client.ask(text, epsilon=epsilon, resend=resend)
        except BudgetExhausted:
            left = brief(shown_down(self._client.summary().usable))
            raise BudgetExhausted(
                f"The budget is used up: {left} is left, too little for a release of epsilon "
                f"{brief(shown_up(epsilon))}. Nothing was sent or charged. A smaller epsilon may fit, and a "
                "text that was asked before is free."
            ) from None
        finally:
            self._asking.release()
        return {
            "label": answer.label,
            "probabilities": answer.probabilities,
            "charge": answer.charge,
            "shown_charge": brief(shown_up(answer.charge)),
            "resent": answer.resent,
            "stored": answer.stored,
            "truncated": answer.truncated,
            "budget": _budget(self._client.summary()),
            **offer,
        }

    def preview(self, text: str, epsilon: float) -> dict[str, Any]:
        """What could be read from the release; charges and sends nothing."""
        reader = self._reconstructor
        prepared = None if reader is None else reader.prepared
        if reader is None or prepared is None or prepared < 1:
            return {"prepared": prepared}
        with self._reading:
            found = reader(self._client.preview(text, epsilon=self._offered(epsilon)))
        return {"prepared": prepared, "without": found[0], "with": found[1] if len(found) > 1 else None}

    def _offered(self, epsilon: float) -> float:
        offered = self._client.offered_epsilons()
        if epsilon not in offered:
            rule = f"be one of {', '.join(brief(shown_up(one)) for one in offered)}"
            raise InvalidInput("epsilon", rule, "another", "Reload the page.")
        return epsilon

    def _make_offer(self, epsilon: float) -> dict[str, Any]:
        """What a release at this epsilon promises."""
        promised = Deployment(self._client.policy.with_epsilon(epsilon).terms().mechanism).guarantee()
        tokens = None if promised.unit is None else promised.unit.tokens
        pair = "texts"
        if tokens is not None:
            pair += f" that differ in {'one token' if tokens == 1 else f'{tokens} tokens in a row'}"
        return {
            "epsilon": epsilon,
            "guess_rate": promised.guess_rate,
            "guess": f"Whoever sees this release tells two candidate {pair} apart at most "
            f"{percent_up(promised.guess_rate)} of the time; a coin has 50 %.",
            "promise": promised.promise,
        }


def _budget(summary: Summary) -> dict[str, Any]:
    today, charged, shares = summary.remaining_today, summary.charged, summary.shares
    full = {"remaining": summary.remaining, "cap": summary.cap}
    if shares is None:  # by the day only
        full, charged = {"remaining": today, "cap": summary.per_day}, summary.charged_today
        shares = {"epsilon": summary.per_day or 1.0, "mu": 0.0}
    used = (charged["epsilon"], shares["epsilon"]), (charged["mu"] ** 2, shares["mu"] ** 2)
    return {
        "charged": summary.charged,
        "spent": summary.spent,
        "promise": summary.promise,
        **full,
        "share": min(1 - of_it / share for of_it, share in used if share),
        "by_day": summary.cap is None,
        "shown_today": None if today is None else brief(shown_down(today)),
        "shown": {name: brief(shown_down(value or 0.0)) for name, value in full.items()},
    }
