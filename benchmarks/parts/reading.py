"""Reading texts as a query or a release does, beside the encoder alone; from strings to rows, in turn."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.board import Board, Part, at_most
from benchmarks.goals import say
from benchmarks.timing import seconds, threads
from dp_forward.data import FixedLength, find_task, read_records
from dp_forward.data.own_data import encode_texts
from dp_forward.split import split_model
from dp_forward.split.device import pick_device
from dp_forward.split.pretrained import load_model, load_tokenizer
from dp_forward.train.closed_form_training import read_rows

TEXTS, ROWS, BATCH = 200, 64, 64
LIMITS = {
    "reading_over_encoder": at_most(
        1.1, "about 1: the same blocks over the same tokens; padding to the full length would be 2"
    ),
}


def run(board: Board) -> None:
    """On one thread: two that wait for each other on a busy machine measure the waiting."""
    with threads(1):
        measure(board, texts=64 if board.smoke else TEXTS)


def measure(board: Board, *, texts: int) -> None:
    """Turns of both, and the ratio within a turn."""
    ours, bare = readers()
    some = some_texts(texts)
    apart = float((ours(some[:64]) - bare(some[:64])).abs().max())
    assert apart < 1e-3, "both must read the same rows"
    say("reading: turns ...")
    pairs = [(seconds(lambda: ours(some)), seconds(lambda: bare(some))) for _ in range(3)]
    board.put("texts_per_second", texts / statistics.median(pair[0] for pair in pairs))
    board.put("encoder_texts_per_second", texts / statistics.median(pair[1] for pair in pairs))
    board.put("reading_over_encoder", statistics.median(a / b for a, b in pairs))


def some_texts(many: int) -> list[str]:
    """Of the data that every installation has."""
    records = read_records(find_task("rotten-tomatoes"), "train")
    return [record.text for record in itertools.islice(records, many)]


Reader = Callable[[list[str]], Tensor]


def readers() -> tuple[Reader, Reader]:
    """Our way from texts to rows; and tokenizer, encoder and mean, sorted by length, as by hand."""
    tokenizer, model, device = load_tokenizer("minilm"), load_model("minilm"), pick_device()
    front = split_model(model, "output", pooling="mean").front
    encoder = model.to(device).eval()
    task, tokens = find_task("rotten-tomatoes"), FixedLength(tokenizer, ROWS)

    def ours(texts: list[str]) -> Tensor:
        return torch.from_numpy(read_rows(front, encode_texts(texts, None, tokens, task=task)[1]))

    @torch.inference_mode()
    def bare(texts: list[str]) -> Tensor:
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        found = torch.empty(len(texts), encoder.config.hidden_size)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            some = [texts[place] for place in chosen]
            batch = tokenizer(some, truncation=True, max_length=ROWS, padding=True, return_tensors="pt")
            mask = batch["attention_mask"].to(device)[..., None]
            rows = encoder(**batch.to(device)).last_hidden_state
            found[chosen] = ((rows * mask).sum(dim=1) / mask.sum(dim=1)).cpu()
        return found

    return ours, bare


PART = Part("reading", "What does reading texts cost beside the encoder alone?", LIMITS, run)
