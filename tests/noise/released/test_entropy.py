"""Every release has a keystream of its own; nothing is shared by calls, threads or forks."""

import multiprocessing
import threading

import numpy as np
import pytest
from scipy import stats

from dp_forward.noise import release
from dp_forward.noise.released import entropy
from dp_forward.noise.released.entropy import cipher_is_right, keystream
from dp_forward.privacy import NoiseSpec

HIDDEN = np.ones((4, 8))
NOISE = NoiseSpec(epsilon=4.0).build()


def test_a_stream_gives_what_was_asked_and_never_the_same_again() -> None:
    fresh = keystream()
    parts = [fresh(size) for size in (16, 16, 1, 0, 4096)]
    assert [len(part) for part in parts] == [16, 16, 1, 0, 4096]
    assert parts[0] != parts[1]
    assert keystream()(64) != keystream()(64)


def test_the_cipher_is_compared_with_a_known_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cipher_is_right()
    stretch = entropy._stretch
    monkeypatch.setattr(entropy, "_stretch", lambda key, counter: stretch(key[::-1], counter))
    assert not cipher_is_right(), "the control"


def test_the_bytes_are_uniform() -> None:
    counts = np.bincount(np.frombuffer(keystream()(1 << 20), dtype=np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6
    biased = np.bincount(np.frombuffer(keystream()(1 << 20), dtype=np.uint8) | 1, minlength=256)
    assert stats.chisquare(biased).pvalue < 1e-6, "the control"


def _drawn(queue: "multiprocessing.Queue[bytes]") -> None:
    queue.put(release(HIDDEN, NOISE).to_bytes())


@pytest.mark.slow
def test_forks_and_threads_draw_different_noise() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_drawn, args=(queue,)) for _ in range(8)]
    for child in children:
        child.start()
    seen = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    drawn: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: drawn.append(release(HIDDEN, NOISE).to_bytes())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*seen, *drawn}) == 16
