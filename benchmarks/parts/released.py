"""Released noise: exact draws and whole releases, against noise that could not be released."""

from __future__ import annotations

import statistics

import numpy as np
import torch

from benchmarks.board import Board, Part, at_most
from benchmarks.goals import on_cores, say
from benchmarks.released_noise import draw_seconds, fine_scale, gaussian, privunit, release_cpu_ms
from benchmarks.timing import cpu_seconds, least_cpu_ms, threads
from dp_forward.noise import release_batch
from dp_forward.split import split_model
from dp_forward.split.pretrained import load_model

CUT, ROWS, TEXTS = "encoder.3", 64, 16
LIMITS = {
    "exact_over_numpy_draw": at_most(
        8, "about 3: a keystream and exact rounding; the exact sampler of OpenDP is hundreds of times ours"
    ),
    "release_over_front": at_most(
        0.4, "about 0.1: noise must stay the small part of the user's work beside three blocks of MiniLM"
    ),
    "privunit_over_gaussian_release": at_most(
        2.5, "about 0.8: the draws are the same, and one coin and one signal are more"
    ),
}


def run(board: Board) -> None:
    """On one core, in one thread, in CPU time."""
    with on_cores({0}), threads(1):
        draws(board)
        whole(board)
        beside_the_front(board)


def draws(board: Board) -> None:
    """Exact draws at the scale of a release, in turn with numpy's float ones."""
    say("released: draws ...")
    many, repeat = (200_000, 3) if board.smoke else (1_000_000, 7)
    generator = np.random.default_rng(0)
    pairs = [
        (
            draw_seconds(many, scale=fine_scale(gaussian(8.0))),
            cpu_seconds(lambda: generator.standard_normal(many)) / many,
        )
        for _ in range(repeat + 1)
    ][1:]
    board.put("exact_draws_per_second", 1 / statistics.median(ours for ours, _ in pairs))
    board.put("exact_over_numpy_draw", statistics.median(ours / theirs for ours, theirs in pairs))


def whole(board: Board) -> None:
    """A release of 128 x 768, by mechanism and width of the integers."""
    say("released: 128 x 768 ...")
    found = release_cpu_ms(repeat=3 if board.smoke else 11)
    for name, taken in found.items():
        board.put(f"128_x_768_{name.removesuffix('_ms')}", taken, "CPU ms")
    board.put("privunit_over_gaussian_release", found["privunit_int8_ms"] / found["matrix-gaussian_int8_ms"])


def beside_the_front(board: Board) -> None:
    """What the noise adds to the front, for a batch of texts; and releases per second."""
    say("released: beside the front ...")
    front = split_model(load_model("minilm", labels=2), CUT).front.eval()
    ids = torch.randint(1000, 20_000, (TEXTS, ROWS), generator=torch.Generator().manual_seed(0))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    repeat = 2 if board.smoke else 7
    with torch.inference_mode():
        hidden = front(**given)
        forward = least_cpu_ms(lambda: front(**given), repeat=repeat)
    slowest = 0.0
    for mechanism in (gaussian(8.0), privunit(8.0)):
        taken = least_cpu_ms(lambda m=mechanism: release_batch(hidden, m, bits=8), repeat=repeat)
        board.put(f"releases_of_64_x_384_per_second_{mechanism.name}", 1e3 * TEXTS / taken)
        slowest = max(slowest, taken)
    board.put("front_of_64_tokens", forward / TEXTS, "CPU ms")
    board.put("release_over_front", slowest / forward)


PART = Part("released", "What does noise that is safe to release cost?", LIMITS, run)
