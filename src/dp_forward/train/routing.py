r"""Private questions to public entries: the front picks one of K, and that pick is released (`dpf route`).

    entries (public) ─► front ─► K directions ─► the scores that end ROUTE/front
    question (private) ─► ROUTE/front ─► pick ─► K-ary response ══ wire ══► ROUTE/back ─► reply of that entry

A pure release of epsilon says at most epsilon nats (1.44 epsilon bits) of a text, so what a provider can know
of a private question is a choice among a few public ones. The scores are cosines: one front reads entries and
questions.

Guarantees:
    Entries are public, and the front is made from them alone. So a question is released as every K-ary answer
    is: pure epsilon-LDP of its text (`privacy.KaryResponse`). A reply is a function of what was released.

Paper: not in it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import KaryResponse, NoiseSpec
from dp_forward.progress import Progress, counter
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import Split, pretrained, split_model
from dp_forward.split.artifacts import save_sides
from dp_forward.split.device import pick_device
from dp_forward.split.front_statistics import rows_of
from dp_forward.split.halves import AnswerBack, Front, ReadoutFront

__all__ = ["make_route"]

_BATCH: Final = 64


@dataclass(frozen=True, eq=False)
class Route:
    """Front and back of a route: ``spec.labels`` are the entries, ``replies`` what is said to each.

    ``pair`` are the halves and ``tokens`` what the front reads texts with.
    """

    pair: Split
    tokens: FixedLength
    spec: ReleaseSpec
    replies: Mapping[str, str]

    @property
    def response(self) -> KaryResponse:
        """The noise of one question."""
        return cast("KaryResponse", self.spec.mechanism())

    def save(self, folder: str | os.PathLike[str]) -> dict[str, str]:
        """Write ``front/`` for users and ``back/`` for the provider; returns their digests."""
        return save_sides(self.pair, self.spec, self.tokens.tokenizer, folder, replies=self.replies)


def make_route(
    entries: Mapping[str, str | None],
    *,
    epsilon: float,
    model: str = "minilm",
    rows: int = 64,
    generate: str | None = None,
    progress: Progress | None = None,
) -> Route:
    """The two halves of a route among public entries; deterministic, and it charges nothing.

    Args:
        entries: question or prompt -> what is answered; None for an entry whose name is the answer.
        epsilon: the budget of one question.
        model: a sentence encoder, read as its folder says (`pretrained.default_pooling`).
        rows: how many tokens of a question are read.
        generate: a causal language model that answers the entries that have no answer.
        progress: of reading the entries and writing answers.
    """
    pair = split_model(pretrained.load_model(model), "output", pooling=pretrained.default_pooling(model))
    front = cast("Front", pair.front)
    tokenizer, reach = pretrained.load_tokenizer(model), front.max_rows
    tokens = FixedLength(tokenizer, rows, causal=front.pads_left, most_positions=reach)
    directions = _directions(front, tokens, list(entries), progress)
    reading = ReadoutFront(front, front.width)
    with torch.no_grad():  # cosines need no projection
        reading.project.weight.copy_(torch.eye(front.width))
        reading.project.bias.zero_()
    reading.to("cpu")
    scoring = reading.with_scores(directions, torch.zeros(len(entries))).train(False).to("cpu")
    noise = NoiseSpec(mechanism=KaryResponse.name, epsilon=epsilon, columns=len(entries))
    spec = ReleaseSpec.of(scoring, noise=noise, rows=rows, labels=tuple(entries))
    transition = cast("KaryResponse", spec.mechanism()).transition()
    back = AnswerBack.of(torch.from_numpy(transition)).train(False)
    replies = {entry: reply for entry, reply in entries.items() if reply is not None}
    if generate is not None:
        prompts = [entry for entry in entries if entry not in replies]
        written = generate_replies(prompts, model=generate, progress=progress)
        replies |= {prompt: reply for prompt, reply in zip(prompts, written, strict=True) if reply}
    return Route(Split(scoring, back), tokens, spec, replies)


def _directions(front: Front, tokens: FixedLength, texts: Sequence[str], progress: Progress | None) -> Tensor:
    """The direction of each text, [texts, d]."""
    count, found = counter(progress, "reading the entries", len(texts)), list[Tensor]()
    encoded = (tokens.encode(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH))
    for rows in rows_of(front, encoded, pick_device()):
        found.append(functional.normalize(rows[:, 0].float().cpu(), dim=-1))
        if count is not None:
            count(sum(map(len, found)))
    return torch.cat(found)


def generate_replies(
    prompts: Sequence[str], *, model: str, most_tokens: int = 128, progress: Progress | None = None
) -> list[str]:
    """What a causal language model says to each public prompt; greedy, so the same on every machine alike.

    Only safetensors or GGUF of ``model`` are read, and no code of a checkpoint is run.

    Edges:
        There are only K replies, so they are written once, before anybody asks. A model that says nothing
        gives an empty one. A reply ends where the model has no more positions.
    """
    try:
        writer: Any = pretrained.load_model(model, writes=True)
        device, tokenizer = pick_device(), pretrained.load_tokenizer(model)
    except InvalidInput as error:
        _, rule, remedy = error.words
        raise InvalidInput("generate", rule, error.value, remedy) from None
    writer.to(device)
    count, found = counter(progress, "writing replies", len(prompts)), list[str]()
    positions = getattr(writer.config, "max_position_embeddings", None) or math.inf
    for public in prompts:
        prompt = public
        if tokenizer.chat_template:
            turn = [{"role": "user", "content": prompt}]
            prompt = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        given = tokenizer(prompt, return_tensors="pt", add_special_tokens=not tokenizer.chat_template)
        ids, mask = (given[name].to(device) for name in ("input_ids", "attention_mask"))
        room = min(most_tokens, positions - ids.shape[1])
        rule = "read every prompt and have room for a reply"
        refuse_if(room < 1, "generate", rule, f"{ids.shape[1]} tokens", "Shorten the prompts.")
        how = {"attention_mask": mask, "max_new_tokens": room, "pad_token_id": tokenizer.pad_token_id}
        made = writer.generate(ids, do_sample=False, **how)
        said = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        found.append("".join(one for one in said if one.isprintable() or one == "\n").strip())
        if count is not None:
            count(len(found))
    return found
