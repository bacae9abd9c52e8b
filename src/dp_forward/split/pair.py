"""A model cut in two: the pair that `dpf.split` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dp_forward.split.halves import Back, Front
from dp_forward.split.surgery import carve
from dp_forward.split.width_maps import NarrowBack, NarrowFront, narrowed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from dp_forward.split.cut import Cut

__all__ = ["Split", "split_model", "without_maps"]


@dataclass(frozen=True, slots=True)
class Split:
    """The user's front and the provider's back, made from copies; the model itself is untouched."""

    front: Front | NarrowFront
    back: Back | NarrowBack

    @property
    def cut(self) -> Cut:
        """Where the model was cut."""
        return self.front.cut

    @property
    def vocabulary_head(self) -> bool:
        """Whether the caller let a head as large as the vocabulary go to the provider."""
        return self._plain_back.vocabulary_head

    @property
    def comparable(self) -> bool:
        """Whether the halves compute what the whole model does: no residual dropped, no maps in between."""
        return not self.cut.drops_residual and isinstance(self.front, Front)

    @property
    def tolerance(self) -> float:
        """How far they may differ from it: not at all, but for the rounding of a causal head at `output`."""
        return 0.0 if self._plain_back.exact else 1e-5

    @property
    def _plain_back(self) -> Back:
        return self.back.back if isinstance(self.back, NarrowBack) else self.back

    @property
    def back_settings(self) -> Any:
        """The Hugging Face settings of the back's model, which Trainer and peft look for."""
        return self._plain_back.model.config


def split_model(
    model: PreTrainedModel, cut: str | Cut, *, width: int | None = None, allow_vocabulary_head: bool = False
) -> Split:
    """Cut a Hugging Face model in two at a named point.

    ``width`` puts dimension maps to so many columns in between. ``allow_vocabulary_head`` lets a masked-LM
    head, whose weight is as large as the vocabulary, go to the provider.
    """
    front, back = carve(model, cut, allow_vocabulary_head=allow_vocabulary_head)
    if width is None:
        return Split(front, back)
    return Split(*narrowed(front, back, width))


def without_maps(pair: Split) -> Split:
    """The same halves (not copies) without the dimension maps between them."""
    front = pair.front.front if isinstance(pair.front, NarrowFront) else pair.front
    back = pair.back.back if isinstance(pair.back, NarrowBack) else pair.back
    return Split(front, back)
