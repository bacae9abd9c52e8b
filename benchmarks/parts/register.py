"""The register of an owner's texts at a million of them: bytes a text, and look-ups a second on one core."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.board import Board, Part, at_least, at_most
from benchmarks.timing import threads
from dp_forward.ledger.text_register import TextRegister

TEXTS, ASKED, COLUMNS = 1_000_000, 100_000, 17
LIMITS = {
    "register_bytes_per_text": at_most(
        200.0, "136: 8 for the text and 128 for its 16 runs of words, of a text that has so many"
    ),
    "register_lookups_per_cpu_second": at_least(
        100_000.0, "texts asked about, letter by letter and nearly, of a register of a million"
    ),
}


def run(board: Board) -> None:
    """On one thread. Seconds are those of the processor: on a busy machine the others measure the waiting."""
    texts = TEXTS // 100 if board.smoke else TEXTS
    random = np.random.default_rng(0)
    known = random.integers(1, 2**64, (texts, COLUMNS), dtype=np.uint64)
    asked = random.integers(1, 2**64, (min(ASKED, texts), COLUMNS), dtype=np.uint64)
    with threads(1), tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "register"
        began = time.process_time()
        with TextRegister(place) as register:
            seen = [register.declare("raw", known)]
            board.put("register_texts_entered_per_cpu_second", texts / (time.process_time() - began))
            began = time.process_time()
            register.refuse_seen(asked, seen, name="front", rule="not have seen them")
            board.put("register_lookups_per_cpu_second", len(asked) / (time.process_time() - began))
        board.put("register_bytes_per_text", place.stat().st_size / texts)


PART = Part("register", "How large is the register of texts, and how quickly is it asked?", LIMITS, run)
