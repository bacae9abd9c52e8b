"""The manifest of a server: what it answers to, so that a client can refuse before it touches a text.

It holds the *choice* of noise, never a sigma, a step or a proved epsilon. Both parties calibrate it anew, so
a server cannot make a client believe in a number.

Guarantees:
    A manifest that exists asks for noise that can be released in its ``bits`` on ``matrix_rows x width``, at
    a cut where its unit makes sense. ``epsilon``, ``delta`` and ``step`` are those of such a release.
    Whatever else it answers to (``epsilons``) has more noise than that, and is otherwise the same.
Edges:
    What comes from the network goes through `from_dict`: every defect is a `WireError` that repeats nothing
    of it. Sound is not agreed: whether the wanted noise is *enough*, the client's policy says.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

import numpy as np

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.noise import release
from dp_forward.privacy import KaryResponse, Mechanism, NoiseSpec
from dp_forward.privacy.charge import Charge
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.protocol import frame
from dp_forward.service.protocol.frame import MECHANISMS, MOST_ENTRIES, VERSION, Header, WireError
from dp_forward.split.artifacts import AskingSide, ProviderSide
from dp_forward.split.cut import parse_cut

__all__ = ["Manifest"]

RELEASE_FIELDS: Final = ("rows", "matrix_rows", "width", "bits", "cut", "front", "labels")
"""What a manifest says of a release besides its noise; both parties must agree on all of it."""
_KEYS: Final = {"version", "noise", *RELEASE_FIELDS, "epsilons"}
_NOISE_TYPES: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("mechanism", "unit", "how"), (str,)),
    **dict.fromkeys(("epsilon", "delta", "norm"), (float, int)),
    **dict.fromkeys(("rows", "columns"), (int, type(None))),
    "threshold_share": (float, int, type(None)),
}
_CODES: Final = {"bits": "dtype", "rows": "shape", "width": "shape", "epsilon": "budget", "delta": "budget"}
_same: Final = partial(math.isclose, rel_tol=1e-9, abs_tol=0.0)
"""Two machines may disagree in the last digits of one calibration; another budget differs by far more."""
_MOST_ROWS: Final = 1 << 16
_MOST_LABELS: Final = 1 << 16
_LONGEST_LABEL: Final = 200
_MOST_OFFERS: Final = 16


@dataclass(frozen=True)
class Offer:
    """Noise that a server answers to, or a user draws; its numbers are calibrated here."""

    noise: NoiseSpec
    mechanism: Mechanism = field(repr=False)
    epsilon: float
    delta: float
    step: float

    @property
    def charge(self) -> Charge:
        """What one release costs."""
        return self.mechanism.charge()


@dataclass(frozen=True, kw_only=True, repr=False)
class Manifest:
    """What one server answers to; see the module.

    ``release`` is what the back was trained for, with the digest of the one front that it belongs to;
    ``epsilons`` are smaller ones that it answers too, less accurately.
    """

    release: ReleaseSpec
    epsilons: tuple[float, ...] = ()
    epsilon: float = field(init=False, compare=False)
    """What one release is proved to be, by this machine's own calibration."""
    delta: float = field(init=False, compare=False)
    step: float = field(init=False, compare=False)
    offers: tuple[Offer, ...] = field(init=False, compare=False)
    """All that is answered, the least noise first."""

    def __post_init__(self) -> None:
        spec = self.release
        if spec.rows > _MOST_ROWS or spec.matrix_rows * spec.width > MOST_ENTRIES:
            rule = f"have at most {_MOST_ROWS} rows and {MOST_ENTRIES} entries"
            raise InvalidInput("rows", rule, f"{spec.matrix_rows} x {spec.width}", "Take shorter texts.")
        front, labels = spec.front, spec.labels
        if not isinstance(front, str) or frame.HEX_DIGEST.fullmatch(front) is None:
            rule = "be the SHA-256 of a front, 64 hex digits in lower case"
            raise InvalidInput("front", rule, "something else", "It is digest_front in split.json.")
        if not isinstance(labels, tuple) or not 1 <= len(labels) <= _MOST_LABELS:
            rule = f"number 1 to {_MOST_LABELS}"
            raise InvalidInput("labels", rule, "others", "Name what the back answers.")
        # They are shown to a user: no line breaks, no terminal codes, no books.
        showable = (
            isinstance(label, str) and 1 <= len(label) <= _LONGEST_LABEL and label.isprintable()
            for label in labels
        )
        if not all(showable) or len(set(labels)) < len(labels):
            rule = f"be different printable words of at most {_LONGEST_LABEL} letters"
            raise InvalidInput("labels", rule, "others", "Rename them.")
        self._calibrate()

    def _calibrate(self) -> None:
        """The numbers of each release, read off one of nothing; what is refused there is refused here."""
        noise, cut = self.release.noise, self.release.cut
        place = parse_cut(cut if isinstance(cut, str) and len(cut) < 64 else "")
        if type(noise) is not NoiseSpec or noise.mechanism not in MECHANISMS:
            wanted = getattr(noise, "mechanism", type(noise).__name__)
            rule = f"be one that can be released: {', '.join(MECHANISMS)}"
            raise InvalidInput("mechanism", rule, wanted, "Train with privunit.")
        # Further in, one token moves every row, and a bound by row would promise what it does not keep.
        if noise.protects.tokens is not None and not place.row_local:
            rule = "be text at a cut where rows mix"
            raise InvalidInput("unit", rule, str(noise.protects), "Cut at embeddings or encoder.1.qkv.")
        own, more = noise.epsilon, self.epsilons
        known = isinstance(more, tuple) and len(more) < _MOST_OFFERS
        # Written so that a NaN is refused.
        if not known or not all(a > b > 0 for a, b in zip((own, *more), more, strict=False)):
            rule = f"fall from {own}, fewer than {_MOST_OFFERS}"
            raise InvalidInput("epsilons", rule, "others", "Smaller ones have more noise, never less.")
        choices = (noise, *(replace(noise, epsilon=epsilon) for epsilon in more))
        object.__setattr__(self, "offers", tuple(map(self._offer, choices)))
        for name in ("epsilon", "delta", "step"):
            object.__setattr__(self, name, getattr(self.offers[0], name))

    def _offer(self, noise: NoiseSpec) -> Offer:
        rows = self.release.matrix_rows if noise.bound.over == "row" else 1
        mechanism = noise.build()
        width = mechanism.labels if isinstance(mechanism, KaryResponse) else 1
        blank = release(np.zeros((rows, width)), mechanism, bits=self.release.bits)
        epsilon, delta = blank.guarantee.epsilon, blank.guarantee.delta
        if not (math.isfinite(epsilon) and frame.LEAST_STEP <= blank.step <= frame.LARGEST_STEP):
            raise InvalidInput("noise", "fit a frame", "a step or epsilon beyond it", "Use a norm near 1.")
        return Offer(noise, mechanism, float(epsilon), float(delta), float(blank.step))

    def header(self, *, request: bytes, time: int = 0) -> Header:
        """The header of a release that this manifest asks for, at its own epsilon."""
        return Header(
            bits=self.release.bits,
            mechanism=self.release.required_noise().mechanism,
            rows=self.release.matrix_rows,
            width=self.release.width,
            step=self.step,
            epsilon=self.epsilon,
            delta=self.delta,
            cut=str(self.release.cut),
            front=bytes.fromhex(str(self.release.front)),
            request=request,
            time=time,
        )

    def offer_for(self, header: Header, *, refusal: str) -> Offer:
        """The noise that a header claims; `WireError` where the header is not what this manifest asks for.

        Its message begins with ``refusal`` and names the first thing in which they differ.

        Guarantees:
            The manifest's side of epsilon, delta and step is calibrated from its choice of noise, never read.
        Edges:
            The rule for the budget is equality with one of the manifest's offers, not "at most": integers of
            another step mean something else. Numbers are equal within 1e-9. That they agree proves no noise.
        """

        def check(name: str, equal: bool, here: object, there: object) -> None:
            if not equal:
                told = f"{refusal}: {name}: the frame has {here}, the manifest asks for {there}"
                raise WireError(_CODES.get(name, name), told)

        asked = self.header(request=header.request, time=header.time)
        for name in ("bits", "rows", "width", "mechanism", "cut"):
            here, there = getattr(header, name), getattr(asked, name)
            check(name, here == there, here, there)
        check("front", header.front == asked.front, header.front.hex()[:12], asked.front.hex()[:12])
        close = [offer for offer in self.offers if _same(header.epsilon, offer.epsilon)]
        check("epsilon", bool(close), header.epsilon, self.epsilon)
        offer = close[0]
        check("delta", _same(header.delta, offer.delta), header.delta, offer.delta)
        check("step", _same(header.step, offer.step), header.step, offer.step)
        return offer

    def mechanism(self) -> Mechanism:
        """The noise that the back was trained for."""
        return self.offers[0].mechanism

    @property
    def frame_bytes(self) -> int:
        """How long every frame for this server is."""
        return frame.HEADER_BYTES + self.release.payload_bytes

    @classmethod
    def of(
        cls,
        side: ProviderSide | AskingSide,
        front_digest: str,
        *,
        bits: int | None = None,
        epsilons: Sequence[float] | None = None,
    ) -> Self:
        """What a party's folder asks for; ``bits`` is 8 where the noise leaves room for it, else 16.

        ``epsilons`` are by default a half and a quarter of its own, where such noise can be released. An
        undefended model is refused.
        """
        noise = side.spec.required_noise()
        spec = replace(side.spec, front=front_digest, bits=bits or 16)
        found = cls(release=spec)
        if bits is None:
            # With 16 it was sound, so where 8 are refused, they leave too little room.
            with contextlib.suppress(InvalidInput):
                found = cls(release=replace(spec, bits=8))
        if epsilons is not None:
            return replace(found, epsilons=tuple(map(float, epsilons)))
        more = []
        for epsilon in (noise.epsilon * 0.5, noise.epsilon * 0.25):
            with contextlib.suppress(DpForwardError):
                found._offer(replace(noise, epsilon=epsilon))
                more.append(epsilon)
        return replace(found, epsilons=tuple(more))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": VERSION,
            "noise": asdict(self.release.required_noise()),
            **{name: getattr(self.release, name) for name in RELEASE_FIELDS},
            "labels": list(self.release.labels),
            "epsilons": list(self.epsilons),
        }

    @classmethod
    def from_dict(cls, settings: object) -> Self:
        """From what a server sent, as JSON reads it; anything but a sound manifest is a `WireError`."""
        if not isinstance(settings, Mapping) or set(settings) != _KEYS:
            raise WireError("manifest", f"A manifest has the keys {', '.join(sorted(_KEYS))} and no others")
        if type(settings["version"]) is not int or settings["version"] != VERSION:
            raise WireError("version", f"Version {VERSION} of the protocol is spoken here, not the server's")
        noise, labels, epsilons = settings["noise"], settings["labels"], settings["epsilons"]
        if not isinstance(noise, Mapping) or set(noise) != set(_NOISE_TYPES):
            raise WireError("manifest", "The noise has the keys of a choice of noise, all of them")
        listed = isinstance(labels, list) and isinstance(epsilons, list) and len(epsilons) < _MOST_OFFERS
        numbers = listed and all(type(n) in (int, float) and abs(n) <= MOST_ENTRIES for n in epsilons)
        scalars = all(  # JSON's scalars, each of its own kind and of a sane size
            type(value) in _NOISE_TYPES[name]
            and not (isinstance(value, str) and len(value) > 64)
            and not (isinstance(value, int) and abs(value) > MOST_ENTRIES)
            for name, value in noise.items()
        )
        if not scalars or not numbers:
            raise WireError("manifest", "The manifest holds a value of the wrong type")
        try:
            plain = {name: settings[name] for name in ("rows", "width", "bits", "cut", "front")}
            spec = ReleaseSpec(noise=NoiseSpec.from_dict(noise), labels=tuple(labels), **plain)
            if type(settings["matrix_rows"]) is not int or settings["matrix_rows"] != spec.matrix_rows:
                rule = f"be {spec.matrix_rows} at this cut with {spec.rows} tokens"
                raise InvalidInput("matrix_rows", rule, "others", "One row crosses at output only.")
            return cls(release=spec, epsilons=tuple(map(float, epsilons)))
        except DpForwardError as error:
            name = getattr(error, "name", "noise")
            raise WireError("manifest", f"The manifest is not sound: see its {name}") from None
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            raise WireError("manifest", "The manifest holds a value that makes no sense") from None

    def __repr__(self) -> str:
        spec = self.release
        shape = f"{spec.matrix_rows} x {spec.width} int{spec.bits} at {spec.cut}"
        return f"Manifest({shape}, front {str(spec.front)[:12]}...) -> {self.mechanism().promise()}"
