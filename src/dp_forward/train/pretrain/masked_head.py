"""Scores for hidden tokens only: of the rows that reach the masked-LM head, the loss reads one in seven.

The head turns a row into a score for every token of the vocabulary, which costs as much as the rest of a
small model, and the loss looks at the rows of hidden tokens only. So while a model trains, the other rows are
left out before the head. Nothing of a family's code is repeated: two hooks, one on the model (which labels
count) and one on the first part of its head (which rows those are).

Guarantees:
    Loss and gradients are those of the whole: the rows that are left out carry the label that is ignored.
Edges:
    Only for one draw of the noise per text; a batch in which nothing is hidden is left as it is. A model
    whose head is not found computes all scores, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from dp_forward.split.private_model import PrivateModel
from dp_forward.train.pretrain.masking import IGNORED

__all__ = ["scores_for_hidden_tokens_only"]


@contextmanager
def scores_for_hidden_tokens_only(model: nn.Module) -> Iterator[None]:
    """While it is open, the model's ``loss`` comes from the rows of hidden tokens alone; its logits too."""
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

    with ExitStack() as hooks:
        # Last in line, so that whatever else looks at the labels has seen them whole.
        hooks.callback(model.register_forward_pre_hook(keep_labels, with_kwargs=True).remove)
        hooks.callback(head.register_forward_pre_hook(keep_rows).remove)
        yield


def _first_of_head(model: nn.Module) -> nn.Module | None:
    """The part of the head that the hidden rows reach first: its first child with weights beside the base."""
    inner: Any = model.back.model if isinstance(model, PrivateModel) else model
    base = getattr(inner, "base_model_prefix", None)
    if base is None:
        return None
    beside = (part for name, part in inner.named_children() if name != base)
    return next((part for part in beside if any(True for _ in part.parameters())), None)
