"""End-to-end audit of a service: everything that a client sends, compared with what it claims.

A proxy (`recording_proxy`) keeps all bytes that a client sends for two candidate texts, each asked again and
again under a new ledger, so that every question makes a fresh release. Then

* *nothing but a frame*: all frames have one length, all heads of requests are the same bytes, and so are all
  headers of frames but for the id and the time. Ids are fair coins: no bit of them leans towards a text;
* *the frames*: their integers are audited as `audit_released` audits releases;
* *paid once*: where answers are lost on the way, the client sends the very same integers again, and has
  charged its ledger once;
* *no length*: a front gives one shape for short and long texts, and rows of padding are zero.

Guarantees:
    Nothing of the service is trusted but the front's hidden matrices, from which the expected signal follows.
"""

import itertools
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dp_forward.audit.claims import ResponseClaim, bounded_vectors, claim_of
from dp_forward.audit.findings import Finding, z_of
from dp_forward.audit.recording_proxy import RecordedClient, Sent
from dp_forward.audit.released_bytes import REPORTED, ReleasedAudit, audit_matrices
from dp_forward.errors import refuse_if
from dp_forward.noise import dequantise
from dp_forward.privacy import Mechanism
from dp_forward.progress import Count
from dp_forward.service.protocol.frame import HEADER_BYTES
from dp_forward.split.artifacts import UserSide

__all__ = ["audit_service", "far_apart", "hidden_matrix"]

CANDIDATES: Final = (
    "a",
    "a film",
    "loud, lazy and far too long",
    "a quiet, generous film that earns its tears",
    "the plot with the cold scene and the tired actor",
    "my account number is 4471 and the transfer never arrived",
    "the cast is wonderful and the story never lets go, and by the end nobody in the room wanted to leave, "
    "which is more than can be said of anything else that was shown this year, here or elsewhere",
)
"""Ours, and public; of different lengths on purpose."""

# Where the id and the time lie in a frame (docs/wire-format.md).
_REQUEST: Final = slice(96, 112)
_TIME: Final = slice(112, 120)
_FEWEST: Final = 16

Matrix = NDArray[Any]


def hidden_matrix(user: UserSide, text: str) -> Matrix:
    """The hidden matrix of one ``text`` at the cut, without bound and noise."""
    found: Matrix = user.hidden(user.tokens.encode_arrays([text])[0])[0]
    return found


def far_apart(user: UserSide) -> tuple[str, str]:
    """The two of `CANDIDATES` whose bounded matrices lie farthest apart: the pair that is hardest to hide.

    For K-ary response two with different decisions, where there are any.
    """
    claim = claim_of(user.spec.mechanism())
    inside = {text: bounded_vectors(hidden_matrix(user, text), claim.bound) for text in CANDIDATES}

    def distance(pair: tuple[str, str]) -> tuple[bool, float]:
        first, second = (inside[text] for text in pair)
        unlike = isinstance(claim, ResponseClaim) and np.argmax(first) != np.argmax(second)
        return bool(unlike), float(np.linalg.norm(first - second))

    return max(itertools.combinations(inside, 2), key=distance)


def audit_service(
    user: UserSide,
    wire: RecordedClient,
    *,
    texts: tuple[str, str] | None = None,
    draws: int = 40,
    seconds: float = 12.0,
    level: float = REPORTED,
    progress: Count | None = None,
) -> tuple[ReleasedAudit | None, list[Finding]]:
    """Ask both texts up to ``draws`` times each: the audit of the frames, and what else was found.

    ``wire`` is a client whose bytes are recorded; ``texts`` are two, by default `far_apart`. The first result
    is None where the frames do not hold the matrix that they claim.

    Edges:
        Ends early after ``seconds``, with at least 16 questions about each text. ``progress`` is called with
        the questions so far, of twice ``draws``.
    """
    refuse_if(draws < _FEWEST, "draws", f"be {_FEWEST} or more", draws, "Use 40.")
    started, clock = time.monotonic(), time.time()
    first, second = far_apart(user) if texts is None else texts
    pair = (hidden_matrix(user, first), hidden_matrix(user, second))
    sent: tuple[list[Sent], list[Sent]] = ([], [])
    for number in range(draws):
        if number >= _FEWEST and time.monotonic() - started > seconds:
            break
        # Turn by turn: whatever drifts with time drifts for both.
        for text, some in zip((first, second), sent, strict=True):
            some.append(wire.fresh(text))
            if progress is not None:
                progress(len(sent[0]) + len(sent[1]))
    plain = _plain(sent, (clock, time.time()))
    lost, charged = wire.again(first)
    drawn = float(len({one.body[HEADER_BYTES:] for one in lost}))
    audited, fitting = _audited(user.spec.mechanism(), sent, pair, level)
    return audited, [
        fitting,
        *plain,
        Finding("releases of a text whose answer was lost", 1.0, drawn),
        Finding("charges of a text whose answer was lost", drawn, float(charged)),
        *audit_fronts(user),
    ]


def _audited(
    mechanism: Mechanism, sent: tuple[list[Sent], list[Sent]], pair: tuple[Matrix, Matrix], level: float
) -> tuple[ReleasedAudit | None, Finding]:
    """The audit of the frames that have the size of the hidden matrix; None where too few do."""
    payloads = [[one.body[HEADER_BYTES:] for one in some] for some in sent]
    audit, fitting = None, 0
    for bits in (8, 16):
        whole = [[one for one in some if 8 * len(one) == bits * pair[0].size] for some in payloads]
        if min(map(len, whole)) < _FEWEST:
            continue
        kind, fitting = np.dtype(f"<i{bits // 8}"), sum(map(len, whole))
        first, second = (
            dequantise(np.frombuffer(b"".join(some), kind).reshape(-1, *pair[0].shape), mechanism, bits)
            for some in whole
        )
        audit = audit_matrices(mechanism, first, second, pair=pair, bits=bits, level=level)
    return audit, Finding("frames of the claimed size", float(sum(map(len, payloads))), float(fitting))


def _plain(sent: tuple[list[Sent], list[Sent]], clock: tuple[float, float]) -> list[Finding]:
    all_sent = sent[0] + sent[1]
    ids = [one.body[_REQUEST] for one in all_sent]
    times = [int.from_bytes(one.body[_TIME], "little") for one in all_sent]
    early, late = clock[0] - 2, clock[1] + 2  # seconds of slack
    headers = [bytearray(one.body[:HEADER_BYTES]) for one in all_sent]
    for header in headers:
        header[_REQUEST], header[_TIME] = bytes(16), bytes(8)
    return [
        Finding("lengths of a frame", 1.0, float(len({len(one.body) for one in all_sent}))),
        Finding("heads of a request", 1.0, float(len({one.head for one in all_sent}))),
        Finding("headers of a frame", 1.0, float(len(set(map(bytes, headers))))),
        Finding("ids that were used twice", 0.0, float(len(ids) - len(set(ids)))),
        Finding("times that are not the clock's", 0.0, float(sum(not early <= t <= late for t in times))),
        _fair_ids(*([one.body[_REQUEST] for one in some] for some in sent)),
    ]


def _fair_ids(first: list[bytes], second: list[bytes]) -> Finding:
    r"""The bit of the ids that leans most towards one text.

    For fair bits, ones among a of the first and zeros among b of the second add up to Binomial(a + b, 1/2),
    exactly; so do ones among all of them. Two tails and twice 128 bits are paid for.
    """
    ones, others = (
        np.unpackbits(np.frombuffer(b"".join(some), np.uint8).reshape(len(some), -1), axis=1).sum(0, int)
        for some in (first, second)
    )
    trials = len(first) + len(second)
    leanings = (ones + len(second) - others, ones + others)
    furthest = int(max(np.abs(2 * counts - trials).max() for counts in leanings))
    chance = 4 * len(ones) * float(binom.sf((trials + furthest) // 2 - 1, trials, 0.5))
    return Finding("the bit of the ids that leans most", 0.5, (trials + furthest) / 2 / trials, z_of(chance))


def audit_fronts(user: UserSide) -> list[Finding]:
    """Texts of all lengths give one shape, and rows of padding are zero."""
    shapes, left = set(), 0
    for text in CANDIDATES:
        hidden = hidden_matrix(user, text)
        shapes.add(hidden.shape)
        mask = user.tokens.encode([text])["attention_mask"][0].numpy()
        if len(mask) == len(hidden):  # at `output` one row crosses, and none is padding
            left += int(np.count_nonzero(hidden[mask == 0]))
    return [
        Finding("shapes that cross", 1.0, float(len(shapes))),
        Finding("entries that are not zero in rows of padding", 0.0, float(left)),
    ]
