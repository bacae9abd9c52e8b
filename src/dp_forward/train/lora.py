"""LoRA on the back: few numbers train, and the result is an ordinary back again."""

from __future__ import annotations

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.split.halves import Back, NarrowBack

__all__ = ["add_lora", "merge_lora"]


def add_lora(back: Back | NarrowBack, *, rank: int) -> None:
    """Freeze the back's blocks and put low-rank maps beside their linear layers; the head trains as it is."""
    try:
        import peft
    except ImportError:
        raise InvalidInput(
            "lora_rank", "be 0 without peft", rank, "pip install 'dp-forward[train]'."
        ) from None
    count("lora_rank", rank, remedy="Try 8.")
    plain = _plain(back)
    if plain.cut.place == "output":
        raise InvalidInput("lora_rank", "be 0 at the cut output", rank, "The back is only a head there.")
    settings = peft.LoraConfig(
        task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear"
    )
    plain.model = peft.get_peft_model(plain.model, settings)


def merge_lora(back: Back | NarrowBack) -> None:
    """Add the low-rank maps to the weights they stand beside, and take them away."""
    plain = _plain(back)
    plain.model = plain.model.merge_and_unload()  # type: ignore[operator]


def _plain(back: Back | NarrowBack) -> Back:
    return back.back if isinstance(back, NarrowBack) else back
