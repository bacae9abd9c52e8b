"""Masked language models: load a checkpoint, hide tokens, score those alone, save an ordinary checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from dp_forward.errors import InvalidInput
from dp_forward.split.families import FAMILIES
from dp_forward.split.pretrained import model_folder, quiet_transformers
from dp_forward.split.private_model import PrivateModel

IGNORED = -100
"""The label of a token that was not chosen: torch's cross entropy passes it over."""


class MaskedLM:
    """The model of a folder, of a Hugging Face name or `minilm`, in float32, with a masked-LM head.

    Edges:
        Refused are families without a masked LM (causal models, images), a checkpoint that lacks weights
        below the head, and a tokenizer with more tokens than the model has rows for. Where the checkpoint has
        no head (``has_head``), it starts from random weights.
    """

    def __init__(self, name: str) -> None:
        self._folder = model_folder(name)
        kept: dict[str, Any] = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
        try:
            with quiet_transformers():
                family = transformers.AutoConfig.from_pretrained(self._folder).model_type
                known = [row.model_type for row in FAMILIES.values() if row.masked_lm]
                if family not in known:
                    rule = f"be of a family with a masked LM ({', '.join(known)})"
                    raise InvalidInput("model", rule, family, "A causal model has none.")
                loader: Any = transformers.AutoModelForMaskedLM
                self.model, found = loader.from_pretrained(self._folder, **kept)
                bare, found_bare = transformers.AutoModel.from_pretrained(self._folder, **kept)
                self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(self._folder)
        except InvalidInput:
            raise
        except (OSError, ValueError):
            rule = "be a folder or a name that Hugging Face can load, with its tokenizer"
            raise InvalidInput("model", rule, name, "Check the spelling, or go online.") from None
        self.has_head = not found["missing_keys"]
        base, rows = f"{self.model.base_model_prefix}.", self.model.config.vocab_size
        below = sorted(key for key in found["missing_keys"] if key.startswith(base))
        if below:
            raise InvalidInput("model", "hold all weights below its head", f"no {below[0]}", "Get it again.")
        if len(self.tokenizer) > rows:
            rule, remedy = f"know at most the model's {rows} tokens", "Use the tokenizer of the checkpoint."
            raise InvalidInput("tokenizer", rule, len(self.tokenizer), remedy)
        # What the checkpoint holds and masked LM does not read (BERT's pooler): kept for who comes after.
        missing = {key.split(".")[0] for key in found_bare["missing_keys"]}
        self._unread = {
            part_name: part
            for part_name, part in bare.named_children()
            if getattr(self.model.base_model, part_name, None) is None and part_name not in missing
        }

    def save(self, folder: Path) -> None:
        """An ordinary checkpoint: model.safetensors, config.json and the tokenizer. It comes last."""
        for name, part in self._unread.items():
            setattr(self.model.base_model, name, part)
        self.model.save_pretrained(folder)
        # Loaded anew: the one that was used remembers how it was called last.
        transformers.AutoTokenizer.from_pretrained(self._folder).save_pretrained(folder)


class Masking:
    """BERT's rule: of the chosen tokens 80 % become [MASK], 10 % another token, 10 % stay.

    Guarantees:
        [CLS], [SEP] and the other special tokens are never chosen and never put in. At least one token of a
        block is chosen, so that the loss is a number.
    """

    def __init__(self, tokenizer: Any, *, rate: float) -> None:
        if tokenizer.mask_token_id is None:
            raise InvalidInput("tokenizer", "have a [MASK] token", "none", "Use a masked-LM checkpoint.")
        self.rate, self.mask = rate, int(tokenizer.mask_token_id)
        self.special = np.unique(np.array(tokenizer.all_special_ids, np.int64))
        self.ordinary = np.setdiff1d(np.arange(len(tokenizer)), self.special)

    def __call__(
        self, block: NDArray[np.int32], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The block with some tokens hidden, and the labels: the true token where chosen, else `IGNORED`."""
        ids = block.astype(np.int64)
        candidates = np.flatnonzero(~np.isin(ids, self.special))
        chosen = candidates[rng.random(len(candidates)) < self.rate]
        if not len(chosen):
            chosen = rng.choice(candidates, 1)
        labels = np.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        fate = rng.random(len(chosen))
        ids[chosen[fate < 0.8]] = self.mask
        swapped = chosen[(fate >= 0.8) & (fate < 0.9)]
        ids[swapped] = rng.choice(self.ordinary, len(swapped))
        return ids, labels


class MaskedBlocks(Dataset[dict[str, Tensor]]):
    """``items`` masked blocks: pass after pass over the blocks, each in a new order, with new masks.

    Which tokens are hidden depends on the seed and on the number of the item alone: not on the process, the
    batch or on how often a run was stopped. So a resumed run sees what the run without a stop would have
    seen. This is why Transformers' collator is not used: it draws from one generator, batch after batch.
    """

    def __init__(self, blocks: NDArray[np.int32], masking: Masking, *, seed: tuple[int, ...], items: int):
        self._blocks, self._masking, self._seed, self._items = blocks, masking, seed, items
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        turn, place = divmod(item, len(self._blocks))
        if self._order[0] != turn:
            shuffle = np.random.default_rng((*self._seed, 0, turn))
            self._order = (turn, shuffle.permutation(len(self._blocks)))
        block = self._blocks[self._order[1][place]]
        ids, labels = self._masking(block, np.random.default_rng((*self._seed, 1, item)))
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}


@contextmanager
def score_masked_tokens_only(model: nn.Module) -> Iterator[None]:
    """While it is open, the model's ``loss`` comes from the rows of masked tokens alone; its logits too.

    The head turns a row into a score for every token of the vocabulary, which costs as much as the rest of a
    small model, and the loss looks at one row in seven. So the other rows are left out before the head.
    Nothing of a family's code is repeated: two hooks, one on the model (which labels count) and one on the
    first part of its head (which rows those are).

    Guarantees:
        Loss and gradients are those of the whole: the rows that are left out carry the label that is ignored.
    Edges:
        Only for one draw of the noise per text; a batch in which nothing is masked is left as it is. A model
        whose head is not found computes all scores.
    """
    inner: Any = model.back.model if isinstance(model, PrivateModel) else model
    base = getattr(inner, "base_model_prefix", None)
    beside = [part for name, part in inner.named_children() if base is not None and name != base]
    # What the hidden rows reach first of the head: its first child with weights beside the base.
    head = next((part for part in beside if [*part.parameters()]), None)
    if head is None or (isinstance(model, PrivateModel) and model.draws > 1):
        yield
        return
    chosen: list[Tensor] = []

    def keep_labels(module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        chosen.clear()
        labels = given.get("labels")
        if labels is None or not bool((hidden := labels != IGNORED).any()):
            return None
        chosen.append(hidden)
        return args, {**given, "labels": labels[hidden]}

    def keep_rows(module: nn.Module, args: tuple[Any, ...]) -> Any:
        return (args[0][chosen[0]], *args[1:]) if chosen else None

    # Last in line, so that whatever else looks at the labels has seen them whole.
    labels_hook = model.register_forward_pre_hook(keep_labels, with_kwargs=True)
    with labels_hook, head.register_forward_pre_hook(keep_rows):
        yield
