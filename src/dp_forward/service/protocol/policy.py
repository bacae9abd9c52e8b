"""What a user allows: the noise, the shape and the front, taken from the user's own folder.

A server says what it wants in its manifest. Nothing of that is taken over: it is held against the policy,
field by field, before a text is charged. A server that does not agree is refused.

A user may want more noise than the front was trained with (`Policy.with_epsilon`); a server answers that if
its manifest lists it. Everything else that differs is refused, also where it might be as private (another
threshold, another bound): whether it is, is not for the server to say.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import Self

from dp_forward.errors import DpForwardError, refuse_if
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.protocol.manifest import RELEASE_FIELDS, Manifest, Offer
from dp_forward.split.artifacts import AskingSide


class ProtocolMismatch(DpForwardError):
    """A server and a user who do not speak of the same release."""

    exit_code = 4


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What one release may look like; it belongs to the user.

    ``release`` is what the user's own folder states, with the digest of the user's front.

    Guarantees:
        `read` returns the user's own terms, calibrated from the user's choice, and no value of a manifest.
    """

    release: ReleaseSpec

    def __post_init__(self) -> None:
        remedy = "Release records with it (dpf release); ask with the front that was learnt from them."
        refuse_if(self.release.folded, "front", "be one that asks", "one that releases records", remedy)

    @classmethod
    def of(cls, user: AskingSide, *, bits: int | None = None) -> Self:
        """The policy that a user's folder states; what cannot be released is refused here.

        ``bits`` is by default 8 where the noise fits into them, else 16.
        """
        return cls(release=Manifest.of(user, user.digest, bits=bits, epsilons=()).release)

    @property
    def noise(self) -> NoiseSpec:
        """The user's own choice of noise."""
        return self.release.required_noise()

    @property
    def epsilon(self) -> float:
        """The largest epsilon that one release may have."""
        return self.noise.epsilon

    def with_epsilon(self, epsilon: float) -> Self:
        """The same with more noise; a front never allows less than it says."""
        allowed, rule = 0 < epsilon <= self.epsilon, f"be above 0 and at most the front's {self.epsilon}"
        refuse_if(not allowed, "epsilon", rule, epsilon, "Less is more private.")
        if epsilon == self.epsilon:
            return self  # also where one is 8 and the other 8.0, which a ledger's keys tell apart
        noise = replace(self.noise, epsilon=float(epsilon))
        made = replace(self, release=replace(self.release, noise=noise))
        made.terms()  # refuses what cannot be drawn, before there is a text
        return made

    def offered(self, found: object) -> tuple[float, ...]:
        """The epsilons that a server's manifest answers and this policy allows, greatest first."""
        listed = (offer.noise.epsilon for offer in self._manifest(found).offers)
        return tuple(epsilon for epsilon in listed if epsilon <= self.epsilon)

    def terms(self) -> Offer:
        """The user's own terms."""
        return Manifest(release=self.release).offers[0]

    def _manifest(self, found: object) -> Manifest:
        """What a server sent as JSON, if it is a manifest of this very release; its noise is not compared."""
        if isinstance(found, dict):
            # Shapes first: a sound manifest is calibrated on its shape, and that may be a huge one.
            for name in RELEASE_FIELDS:
                mine, given = getattr(self.release, name), found.get(name)
                value = tuple(given) if isinstance(given, list) else given
                if type(value) is not type(mine) or value != mine:
                    raise _refused(name, mine, value)
            with contextlib.suppress(DpForwardError):
                return Manifest.from_dict(found)
        raise _mismatch("The server's manifest is not one of this version of dp-forward")

    def read(self, found: object) -> Offer:
        """The terms of a release for the server that sent this manifest as JSON, or `ProtocolMismatch`."""
        manifest = self._manifest(found)
        if any(offer.noise == self.noise for offer in manifest.offers):
            return self.terms()
        wanted = manifest.offers[0].noise
        for name in ("mechanism", "unit", "norm", "how", "threshold_share", "rows", "columns"):
            if getattr(wanted, name) != getattr(self.noise, name):
                raise _refused(f"noise: {name}", getattr(self.noise, name), getattr(wanted, name))
        offered = [offer.noise.epsilon for offer in manifest.offers]
        if min(offered) < self.noise.epsilon < max(offered):
            ours, theirs = shown(self.noise.epsilon), ", ".join(map(shown, offered))
            raise _mismatch(f"The server answers epsilon {theirs}, and not {ours}")
        budgets = {name: (getattr(self.noise, name), getattr(wanted, name)) for name in ("epsilon", "delta")}
        for name, (mine, theirs) in budgets.items():
            if not theirs <= mine:  # also a NaN
                told = f"The server wants less noise: {name} {shown(theirs)} where the front allows {mine}"
                raise _mismatch(told)
        name, (mine, theirs) = next((n, pair) for n, pair in budgets.items() if pair[0] != pair[1])
        raise ProtocolMismatch(
            f"The server wants more noise: {name} {shown(theirs)} where the front says {mine}. "
            "A smaller epsilon can be asked for, if its answers are still of use."
        )


def _mismatch(told: str, more: str = "") -> ProtocolMismatch:
    return ProtocolMismatch(f"{told}. Nothing was drawn, charged or sent{more}.")


def _refused(name: str, mine: object, theirs: object) -> ProtocolMismatch:
    told = f"The server wants another release: {name} {shown(theirs)} where the front has {shown(mine)}"
    return _mismatch(told, "; check that the server belongs to this front")


def shown(value: object) -> str:
    """A value from outside on one short printable line: it may hold anything."""
    if isinstance(value, tuple | list):
        text = ", ".join(shown(item) for item in value[:8]) + (", ..." if len(value) > 8 else "")
    else:
        text = str(value)
    text = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text[:200])
    return text if len(text) <= 60 else text[:60] + "..."
