"""Noisy masked-LM pre-training on public text: a back that has learned to read noisy matrices.

The model with its masked-LM head is cut, the mechanism's noise sits at the cut in every step (a share of it,
by default, that differs from block to block), and the loss is taken behind the back. The halves are then one
ordinary checkpoint again::

    outcome = pretrain("minilm", "wiki.txt.gz", settings, folder=Path("noisy-minilm"))
    model = load_model("noisy-minilm", labels=2)          # so `dpf finetune --model noisy-minilm` takes it

A checkpoint without a head (a sentence encoder) first gets one: phase `head`, without noise. Then comes phase
`noisy`. Both are the Hugging Face Trainer; a run that was stopped anywhere continues with ``resume=True``.

Guarantees:
    None for the texts, and none is needed: they are public. Front and back both learn from them as they are,
    which costs no privacy. What the resulting model later releases for a private text is as private as the
    mechanism used then says: its promise holds for any fixed front, however that was trained.
Edges:
    The blocks hold no PAD, since the back attends to all rows. Maps to d' columns are not offered: an
    ordinary checkpoint has no place for them. A decoder that is tied to the token table stays so.
Paper: L*_MLM, the noise-aware pre-training.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dp_forward.data.public_text import Corpus, pack_blocks, read_public_texts
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.privacy import Mechanism
from dp_forward.split import Split
from dp_forward.split.legal_cuts import check_cut
from dp_forward.split.private_model import PrivateModel, join
from dp_forward.train.pretrain.masking import MaskedBlocks, Masking
from dp_forward.train.pretrain.merge_halves import NoisyMaskedLM, rejoined, tied_split
from dp_forward.train.pretrain.mlm_model import MaskedLM, load_masked_lm, save_checkpoint
from dp_forward.train.pretrain.mlm_trainer import (
    OnProgress,
    Phase,
    masked_loss,
    newest_checkpoint,
    train_phase,
)
from dp_forward.train.pretrain.pretrain_folder import PretrainFolder
from dp_forward.train.pretrain.schedule import PretrainPace
from dp_forward.train.processes import peak_memory_mib, start_counting_memory
from dp_forward.train.training_loop import step_of

__all__ = ["PretrainOutcome", "PretrainSettings", "pretrain"]

_MOST_HELD_OUT = 256
"""Blocks: at n = 128 about 5,000 hidden tokens, which pins the mean loss to about 0.04."""


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(PretrainPace):
    """How to pre-train: where the noise goes, which, and the pace.

    Edges:
        ``mechanism=None`` trains without bound and noise, as a control.
    """

    cut: str
    mechanism: Mechanism | None

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values; the mechanism as the sentence that it introduces itself with."""
        plain = asdict(replace(self, mechanism=None))
        return plain | {"mechanism": None if self.mechanism is None else repr(self.mechanism)}


@dataclass(frozen=True, kw_only=True)
class PretrainOutcome:
    """What came out. Losses are means per hidden token; the held-out blocks are the end of the corpus.

    Edges:
        ``loss`` is the last logged one, None after 0 steps. The losses without noise leave out the bound too:
        they are the ordinary model's. ``before`` is the start of phase `noisy`. ``seconds`` counts the call
        that finished the run, not those that were stopped.
    """

    statement: str
    steps: int
    head_steps: int
    loss: float | None
    held_out_loss: float
    held_out_loss_without_noise: float
    held_out_loss_before: float
    held_out_loss_without_noise_before: float
    blocks: int
    held_out_blocks: int
    seconds: float
    peak_memory_mib: float
    history: list[dict[str, Any]] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def pretrain(
    model: str,
    corpus: Corpus,
    settings: PretrainSettings,
    *,
    folder: str | os.PathLike[str],
    resume: bool = False,
    on_progress: OnProgress | None = None,
) -> PretrainOutcome:
    """Train on public text with the noise at the cut; ``folder`` becomes an ordinary checkpoint.

    Edges:
        Refused before anything is written: a family without a masked LM, a cut that leaves no rows, a length
        beyond the model's positions, a mechanism that does not fit the cut. A finished run that is resumed
        gives its outcome again.
    """
    from transformers import set_seed

    began = time.monotonic()
    start_counting_memory()
    set_seed(settings.seed)
    start = load_masked_lm(model)
    _check(start, settings)
    run = PretrainFolder(folder, _plan(model, corpus, settings), resume=resume)
    stored = run.outcome()
    if stored is not None:
        return PretrainOutcome(**stored)

    blocks, held_out, steps = _blocks(run, corpus, start, settings)
    masking = Masking.of(start.tokenizer, rate=settings.mask_rate)
    kept = MaskedBlocks(held_out, masking, seed=(settings.seed, 2), items=len(held_out))
    history: list[dict[str, Any]] = []
    if settings.head_steps and not start.has_head:
        history += _train_head(run, start, blocks, settings, on_progress)

    pair = tied_split(start.model, settings.cut)
    before = _both_losses(pair, start.model, kept, settings)
    phase = _phase(run, "noisy", steps, settings.learning_rate, settings)
    noisy = NoisyMaskedLM(
        pair,
        _sanitizer(phase, settings),
        settings.draws,
        freeze_front=settings.freeze_front,
        least_noise=settings.least_noise,
    )
    if steps:
        history += train_phase(noisy, blocks, masking, phase, on_progress=on_progress)
    whole = rejoined(pair, like=start.model)
    after = _both_losses(pair, whole, kept, settings)

    outcome = PretrainOutcome(
        statement=_statement(settings),
        steps=steps,
        head_steps=0 if start.has_head else settings.head_steps,
        loss=history[-1]["loss"] if steps and history else None,
        held_out_loss=after[0],
        held_out_loss_without_noise=after[1],
        held_out_loss_before=before[0],
        held_out_loss_without_noise_before=before[1],
        blocks=len(blocks),
        held_out_blocks=len(held_out),
        seconds=time.monotonic() - began,
        peak_memory_mib=peak_memory_mib(),
        history=history,
    )
    run.finish(
        lambda place: save_checkpoint(whole, place, unused=start.unused, tokenizer=model), outcome.as_dict()
    )
    return outcome


def _check(start: MaskedLM, settings: PretrainSettings) -> None:
    """Everything that can be refused before a file is written or a text is read."""
    check_cut(start.model, settings.cut)
    Masking.of(start.tokenizer, rate=settings.mask_rate)
    pair = tied_split(start.model, settings.cut)
    join(pair, _evaluated(settings), draws=settings.draws)
    most = pair.front.max_rows
    if most is not None and settings.length > most:
        raise InvalidInput(
            "length", f"fit the model's {most} positions", settings.length, "Use a smaller one."
        )
    # One pass over any block: a mechanism for another number of rows shows now, not after an hour.
    ids = torch.full((1, settings.length), int(start.tokenizer.mask_token_id))
    with torch.no_grad():
        _joined(pair, settings).eval()(input_ids=ids)


def _plan(model: str, corpus: Corpus, settings: PretrainSettings) -> dict[str, Any]:
    name = os.fspath(corpus) if isinstance(corpus, str | os.PathLike) else "texts given by the caller"
    plan = {"model": model, "corpus": name, **settings.as_dict()}
    del plan["save_every"]  # how often to save may change from one start to the next
    return plan


def _blocks(
    run: PretrainFolder, corpus: Corpus, start: MaskedLM, settings: PretrainSettings
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Blocks to train on, held-out blocks, and the number of steps."""
    most = None
    if settings.steps is not None:
        # No more text is read than is used: a corpus may be far larger than the run.
        most = (settings.steps + settings.head_steps) * settings.batch + _MOST_HELD_OUT

    def pack() -> NDArray[np.int32]:
        blocks = pack_blocks(read_public_texts(corpus), start.tokenizer, length=settings.length, most=most)
        if len(blocks) < 2:
            rule = f"fill two blocks of {settings.length} tokens, one to train on and one held out"
            raise InvalidInput("corpus", rule, len(blocks), "Use more text, or a smaller length.")
        return blocks

    blocks = run.blocks(pack)
    held_out = min(_MOST_HELD_OUT, max(1, len(blocks) // 50))
    blocks, kept = blocks[:-held_out], blocks[-held_out:]
    steps = settings.steps
    if steps is None:
        assert settings.epochs is not None
        steps = -(-settings.epochs * len(blocks) // settings.batch)
    return blocks, kept, steps


def _train_head(
    run: PretrainFolder,
    start: MaskedLM,
    blocks: NDArray[np.int32],
    settings: PretrainSettings,
    on_progress: OnProgress | None,
) -> list[dict[str, Any]]:
    """Phase `head`: gives the model a head that can be used; returns the losses on the way."""
    phase = _phase(run, "head", settings.head_steps, settings.head_learning_rate, settings)
    masking = Masking.of(start.tokenizer, rate=settings.mask_rate)
    if settings.head_alone or settings.freeze_front:
        start.model.requires_grad_(False)
        for parameter in start.head():
            parameter.requires_grad_(True)
    history = train_phase(start.model, blocks, masking, phase, on_progress=on_progress)
    start.model.requires_grad_(True)
    return history


def _phase(
    run: PretrainFolder, name: str, steps: int, learning_rate: float, settings: PretrainSettings
) -> Phase:
    return Phase(
        name=name,
        folder=run.work / name,
        steps=steps,
        batch=settings.batch,
        learning_rate=learning_rate,
        save_every=settings.save_every,
        bf16=settings.bf16,
        seed=settings.seed,
    )


def _sanitizer(phase: Phase, settings: PretrainSettings) -> Sanitizer | None:
    """The noise of the training steps, in a stream of its own for each start of the run."""
    if settings.mechanism is None:
        return None
    taken = step_of(newest_checkpoint(phase.folder))
    return Sanitizer(settings.mechanism, seed=settings.seed * 1_000_000_007 + 2 * taken)


def _evaluated(settings: PretrainSettings) -> Sanitizer | None:
    """The noise of an evaluation: the same draws before and after training."""
    if settings.mechanism is None:
        return None
    return Sanitizer(settings.mechanism, seed=settings.seed * 1_000_000_007 + 1)


def _joined(pair: Split, settings: PretrainSettings) -> PrivateModel:
    return PrivateModel(pair, _evaluated(settings), 1)


def _both_losses(
    pair: Split, whole: Any, kept: MaskedBlocks, settings: PretrainSettings
) -> tuple[float, float]:
    """On held-out text: through the noise, and as the ordinary model."""
    noisy = masked_loss(_joined(pair, settings), kept, batch=settings.batch)
    return noisy, masked_loss(whole, kept, batch=settings.batch)


def _statement(settings: PretrainSettings) -> str:
    # Without the mechanism's promise: it is true for a release, and there is none here.
    noise = (
        "no noise"
        if settings.mechanism is None
        else f"the noise of {repr(settings.mechanism).split(' -> ')[0]}"
    )
    if settings.mechanism is not None and settings.least_noise < 1:
        noise = f"{settings.least_noise:g} to 1 times {noise}"
    front = "frozen" if settings.freeze_front else "trained too"
    return (
        f"Pre-trained on public text with {noise} at {settings.cut}; the front was {front}. The text is not "
        "protected and need not be: it is public, so training on it costs no privacy. The noise was there to "
        "be learned from; it protects nobody here. What the model releases later is protected by the "
        "mechanism used then."
    )
