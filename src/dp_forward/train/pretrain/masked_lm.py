"""Masked language models: load, hide tokens, noise at a cut, save as an ordinary one."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.noise import Sanitizer
from dp_forward.noise.bounding import apply_bound
from dp_forward.privacy import Guarantee
from dp_forward.split import Split, split_model
from dp_forward.split.families import FAMILIES
from dp_forward.split.pretrained import model_folder, quiet_transformers
from dp_forward.split.private_model import PrivateModel

Ids = NDArray[np.int64]
IGNORED = -100  # the label of a token that was not chosen: torch's cross entropy passes it over
_RATE = 0.15


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
                rule = f"be of a family with a masked LM ({', '.join(known)})"
                refuse_if(family not in known, "model", rule, family, "A causal model has none.")
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
        rule, remedy = f"know at most the model's {rows} tokens", "Use the tokenizer of the checkpoint."
        refuse_if(len(self.tokenizer) > rows, "tokenizer", rule, len(self.tokenizer), remedy)
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
    """BERT's rule: 15 % of the tokens are chosen; of these 80 % become [MASK], 10 % another, 10 % stay.

    Guarantees:
        [CLS], [SEP] and the other special tokens are never chosen and never put in. At least one token of a
        block is chosen, so that the loss is a number.
    """

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.mask_token_id is None:
            raise InvalidInput("tokenizer", "have a [MASK] token", "none", "Use a masked-LM checkpoint.")
        self.mask = int(tokenizer.mask_token_id)
        self.special = np.unique(np.array(tokenizer.all_special_ids, np.int64))
        self.ordinary = np.setdiff1d(np.arange(len(tokenizer)), self.special)

    def __call__(self, block: NDArray[np.int32], rng: np.random.Generator) -> tuple[Ids, Ids]:
        """The block with some tokens hidden, and the labels: the true token where chosen, else `IGNORED`."""
        ids = block.astype(np.int64)
        candidates = np.flatnonzero(~np.isin(ids, self.special))
        chosen = candidates[rng.random(len(candidates)) < _RATE]
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

    Which tokens are hidden depends on the seed and on the number of the item alone, so a resumed run sees
    what one without a stop would have seen. Transformers' collator draws from one generator instead.
    """

    def __init__(self, blocks: NDArray[np.int32], masking: Masking, *, seed: tuple[int, ...], items: int):
        self._blocks, self._masking, self._seed, self._items = blocks, masking, seed, items
        self._order: tuple[int, Ids] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        turn, place = divmod(item, len(self._blocks))
        if self._order[0] != turn:
            self._order = (turn, np.random.default_rng((*self._seed, 0, turn)).permutation(len(self._blocks)))
        block = self._blocks[self._order[1][place]]
        ids, labels = self._masking(block, np.random.default_rng((*self._seed, 1, item)))
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}


def split_tied(model: Any, cut: str) -> Split:
    """The two halves of a masked LM, whose parameters are those of the model: training them trains it.

    Cutting copies a tied table (the masked-LM decoder is the token table) into both halves, where training
    would move the copies apart. So each tensor of the whole model is put into the halves again, in however
    many places it stands. Which one went where is found by a copy of the model whose n-th tensor holds the
    number n: it is cut in the same way, and its halves are read.

    Guarantees:
        A tensor of the model that both halves need is one parameter of both, so the halves train as the whole
        model would. Without noise the model computes what the halves do, bit for bit, where none is dropped.
    Edges:
        Not for a provider: the back shares the token table (and ALBERT's one block) with the front.
    """
    numbered = copy.deepcopy(model).float()
    with torch.no_grad():
        for number, parameter in enumerate(numbered.parameters()):
            parameter.fill_(number)  # float32 counts exactly beyond any model's number of tensors
    own, pair = list(model.parameters()), split_model(model, cut, allow_vocabulary_head=True)
    places = split_model(numbered, cut, allow_vocabulary_head=True)
    for half, found in ((pair.front, places.front), (pair.back, places.back)):
        for place, parameter in found.named_parameters(remove_duplicate=False):
            owner, _, name = place.rpartition(".")
            setattr(half.get_submodule(owner), name, own[int(parameter.flatten()[0])])
    return pair


class NoisyMaskedLM(PrivateModel):
    """``back(sanitizer(front(block)))`` with a masked-LM head.

    Guarantees:
        The state dict names each tensor once, so it can be written as safetensors, and is loaded in full. In
        evaluation the back reads noisy matrices only, with all of the noise.
    Edges:
        ``least_noise`` below 1 softens the noise while training, text by text (`soften`).
    """

    def __init__(self, pair: Split, sanitizer: Sanitizer | None, *, least_noise: float = 1.0) -> None:
        super().__init__(pair, sanitizer, draws=1)
        self._least_noise = least_noise
        first: dict[int, str] = {}
        self._aliases = {
            name: first[id(parameter)]
            for name, parameter in self.named_parameters(remove_duplicate=False)
            if first.setdefault(id(parameter), name) != name
        }
        untyped: Any = self
        untyped.register_state_dict_post_hook(_without_aliases)
        untyped.register_load_state_dict_pre_hook(_with_aliases)

    def _noisy(self, hidden: Tensor, draws: int) -> Tensor:
        noisy = super()._noisy(hidden, draws)
        if not self.training or self._least_noise == 1:
            return noisy
        assert self.sanitizer is not None
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            inside = apply_bound(hidden, self.sanitizer.bound)
            return soften(inside, noisy, least=self._least_noise).to(noisy.dtype)

    def guarantee(self, **details: Any) -> Guarantee:
        """As everywhere, but softened noise promises nothing."""
        rule = "be 1 for a guarantee, which needs all of the noise"
        remedy = "Cut the finished checkpoint and join it with a Sanitizer."
        refuse_if(self._least_noise < 1, "least_noise", rule, self._least_noise, remedy)
        return super().guarantee(**details)


def soften(inside: Tensor, noisy: Tensor, *, least: float) -> Tensor:
    """Part of the way from the bounded to the noisy matrix, for any mechanism: a share of its own per text.

    A masked LM that meets nothing but all of the noise forgets more than it learns. With shares between
    ``least`` and 1, as often in one octave as in another, fine-tuning through all of the noise then reaches
    more (docs/paper/pretraining.md).

    Guarantees:
        None: for public text in training only. Nothing that went through here may be released.
    """
    octaves = torch.rand(len(noisy), 1, 1, device=noisy.device)
    return inside + least**octaves * (noisy - inside)


def _without_aliases(module: NoisyMaskedLM, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for alias in module._aliases:
        state.pop(prefix + alias, None)


def _with_aliases(module: NoisyMaskedLM, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for alias, name in module._aliases.items():
        if prefix + name in state:
            state.setdefault(prefix + alias, state[prefix + name])
