"""Checks of how releases are drawn, besides the amount of their noise.

* *one size*: every hidden matrix of one shape gives as many bytes, whatever it holds;
* *total*: NaN, infinities, huge, tiny and zero matrices give a release like any other. An error that depends
  on a text is a release of that text without noise;
* *text by text*: what is released of one text does not depend on the others of its batch, to the bit. The
  entropy is replayed for this one finding, which is what the argument of `release_batch` is for;
* *fresh*: releases in this thread, in other threads and on both sides of a fork share no noise. (For K-ary
  response at an epsilon near 0: at a large one nearly all answers are alike.)
"""

import multiprocessing
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_forward.audit.claims import as_vectors, bounded_vectors, claim_of
from dp_forward.audit.findings import Finding
from dp_forward.audit.released_bytes import across_inputs, opposed, shared_noise
from dp_forward.noise.released import released_matrix as released
from dp_forward.privacy import KaryResponse, Mechanism

__all__ = ["audit_draws"]

Matrix = NDArray[Any]


def audit_draws(mechanism: Mechanism, *, rows: int = 8, width: int = 16, bits: int = 16) -> list[Finding]:
    """All four, on matrices of this shape. It forks: call it before threads that hold locks are started."""
    hidden = opposed(mechanism, rows=rows, width=width)[0]
    return [
        *_sizes_and_totality(mechanism, hidden, bits),
        _text_by_text(mechanism, hidden, bits),
        *_fresh(mechanism, hidden, bits),
    ]


def _sizes_and_totality(mechanism: Mechanism, hidden: Matrix, bits: int) -> list[Finding]:
    """Of matrices that a front can give, if its weights or its text are strange enough."""
    sizes, refused = set(), 0
    cases = [hidden, hidden.astype(np.float32) * np.float32(1e30)]
    for value in (np.nan, np.inf, -np.inf, 1e300, 5e-324, 0.0):
        cases += [np.full_like(hidden, value), hidden.copy()]
        cases[-1][-1, -1] = value
    for case in cases:
        try:
            sizes.add(len(released.serialise(released.release(case, mechanism, bits=bits))))
        except Exception:  # of whatever type: the very fact is what leaks
            refused += 1
    return [
        Finding("sizes of a release", 1.0, float(len(sizes))),
        Finding("strange matrices that were not released", 0.0, float(refused)),
    ]


def _text_by_text(mechanism: Mechanism, hidden: Matrix, bits: int) -> Finding:
    """Entries of one release that change with another text of the batch, under the same entropy."""

    def first_of(other: Matrix) -> Matrix:
        entropy = np.random.default_rng(1).bytes
        batch = np.stack([hidden, other])
        return released.release_batch(batch, mechanism, bits=bits, entropy=entropy)[0].values

    alone = first_of(hidden)
    changed = sum(int(np.sum(first_of(factor * hidden) != alone)) for factor in (1e-6, 1e6))
    return Finding("entries that depend on another text of the batch", 0.0, float(changed))


def _fresh(mechanism: Mechanism, hidden: Matrix, bits: int) -> list[Finding]:
    """From releases of one matrix here, in threads and, where the system can, in forks."""
    what = "noise shared by threads or forks"
    if isinstance(mechanism, KaryResponse):
        answers = _everywhere(KaryResponse(1e-3, mechanism.labels), hidden, bits, times=64)
        return [Finding(what, 0.0, float(len(answers) - len(set(answers))))]
    claim = claim_of(mechanism, bits=bits)
    x = bounded_vectors(hidden, claim.bound)
    integers = np.frombuffer(b"".join(_everywhere(mechanism, hidden, bits, times=4)), dtype=f"<i{bits // 8}")
    seen = released.dequantise(integers.reshape(-1, *hidden.shape), mechanism, bits)
    found = shared_noise(*across_inputs(as_vectors(seen, claim.bound), x))
    return [Finding(what, one.claimed, one.measured, one.z) for one in found]


def _everywhere(mechanism: Mechanism, hidden: Matrix, bits: int, *, times: int) -> list[bytes]:
    """So many releases here, and as many in each of some forks and threads."""

    def some(_: int = 0) -> bytes:
        made = (released.release(hidden, mechanism, bits=bits) for _ in range(times))
        return b"".join(map(released.serialise, made))

    parts = [some()]
    if hasattr(os, "fork"):
        parts += filter(None, (_in_fork(some) for _ in range(3)))  # two that gave nothing share no noise
    with ThreadPoolExecutor(4) as threads:
        parts += threads.map(some, range(4))
    return parts


def _in_fork(work: Callable[[], bytes]) -> bytes:
    """What a child of this process computes; nothing, where it fails or takes longer than half a minute."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: writing.send_bytes(work()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the child only draws
        child.start()
    writing.close()
    try:
        # A lock that another thread held at the fork is never given back.
        return reading.recv_bytes() if reading.poll(30) else b""
    except EOFError:
        return b""
    finally:
        child.kill()
        child.join()
