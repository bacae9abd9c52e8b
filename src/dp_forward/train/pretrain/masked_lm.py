"""Masked language models: load a checkpoint, score the masked tokens alone, save an ordinary checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dp_forward.errors import InvalidInput
from dp_forward.split.families import FAMILIES
from dp_forward.split.pretrained import model_folder, quiet_transformers
from dp_forward.split.private_model import PrivateModel
from dp_forward.train.pretrain.masking import IGNORED


@dataclass(frozen=True, slots=True, eq=False)
class MaskedLM:
    """A whole model with a masked-LM head, and its tokenizer."""

    model: Any
    tokenizer: Any
    has_head: bool
    """Whether the checkpoint had the head; else it starts from random weights."""
    unused: dict[str, nn.Module]
    """Parts of the checkpoint that masked LM does not read (BERT's pooler): kept for who comes after."""


def load_masked_lm(name: str) -> MaskedLM:
    """The model of a folder, of a Hugging Face name or `minilm`, in float32, with a masked-LM head.

    Edges:
        Refused are families without a masked LM (causal models, images), a checkpoint that lacks weights
        below the head, and a tokenizer with more tokens than the model has rows for.
    """
    import transformers

    folder = model_folder(name)
    try:
        with quiet_transformers():
            settings = transformers.AutoConfig.from_pretrained(folder)
            _check_family(settings)
            loader: Any = transformers.AutoModelForMaskedLM
            model, found = loader.from_pretrained(
                folder, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
            unused = _unread_parts(folder, model)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        rule = "be a folder or a name that Hugging Face can load, with its tokenizer"
        raise InvalidInput("model", rule, name, "Check the spelling, or go online.") from None
    missing = set(found["missing_keys"])
    below = sorted(key for key in missing if key.startswith(f"{model.base_model_prefix}."))
    if below:
        raise InvalidInput("model", "hold all weights below its head", f"no {below[0]}", "Get it again.")
    if len(tokenizer) > model.config.vocab_size:
        rule = f"know at most the model's {model.config.vocab_size} tokens"
        raise InvalidInput("tokenizer", rule, len(tokenizer), "Use the tokenizer of the checkpoint.")
    return MaskedLM(model=model, tokenizer=tokenizer, has_head=not missing, unused=unused)


def save_checkpoint(masked_lm: MaskedLM, folder: Path, *, tokenizer: str) -> None:
    """An ordinary checkpoint: model.safetensors, config.json and the tokenizer of ``tokenizer``."""
    import transformers

    base = masked_lm.model.base_model
    for name, part in masked_lm.unused.items():
        setattr(base, name, part)
    masked_lm.model.save_pretrained(folder)
    for name in masked_lm.unused:
        delattr(base, name)
        setattr(base, name, None)
    # Loaded anew: the one that was used remembers how it was called last.
    transformers.AutoTokenizer.from_pretrained(model_folder(tokenizer)).save_pretrained(folder)


def _check_family(settings: Any) -> None:
    family = FAMILIES.get(settings.model_type)
    if family is None or not family.masked_lm:
        known = ", ".join(row.model_type for row in FAMILIES.values() if row.masked_lm)
        raise InvalidInput(
            "model",
            f"be of a family with a masked LM ({known})",
            settings.model_type,
            "A causal model has none.",
        )


def _unread_parts(folder: str, model: Any) -> dict[str, nn.Module]:
    """Modules that the bare model has and the base of the masked LM has not, if the checkpoint holds them."""
    import transformers

    bare, found = transformers.AutoModel.from_pretrained(
        folder, use_safetensors=True, dtype=torch.float32, output_loading_info=True
    )
    missing = {key.split(".")[0] for key in found["missing_keys"]}
    return {
        name: part
        for name, part in bare.named_children()
        if getattr(model.base_model, name, None) is None and name not in missing
    }


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
    head = _first_of_head(model)
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


def _first_of_head(model: nn.Module) -> nn.Module | None:
    """The part of the head that the hidden rows reach first: its first child with weights beside the base."""
    inner: Any = model.back.model if isinstance(model, PrivateModel) else model
    base = getattr(inner, "base_model_prefix", None)
    if base is None:
        return None
    beside = (part for name, part in inner.named_children() if name != base)
    return next((part for part in beside if any(True for _ in part.parameters())), None)
