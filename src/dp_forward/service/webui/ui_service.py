"""Operations of the local web UI: state, one answer, what could be read from it, and two texts compared.

They return dictionaries for JSON. Numbers that people read as a promise are rounded so as never to flatter.
"""

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.ledger import State, Summary
from dp_forward.noise import release_batch
from dp_forward.privacy import Deployment, KaryResponse, Notion, PrivUnit
from dp_forward.privacy.rounding import brief, percent_down, percent_up, shown_down, shown_up
from dp_forward.service.client.client import Client
from dp_forward.service.client.question import Preview, Text
from dp_forward.service.server.request_limits import Refused

__all__ = ["UiService"]

_NO_TORCH: Final = "It is computed with torch, which is not installed here: pip install 'dp-forward[train]'."
_KEPT: Final = "The noise keeps the decision in {} of cases. No bar says how sure the model is."
_CANDIDATES: Final = (2, 100, 10_000)
_POINTS: Final = 32  # of the curves
_MOST_CELLS: Final = 1 << 15  # of a picture; more rows are left out
_MOST_ROWS: Final = 20  # of the history
_DRAWS: Final = 1000  # of a comparison, half of each text
_STATES: Final = {
    State.RESERVED: "charged, nothing sent yet",
    State.READY: "new release, no answer yet",
    State.DELIVERED: "new release",
}


class Reconstructor(Protocol):
    """Reads matrices as a provider could; passed in, since the service imports no attack."""

    @property
    def how(self) -> str:
        """What it does, and where it falls short, in plain words."""

    @property
    def prepared(self) -> float | None:
        """How far it is, from 0 to 1; None if it failed."""

    def __call__(self, preview: Preview) -> list[dict[str, Any]]:
        """The ``words`` that are read, and their ``recall``: without noise and, if there is, of a release."""


class UiService:
    """One client and, where rows cross and torch is installed, one reconstructor of its releases, for a page.

    ``pair`` says that pairs of texts are asked about, ``accuracy`` what share of answers to expect right at
    an epsilon (None where that is not known).

    Guarantees:
        One question at a time; a second one is refused and not queued. Only `ask` charges and sends.
    """

    def __init__(
        self,
        client: Client,
        reconstructor: Reconstructor | None,
        *,
        server: str,
        pair: bool = False,
        accuracy: Callable[[float], float | None] = lambda epsilon: None,
    ) -> None:
        self._client, self._reconstructor, self._server = client, reconstructor, server
        self._pair, self._accuracy = pair, accuracy
        self._chooses = isinstance(client.policy.terms().mechanism, KaryResponse)
        self._asking, self._reading = threading.Lock(), threading.Lock()
        self._offer = functools.cache(self._make_offer)
        self._curves = functools.cache(self._make_curves)
        self._free: deque[dict[str, Any]] = deque(maxlen=_MOST_ROWS)  # answers that the ledger does not list

    def state(self) -> dict[str, Any]:
        """Budget, offered epsilons and what they mean; asks the server once."""
        release, reader = self._client.policy.release, self._reconstructor
        how = None if release.cut == "output" else _NO_TORCH if reader is None else reader.how
        return {
            "server": self._server,
            "rows": release.rows,
            "pair": self._pair,
            "epsilons": [self._offer(epsilon) for epsilon in sorted(self._client.offered_epsilons())],
            "curves": self._curves(),
            "budget": _budget(self._client.summary()),
            "history": self._history(),
            "reconstruction": how,
        }

    def ask(self, text: Text, epsilon: float, resend: bool) -> dict[str, Any]:
        """One answer, what it cost, and the integers that were sent for it; see `Client.ask`."""
        if not self._asking.acquire(blocking=False):
            raise Refused("busy", "Another question is on its way. Ask again when it is answered.")
        try:
            offer = self._offer(self._offered(epsilon))
            answer = self._client.ask(text, epsilon=epsilon, resend=resend)
            values = self._client.preview(text, epsilon=epsilon).values
        except BudgetExhausted:
            left = brief(shown_down(self._client.summary().usable))
            raise BudgetExhausted(
                f"The budget is used up: {left} is left, too little for a release of epsilon "
                f"{brief(shown_up(epsilon))}. Nothing was sent or charged. A smaller epsilon may fit, and a "
                "text that was asked before is free."
            ) from None
        finally:
            self._asking.release()
        if answer.charge == 0:
            what = "answered from this disk" if answer.stored else "stored release sent again"
            self._free.append({"time": time.time() * 1e3, "charge": "0", "what": what})
        names = ("label", "reply", "probabilities", "charge", "resent", "stored", "truncated")
        return {
            **{name: getattr(answer, name) for name in names},
            "shown_charge": brief(shown_up(answer.charge)),
            "budget": _budget(self._client.summary()),
            "history": self._history(),
            "picture": None if values is None else _picture(values, chooses=self._chooses),
            **offer,
        }

    def preview(self, text: Text, epsilon: float) -> dict[str, Any]:
        """What could be read from the release; charges and sends nothing."""
        reader = self._reconstructor
        prepared = None if reader is None else reader.prepared
        if reader is None or prepared is None or prepared < 1:
            return {"prepared": prepared}
        with self._reading:
            found = reader(self._client.preview(text, epsilon=self._offered(epsilon)))
        return {"prepared": prepared, "without": found[0], "with": found[1] if len(found) > 1 else None}

    def compare(self, text: Text, other: Text, epsilon: float) -> dict[str, Any]:
        """How often the best test tells which of two texts was released; charges and sends nothing.

        ``exact`` is of the noise itself, ``right`` was counted in releases that were drawn here and dropped,
        ``ceiling`` is proved for any two texts. Only where one row crosses.
        """
        policy = self._client.policy.with_epsilon(self._offered(epsilon))
        if policy.release.cut != "output":
            raise Refused("body", "Texts are compared at the cut `output`. Reload the page.")
        mechanism: Any = policy.terms().mechanism
        with self._reading:
            hidden = [self._client.preview(one, epsilon=epsilon).hidden for one in (text, other)]
            bounded = [policy.noise.bound.apply(one) for one in hidden]
            right = _count_right(mechanism, hidden, bounded, policy.release.bits)
        exact, ceiling = mechanism.success_between(*bounded), mechanism.guess_rate()
        shown = {"shown_exact": percent_up(exact), "shown_ceiling": percent_up(ceiling)}
        return {"exact": exact, "ceiling": ceiling, **shown, "right": int(right), "draws": _DRAWS}

    def _offered(self, epsilon: float) -> float:
        offered = self._client.offered_epsilons()
        if epsilon not in offered:
            rule = f"be one of {', '.join(brief(shown_up(one)) for one in offered)}"
            raise InvalidInput("epsilon", rule, "another", "Reload the page.")
        return epsilon

    def _make_offer(self, epsilon: float) -> dict[str, Any]:
        """What a release at this epsilon promises, and what to expect of its answer."""
        mechanism = self._client.policy.with_epsilon(epsilon).terms().mechanism
        promised, accuracy = Deployment(mechanism).guarantee(), self._accuracy(epsilon)
        kept = mechanism.keep if isinstance(mechanism, KaryResponse) else None
        return {
            "epsilon": epsilon,
            "about": (promised.notion or Notion.DISTANCE).neighbours,
            "context": [promised.in_context(among) for among in _CANDIDATES],
            "promise": promised.promise,
            "kept": "" if kept is None else _KEPT.format(percent_down(kept)),
            "accuracy": "" if accuracy is None else f"Expect {100 * accuracy:.0f} % of answers to be right.",
        }

    def _make_curves(self) -> dict[str, list[Any]]:
        """The best guesses and the accuracy along epsilon, up to what the front allows."""
        noise = self._client.policy.noise
        epsilons = [noise.epsilon * point / _POINTS for point in range(1, _POINTS + 1)]
        made = [replace(noise, epsilon=epsilon).build() for epsilon in epsilons]
        guesses = {f"of_{among}": [one.guess_rate(among) for one in made] for among in _CANDIDATES[:2]}
        return {"epsilon": epsilons, **guesses, "accuracy": list(map(self._accuracy, epsilons))}

    def _history(self) -> list[dict[str, Any]]:
        """The latest charges, and the free answers of this start among them, newest first; no text."""
        delta = self._client.summary().delta
        found = list(self._free)
        for release in self._client.latest(_MOST_ROWS):
            charge, what = brief(shown_up(release.charge.epsilon(delta))), _STATES[release.state]
            found.append({"time": release.time_ns / 1e6, "charge": charge, "what": what})
        return sorted(found, key=lambda row: -float(row["time"]))[:_MOST_ROWS]


def _picture(values: NDArray[Any], *, chooses: bool = False) -> dict[str, Any]:
    """The integers of a release, the first rows of them, and what they are in words: numbers, or a choice."""
    (rows, width), shown = values.shape, values[: max(1, _MOST_CELLS // values.shape[1])]
    words = f"{rows} x {width} integers from {values.min()} to {values.max()}"
    if chooses:
        words = f"a choice among {width} labels, as {width} integers of which one is 1"
    if len(shown) < rows:
        words += f", the first {len(shown)} rows shown"
    return {"values": shown.tolist(), "words": words}


def _count_right(
    mechanism: Any, hidden: list[NDArray[Any]], bounded: list[NDArray[np.float64]], bits: int
) -> float:
    """In how many of `_DRAWS` fresh releases the likelihood ratio names the right text; a tie counts half."""
    points = np.stack([one.ravel() for one in bounded])
    if isinstance(mechanism, KaryResponse):
        points = np.eye(mechanism.labels)[[int(mechanism.decide(one)[0]) for one in hidden]]
    right = 0.0
    for own, matrix in enumerate(hidden):
        made = release_batch(np.repeat(matrix[None], _DRAWS // 2, axis=0), mechanism, bits=bits)
        likelihood: NDArray[Any] = np.stack([one.as_floats().ravel() for one in made]) @ points.T
        if isinstance(mechanism, PrivUnit):  # two levels of density: inside its cap, and outside
            likelihood = 1.0 * (likelihood >= mechanism.threshold * mechanism.sigma * mechanism.bound.norm)
        else:
            likelihood -= np.square(points).sum(axis=1) / 2
        ahead = likelihood[:, own] - likelihood[:, 1 - own]
        right += float((ahead > 0).sum() + (ahead == 0).sum() / 2)
    return right


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
