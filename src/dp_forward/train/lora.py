"""LoRA on the back: few numbers train, and the result is an ordinary back again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.split.halves import NarrowBack

__all__ = ["low_rank"]


@contextmanager
def low_rank(back: Any, *, rank: int) -> Iterator[None]:
    """Within the block only low-rank maps beside the back's linear layers train, and its head.

    At the end they are added to the weights that they stand beside. A rank of 0 changes nothing.
    """
    if not rank:
        yield
        return
    try:
        import peft
    except ImportError:
        raise InvalidInput(
            "lora_rank", "be 0 without peft", rank, "pip install 'dp-forward[train]'."
        ) from None
    count("lora_rank", rank, remedy="Try 8.")
    plain = back.back if isinstance(back, NarrowBack) else back
    if plain.cut.place == "output":
        raise InvalidInput("lora_rank", "be 0 at the cut output", rank, "The back is only a head there.")
    settings = peft.LoraConfig(
        task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear"
    )
    plain.model = peft.get_peft_model(plain.model, settings)
    yield
    plain.model = plain.model.merge_and_unload()
