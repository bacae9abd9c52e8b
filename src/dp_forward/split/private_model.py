"""Front, sanitizer and back as one ordinary module, for training and experiments.

`join` gives an `nn.Module` that takes what the model took and returns what the model returned, so Trainer,
accelerate and peft work on it. The noise is simulated; a provider never runs this object, only the back.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from dp_forward.errors import InvalidInput
from dp_forward.noise import ProjectedSanitizer, Sanitizer
from dp_forward.privacy import TOKEN, Budget, Guarantee, NormBound, Unit
from dp_forward.privacy.checks import count
from dp_forward.privacy.units import refuse_where_rows_mix
from dp_forward.split.cut_modules import QkvHead
from dp_forward.split.halves import Front, Split

__all__ = ["PrivateModel", "join", "join_qkv"]


class PrivateModel(nn.Module):
    """``back(sanitizer(front(text)))``; without a sanitizer, the undefended model cut in two.

    Guarantees:
        What the back reads went through the sanitizer, in training and in evaluation alike (but for public
        text: `train.pretrain`).
    Edges:
        ``draws`` noisy matrices per text are used in training (labels are repeated to fit), one in
        evaluation.
    """

    def __init__(self, pair: Split, sanitizer: Sanitizer | ProjectedSanitizer | None, draws: int) -> None:
        super().__init__()
        self.front, self.sanitizer, self.back = pair.front, sanitizer, pair.back
        self.config = pair.config
        """The settings of the back's model, which Trainer and peft look for."""
        self.draws = count("draws", draws, remedy="Use 1, or more to train on several draws of one text.")

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        """What the whole model would return, computed through the noise."""
        hidden = self.front(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            pixel_values=pixel_values,
        )
        draws = self.draws if self.training else 1
        if self.sanitizer is not None:
            hidden = self._noisy(hidden, draws)
            if labels is not None and draws > 1:
                labels = labels.repeat_interleave(draws, dim=0)
        return self.back(hidden, labels=labels)

    def _noisy(self, hidden: Tensor, draws: int) -> Tensor:
        assert self.sanitizer is not None
        noisy: Tensor = self.sanitizer(hidden, draws=draws)
        return noisy

    def guarantee(self, **details: Any) -> Guarantee:
        """What a query through this front and mechanism promises."""
        if self.sanitizer is None:
            raise InvalidInput("sanitizer", "be there for a guarantee", None, "Join with a Sanitizer.")
        return self.sanitizer.guarantee(**details)


def join(pair: Split, sanitizer: Sanitizer | None = None, *, draws: int = 1) -> PrivateModel:
    """The two halves with the noise in between, as one module.

    Edges:
        A promise per token or phrase is refused unless the front computes each row from its own token
        (the cuts `embeddings` and `encoder.1.qkv`): elsewhere one token moves every row.
    """
    if sanitizer is not None and sanitizer.bound.over == "row":
        front = pair.front
        refuse_where_rows_mix("sanitizer", sanitizer.mechanism.unit, row_local=front.row_local, cut=front.cut)
    return PrivateModel(pair, sanitizer, draws)


def join_qkv(
    pair: Split,
    budget: Budget,
    *,
    bound: NormBound,
    unit: Unit = TOKEN,
    seed: int | None = None,
    draws: int = 1,
) -> PrivateModel:
    """The joint release of Q, K and V at the cut `encoder.1.qkv`: rows bounded, projected, noised once.

    Edges:
        While the projections train, their largest singular value is certified anew in every step, which takes
        a decomposition of a [width, 3 width] matrix.
    """
    opened, projections = open_at_qkv(pair)
    sanitizer = ProjectedSanitizer(projections, budget, bound=bound, unit=unit, seed=seed)
    return PrivateModel(opened, sanitizer, draws)


def open_at_qkv(pair: Split) -> tuple[Split, nn.ModuleList]:
    """A pair whose front stops at the rows before Q, K and V, and the projections that come next.

    The bound of a joint release stands *before* the projection, so the front must give the rows that the
    projections read, and the projections follow the bound on the user's side.

    Guarantees:
        ``cat([p(rows) for p in projections])`` is what the front gave before; the given pair is untouched.
    """
    if pair.cut.point != "qkv" or not isinstance(pair.front, Front):
        raise InvalidInput("cut", "be encoder.1.qkv, without maps", str(pair.cut), "Split again there.")
    front = copy.deepcopy(pair.front)
    head = next(module for module in front.modules() if isinstance(module, QkvHead))
    projections = head.projections
    head.projections = nn.ModuleList([nn.Identity()])
    front.width = int(front.model.config.hidden_size)  # type: ignore[union-attr,arg-type]
    return Split(front, pair.back), projections
