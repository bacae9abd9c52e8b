"""The modules that train: front, bound, noise and back with their loss, or the back alone on releases.

    loss = loss(back(noise(bound(front(text))))) + weight * loss(auxiliary(pooled clean hidden at the cut))

The auxiliary head reads the hidden matrix *before* the noise, while the front trains. It makes the front put
the label into few directions, which survive the noise. It belongs only where the front may see the texts.

Guarantees:
    In evaluation, and in training unless ``clean`` is set, the back reads noisy matrices only.
Edges:
    The front may be given batches cut to their longest text: what crosses has ``rows`` rows, and those of PAD
    are zero at the cut (`split.Front`).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dp_forward.noise import Sanitizer
from dp_forward.noise.bounding import apply_bound
from dp_forward.split import Split
from dp_forward.split.halves import AnswerBack, AnyBack, NarrowBack, NarrowFront
from dp_forward.train.label_debiasing import LabelLoss

__all__ = ["NoisyModel"]


class NoisyModel(nn.Module):
    """What the Trainer trains wherever the front trains, or is evaluated."""

    def __init__(
        self,
        pair: Split,
        sanitizer: Sanitizer | None,
        *,
        rows: int,
        labels: int,
        draws: int = 1,
        auxiliary_weight: float = 0.0,
        auxiliary_alone: bool = False,
        loss: LabelLoss | None = None,
    ) -> None:
        super().__init__()
        self.front, self.back, self.sanitizer = pair.front, pair.back, sanitizer
        self.rows = 1 if pair.cut.place == "output" else rows
        self.draws = draws
        self.auxiliary_weight = auxiliary_weight
        self.auxiliary = AuxiliaryHead(pair, labels) if auxiliary_weight else None
        self.auxiliary_alone = auxiliary_alone and self.auxiliary is not None
        """Whether the blocks of the front learn from the auxiliary loss alone."""
        self.loss = LabelLoss() if loss is None else loss
        self.clean = False
        """Whether the noise is left out (the bound stays): for a warm-up, and to measure what it costs."""

    # Named one by one: Trainer would read `**inputs` as "this model scales its own loss".
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Logits, and the loss where labels are given; ``draws`` noisy matrices per text while training."""
        texts = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        wide, hidden = self._read(**texts)
        times = self.draws if self.training and self.sanitizer is not None and not self.clean else 1
        logits: Tensor = self.back(self.add_noise(hidden, times=times)).logits
        if labels is None:
            return {"logits": logits}
        loss = self.loss(logits, labels.repeat_interleave(times, dim=0) if times > 1 else labels)
        if self.training and self.auxiliary is not None:
            inside = hidden if self.sanitizer is None else apply_bound(hidden, self.sanitizer.bound)
            read = self.auxiliary(wide, inside, attention_mask)
            loss = loss + self.auxiliary_weight * self.loss(read, labels)
        return {"loss": loss, "logits": logits}

    def hidden(self, **texts: Tensor) -> Tensor:
        """The front's matrix, with all ``rows`` rows."""
        return self._read(**texts)[1]

    def _read(self, **texts: Tensor | None) -> tuple[Tensor, Tensor]:
        """The hidden matrix before the map M1 (where there is one), and after it with all ``rows`` rows."""
        front = self.front
        wide: Tensor = front.rows(**texts) if isinstance(front, NarrowFront) else front(**texts)
        crossing = wide.detach() if self.auxiliary_alone and self.training else wide
        hidden: Tensor = front.narrow(crossing) if isinstance(front, NarrowFront) else crossing
        missing = self.rows - hidden.shape[1]
        return wide, functional.pad(hidden, (0, 0, 0, missing)) if missing > 0 else hidden

    def new_parameters(self) -> list[nn.Parameter]:
        """Those that start from random weights: the maps, the head, the auxiliary head."""
        found = [] if self.auxiliary is None else list(self.auxiliary.parameters())
        if isinstance(self.front, NarrowFront):
            found += list(self.front.narrow.parameters())
        return found + _new_parameters(self.back)

    def add_noise(self, hidden: Tensor, *, times: int = 1) -> Tensor:
        """What the back reads: ``times`` noisy matrices for each text."""
        if self.sanitizer is None:
            return hidden
        if self.clean:
            with torch.autocast(device_type=hidden.device.type, enabled=False):
                return apply_bound(hidden, self.sanitizer.bound).to(hidden.dtype)
        return self.sanitizer(hidden, draws=times)  # type: ignore[no-any-return]


class AuxiliaryHead(nn.Module):
    """A linear label head on the clean hidden matrix at the cut; used in training only.

    It reads the mean row before M1, or the sum of the bounded rows at `embeddings`.
    """

    def __init__(self, pair: Split, labels: int) -> None:
        super().__init__()
        self._sums_rows = pair.cut.place == "embeddings"
        inner = pair.front.plain if isinstance(pair.front, NarrowFront) else pair.front
        self.read = nn.Linear((pair.front if self._sums_rows else inner).width, labels)

    def forward(self, wide: Tensor, inside: Tensor, mask: Tensor | None) -> Tensor:
        if self._sums_rows:
            pooled = inside.sum(dim=1)
        elif mask is None or wide.shape[1] == 1:
            pooled = wide.mean(dim=1)
        else:  # rows of PAD are zero and do not count
            pooled = wide.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return self.read(pooled.to(self.read.weight.dtype))  # type: ignore[no-any-return]


class ReleaseReader(nn.Module):
    """The back with the loss that trains it on stored releases."""

    def __init__(self, back: AnyBack, loss: LabelLoss) -> None:
        super().__init__()
        self.back, self.loss = back, loss

    def new_parameters(self) -> list[nn.Parameter]:
        return _new_parameters(self.back)

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits: Tensor = self.back(hidden).logits
        return {"logits": logits} if labels is None else {"loss": self.loss(logits, labels), "logits": logits}


def _new_parameters(back: AnyBack) -> list[nn.Parameter]:
    """The map M2 and the head of a back."""
    if isinstance(back, AnswerBack):
        return list(back.parameters())
    found = list(back.widen.parameters()) if isinstance(back, NarrowBack) else []
    model = back.plain.model
    body = f"{getattr(model, 'base_model_prefix', '')}."
    return found + [value for name, value in model.named_parameters() if not name.startswith(body)]
