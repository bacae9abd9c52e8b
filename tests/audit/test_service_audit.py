"""The audit of a real service, from the client to the wire."""

from collections.abc import Iterator

import numpy as np
import pytest

from audit.mutants import World, world
from dp_forward.audit.claims import bounded_vectors
from dp_forward.audit.recording_proxy import RecordingProxy
from dp_forward.audit.service_audit import (
    CANDIDATES,
    Sent,
    _fair_ids,
    audit_fronts,
    audit_service,
    far_apart,
    hidden_matrix,
)
from dp_forward.errors import InvalidInput
from dp_forward.service.protocol.frame import HEADER_BYTES


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.mark.slow
def test_an_honest_service_is_not_refuted(served: World) -> None:
    steps: list[int] = []
    frames, findings = audit_service(served.user, served.wire, draws=16, progress=steps.append)
    assert not [one for one in findings if one.refuted]
    assert frames is not None
    assert not frames.refuted, frames.refuted_by
    assert frames.draws == 16
    assert steps[-1] == 32
    assert not any(text in str((frames, findings)) for text in CANDIDATES if len(text) > 6)


@pytest.mark.slow
def test_a_frame_that_says_more_is_seen(served: World) -> None:
    """One byte of one header, one byte too many, another head: each is a finding of its own."""

    class Tells:
        def __init__(self, change) -> None:
            self.change = change

        def fresh(self, text: str) -> Sent:
            return self.change(kept[text], text)

        def again(self, text: str):
            return lost

    first, second = far_apart(served.user)
    kept = {text: served.wire.fresh(text) for text in (first, second)}
    lost = served.wire.again(first)
    spot = HEADER_BYTES - 1

    def in_header(sent: Sent, text: str) -> Sent:
        mark = bytes([text == first])
        return Sent(sent.head, sent.body[:spot] + mark + sent.body[spot + 1 :])

    def longer(sent: Sent, text: str) -> Sent:
        return Sent(sent.head, sent.body + b"\0" * (text == first))

    def in_head(sent: Sent, text: str) -> Sent:
        return Sent(sent.head + b"\r\nx-length: %d" % len(text), sent.body)

    for change, what in (
        (in_header, "headers of a frame"),
        (longer, "lengths of a frame"),
        (in_head, "heads of a request"),
        (lambda sent, _: sent, "ids that were used twice"),
    ):
        _, findings = audit_service(served.user, Tells(change), draws=16)
        assert what in [one.what for one in findings if one.refuted]


@pytest.mark.slow
def test_lost_answers_are_really_lost_and_the_same_bytes_come_again(served: World) -> None:
    sent, charged = served.wire.again(CANDIDATES[2])
    assert len(sent) == 6, "asked four times, and two answers were lost"
    assert len({one.body[HEADER_BYTES:] for one in sent}) == 1
    assert charged == 1
    fresh = [served.wire.fresh(CANDIDATES[2]).body for _ in range(2)]
    assert fresh[0] != fresh[1], "the control: another ledger draws anew"


def _posted(body: bytes, size: int) -> bytearray:
    return bytearray(b"POST /v1/answer HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size + body)


def test_a_request_that_was_cut_short_and_sent_again_is_one_release() -> None:
    """A server may close an idle connection just as the next question is on its way, on a busy machine."""
    frame = bytes(range(200))
    proxy = RecordingProxy("http://127.0.0.1:1")
    try:
        proxy._recorded = [_posted(cut, 200) for cut in (b"", frame[:150], frame, frame)]
        assert [one.body for one in proxy.take()] == [frame, frame]
        proxy._recorded = [_posted(b"x" + frame[1:150], 200), _posted(frame, 200)]
        assert len(proxy.take()) == 2, "the control: the beginning of another release"
    finally:
        proxy.close()


def test_far_apart_texts_are_the_farthest(served: World) -> None:
    bound = served.user.spec.noise.bound
    first, second = far_apart(served.user)
    inside = {text: bounded_vectors(hidden_matrix(served.user, text), bound) for text in CANDIDATES}
    widest = max(np.linalg.norm(a - b) for a in inside.values() for b in inside.values())
    assert np.linalg.norm(inside[first] - inside[second]) == pytest.approx(widest)


def test_fair_ids_pass_and_a_single_leaning_bit_is_seen() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        ids = [rng.bytes(16) for _ in range(80)]
        assert not _fair_ids(ids[:40], ids[40:]).refuted
    marked = [bytes([one[0] | 1]) + one[1:] for one in ids[:40]]
    unmarked = [bytes([one[0] & 0xFE]) + one[1:] for one in ids[40:]]
    assert _fair_ids(marked, unmarked).refuted


def test_fronts_are_looked_at_with_texts_of_all_lengths(served: World) -> None:
    assert len({len(text) for text in CANDIDATES}) == len(CANDIDATES)
    assert not [one for one in audit_fronts(served.user) if one.refuted]


def test_too_few_questions_are_refused(served: World) -> None:
    with pytest.raises(InvalidInput, match="draws"):
        audit_service(served.user, served.wire, draws=3)
