"""The two halves of a model: `Front` runs with the user, `Back` with the provider.

Dimension maps may stand between them: M1 (d to d') at the end of the front (`NarrowFront`), M2 (d' to d) at
the start of the back (`NarrowBack`). A learned M1 puts what matters into few directions, where a
direction-preserving mechanism keeps it. It has no bias and maps row by row, so rows of padding stay zero.

Between the blocks of a pre-norm model a row is a sum that no norm has touched, and one row of a text (the
first, in a decoder) may be a hundred times as long as all others: bounded together, nothing of them is left.
So there M1 reads rows that are *level*, none longer than is usual at the cut, and what M2 gives is made as
long as is usual again. What is usual is measured on a public row of token numbers, when the model is cut.

At `output` a front may also end in a public projection, and then in K scores that were learnt from releases
(`ReadoutFront`); their back (`AnswerBack`) says how likely each label is, given one noisy answer.

Paper: the dimension reduction of the embedding matrix.
"""

import copy
from typing import Any, Final, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.split.cut import Cut
from dp_forward.split.families import family_of, head_of
from dp_forward.split.legal_cuts import CutInfo

__all__ = [
    "AnswerBack",
    "AnyBack",
    "AnyFront",
    "Front",
    "NarrowBack",
    "NarrowFront",
    "ReadoutFront",
    "Split",
    "note_seen_texts",
]


SEEN_TEXTS: Final = "seen_texts"


def note_seen_texts(settings: dict[str, Any], commitment: str) -> None:
    """Add a commitment to the settings of a model or a half, before it sees the texts."""
    settings[SEEN_TEXTS] = sorted({*settings.get(SEEN_TEXTS, ()), commitment})


class _Half(nn.Module):
    """What both halves know of themselves: enough to build a model of the same shape and cut it again."""

    def __init__(self, model: nn.Module, info: CutInfo, whole: Any) -> None:
        super().__init__()
        self.model = model
        self.cut: Cut = info.cut
        self.width = info.width
        self.exact = info.exact
        """Whether both halves together are the whole model bit for bit; see `CutInfo.exact`."""
        self.architecture = type(whole).__name__
        """The Hugging Face class of the whole model."""
        self.settings: dict[str, Any] = copy.deepcopy(whole.config.to_dict())
        """The Hugging Face settings of the whole model."""
        self.vocabulary_head = head_of(whole) == "masked_lm"
        """Whether the back holds a decoder with one row per token."""
        self.pooling = info.pooling
        """What `output` was told to read; None for what the model's own head reads."""
        self._family = family_of(whole)

    @property
    def plain(self) -> Self:
        """The half without what may stand between it and the cut: itself, here."""
        return self

    @property
    def seen_texts(self) -> list[str]:
        """Commitments to the texts that it was trained on raw (`ledger.text_register`), in its digest."""
        return [str(name) for name in self.settings.get(SEEN_TEXTS, ())]

    @property
    def unnormed(self) -> bool:
        """Whether rows may have any length: between the blocks of a pre-norm model, and inside of them."""
        return bool(self._family.final) and self.cut.place == "encoder"

    def extra_repr(self) -> str:
        return f"family={self._family.model_type}, cut={self.cut}, width={self.width}"


class Front(_Half):
    """From a text (or image) to the hidden matrix at the cut: [batch, rows, width]. `split_model` makes it.

    ``model`` holds the modules of this half, ``info`` its cut, and ``whole`` is the model that was cut.
    Guarantees: holds no block after the cut and no head. Rows of PAD tokens come out as zero. Where
    `row_local` holds, row i is a function of token i (with its segment and position) alone.
    Edges: `output` gives [batch, 1, width]. Inputs that the family does not know are ignored, as Hugging
    Face does. A causal model must be padded on the left (`pads_left`); a text padded on the right is not
    refused, because an error that depends on a text would tell its length.
    """

    def __init__(self, model: nn.Module, info: CutInfo, whole: Any) -> None:
        super().__init__(model, info, whole)
        self.row_local = info.cut.row_local
        self.pads_left = self._family.causal
        self.prompt: str | None = None
        """The public template that its texts are put into (`data.tokens`); `split_model` sets it."""
        self._readout = info.readout
        self.max_rows: int | None = None
        """The most rows for which the model has positions; None for images, whose size is fixed."""
        most = self.settings.get("max_position_embeddings") or self.settings.get("n_positions")
        if "input_ids" in self._family.inputs and most is not None:
            offset = self.settings["pad_token_id"] + 1 if self._family.positions_after_pad else 0
            self.max_rows = int(most) - offset

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
    ) -> Tensor:
        """The matrices at the cut [texts, rows, width]."""
        texts = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        given = {**texts, "pixel_values": pixel_values}
        inputs: dict[str, Any] = {key: given[key] for key in self._family.inputs if given[key] is not None}
        self._check(inputs)
        if self._family.positions_after_pad:
            # By place alone. Hugging Face counts the tokens that are not PAD: the same for a text padded on
            # the right, but it lets one token move the rows of later ones.
            ids, first = inputs["input_ids"], int(self.settings["pad_token_id"]) + 1
            places = torch.arange(first, first + ids.shape[1], device=ids.device)
            inputs["position_ids"] = places.expand(ids.shape)
        mask = inputs.get("attention_mask")
        if self._family.causal and self._readout is not None and mask is not None:
            # Padding comes first: the first token of a text is at position 0, wherever it stands.
            inputs["position_ids"] = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        if self._readout == "mean2":
            inputs["output_hidden_states"] = True
        output = self.model(**inputs)
        if self._readout is not None:
            return self._read(output, mask)
        rows: Tensor = output.last_hidden_state
        if self._family.fold_qkv and self.cut.point == "qkv":
            # Hugging Face viewed the wide rows as more records of its own width; the memory is in order.
            rows = rows.reshape(*inputs["input_ids"].shape, self.width)
        # Filled, not multiplied: a PAD row may hold NaN, and NaN times zero is NaN.
        return rows if mask is None else rows.masked_fill((mask == 0).unsqueeze(-1), 0.0)

    def _check(self, inputs: dict[str, Any]) -> None:
        """Only shapes are looked at: they are public, the text is not."""
        main = self._family.inputs[0]
        if main not in inputs:
            raise InvalidInput(main, "be given", "nothing", f"A {self._family.model_type} front reads it.")
        mask, rows = inputs.get("attention_mask"), inputs[main].shape[-1]
        if mask is not None and mask.shape != inputs[main].shape:
            shapes = f"{tuple(mask.shape)} for {tuple(inputs[main].shape)}"
            raise InvalidInput("attention_mask", "be shaped as input_ids", shapes, "Use the tokenizer's.")
        if self.max_rows is not None and rows > self.max_rows:
            rule = f"have at most {self.max_rows} tokens, the positions of the model"
            raise InvalidInput(main, rule, rows, "Tokenise to a smaller fixed length.")

    def _read(self, output: Any, mask: Tensor | None) -> Tensor:
        if self._readout == "pooler":
            return output.pooler_output[:, None]  # type: ignore[no-any-return]
        rows: Tensor = output.last_hidden_state
        if self._readout == "first":
            return rows[:, :1]
        if self._readout == "last":
            return rows[:, -1:]
        if self._readout == "mean2":
            means = [_mean_row(state, mask) for state in output.hidden_states[-2:]]
            return sum((functional.normalize(mean, dim=-1) for mean in means), torch.zeros_like(means[0]))
        return _mean_row(rows, mask)


class Back(_Half):
    """From the hidden matrix at the cut to the Hugging Face output of the whole model.

    ``model``, ``info`` and ``whole`` are as of `Front`.
    Guarantees: one input. No mask, token type, position or length reaches it: it attends to all rows, and
    Hugging Face builds its own (full or causal) mask and rotary positions from the shape. Holds no token
    table, no embeddings and no block before the cut.
    Edges: at `output` of a bare model the one row comes back as `pooler_output`, and nothing else does. A
    causal classifier reads the last row; Hugging Face warns once that it cannot see padding; it shall not.
    """

    def __init__(self, model: nn.Module, info: CutInfo, whole: Any) -> None:
        super().__init__(model, info, whole)
        self._bare = head_of(whole) == "bare"

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Any:
        """What the whole model would return for these matrices."""
        rows = "1" if self.cut.place == "output" else "rows"
        wrong_rows = hidden.ndim == 3 and rows == "1" and hidden.shape[1] != 1
        if hidden.ndim != 3 or hidden.shape[-1] != self.width or wrong_rows:
            rule = f"have the shape [batch, {rows}, {self.width}] at {self.cut}"
            raise InvalidInput("hidden", rule, tuple(hidden.shape), "Use the front of the same cut.")
        if labels is not None and self._bare:
            raise InvalidInput("labels", "be None for a bare model", "a tensor", "Load it with a head.")
        known = {} if labels is None else {"labels": labels}
        return self.model(**{self._family.back_input: hidden}, **known)


def _mean_row(rows: Tensor, mask: Tensor | None) -> Tensor:
    weights = torch.ones(rows.shape[:2], device=rows.device, dtype=torch.bool) if mask is None else mask
    total = (rows * weights.unsqueeze(-1)).sum(dim=1)
    return (total / weights.sum(dim=1, keepdim=True))[:, None]


class _LongerFront(nn.Module):
    """A front and the maps to ``width`` columns that stand behind it, with the user."""

    def __init__(self, front: Front, width: int) -> None:
        super().__init__()
        self.front = front
        self.cut, self.row_local, self.width = front.cut, front.row_local, width
        self.max_rows, self.pads_left, self.prompt = front.max_rows, front.pads_left, front.prompt

    @property
    def plain(self) -> Front:
        return self.front


class NarrowFront(_LongerFront):
    """A front followed by M1."""

    def __init__(self, front: Front, width: int) -> None:
        super().__init__(front, width)
        self.narrow = nn.Linear(front.width, width, bias=False)
        nn.init.orthogonal_(self.narrow.weight)
        self.usual_length = _unmeasured(front)

    def rows(self, *args: Any, **kwargs: Any) -> Tensor:
        """What M1 reads: the front's rows, none longer than sqrt(columns) where no norm has touched them."""
        rows: Tensor = self.front(*args, **kwargs)
        if self.usual_length is None:
            return rows
        lengths = torch.maximum(rows.norm(dim=-1, keepdim=True), self.usual_length)
        return rows * (rows.shape[-1] ** 0.5 / lengths)  # type: ignore[no-any-return]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.narrow(self.rows(*args, **kwargs))  # type: ignore[no-any-return]


class NarrowBack(nn.Module):
    """M2 followed by a back."""

    def __init__(self, back: Back, width: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, back.width)
        self.back = back
        self.usual_length = _unmeasured(back)
        self.cut, self.width = back.cut, width
        self.vocabulary_head, self.exact = back.vocabulary_head, back.exact

    @property
    def plain(self) -> Back:
        return self.back

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Any:
        rows = self.widen(hidden)
        if self.usual_length is not None:
            rows = functional.normalize(rows, dim=-1) * self.usual_length
        return self.back(rows, labels=labels)


class ReadoutFront(_LongerFront):
    """A front at `output`, a public projection to ``width`` columns, and with ``labels`` also K scores.

    Guarantees: the direction of a text, [batch, 1, width] of norm 1, or [batch, 1, K], linear in it.
    """

    def __init__(self, front: Front, width: int, labels: int | None = None) -> None:
        super().__init__(front, labels or width)
        if front.cut.place != "output":
            raise InvalidInput("front", "be cut at output", str(front.cut), "One row is projected.")
        self.project = nn.Linear(front.width, width)
        self.decide = None if labels is None else nn.Linear(width, labels)

    def with_scores(self, weights: Tensor, biases: Tensor) -> Self:
        """The same front and projection (not copies), and behind them these scores [K, width], [K]."""
        made = type(self)(self.front, self.project.out_features, len(biases))
        made.project = self.project
        assert made.decide is not None
        with torch.no_grad():
            made.decide.weight.copy_(weights)
            made.decide.bias.copy_(biases)
        return made

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        row = functional.normalize(self.front(*args, **kwargs), dim=-1)
        direction: Tensor = functional.normalize(self.project(row), dim=-1)
        return direction if self.decide is None else self.decide(direction)


class AnswerBack(nn.Module):
    """From one noisy answer among ``labels``, as a row of zeros and a one, to the logits of the labels."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.answer = nn.Linear(labels, labels)
        self.cut, self.width = Cut("output"), labels
        self.vocabulary_head, self.exact = False, False

    @property
    def plain(self) -> Self:
        return self

    @classmethod
    def of(cls, transition: Tensor) -> Self:
        """The back for answers by this channel [K, K], row: decision, column: answer.

        Its probabilities are those of the decision given the answer, all labels being alike beforehand.
        """
        back = cls(len(transition))
        with torch.no_grad():
            back.answer.weight.copy_(transition.log())
            back.answer.bias.zero_()
        return back

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.answer(hidden[:, 0])
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


AnyFront = Front | NarrowFront | ReadoutFront
AnyBack = Back | NarrowBack | AnswerBack


class Split(NamedTuple):
    """The user's front and the provider's back, made from copies; the model itself is untouched."""

    front: AnyFront
    back: AnyBack

    @property
    def cut(self) -> Cut:
        """Where the model was cut."""
        return self.front.cut

    @property
    def comparable(self) -> bool:
        """Whether the halves compute what the whole model does: no residual dropped, no maps in between."""
        front = self.front
        return not self.cut.drops_residual and isinstance(front, Front) and front.pooling is None

    @property
    def config(self) -> Any:
        """The Hugging Face settings of the back's model, or of the front's where the back has none."""
        half = self.front if isinstance(self.back, AnswerBack) else self.back
        return half.plain.model.config


def _unmeasured(half: Front | Back) -> nn.Buffer | None:
    """A place for the usual length of a row, stored with the weights; None where rows are normed."""
    return nn.Buffer(torch.ones(())) if half.unnormed else None


@torch.no_grad()
def _usual_length(front: Front) -> Tensor:
    """The median length of the rows of 64 token numbers spread over the table, or of a blank image."""
    settings, device = front.settings, next(front.parameters()).device
    if "pixel_values" in front._family.inputs:
        side, dtype = settings["image_size"], next(front.parameters()).dtype
        given = {"pixel_values": torch.zeros(1, settings["num_channels"], side, side, dtype=dtype)}
    else:
        numbers = torch.linspace(0, settings["vocab_size"] - 1, min(64, front.max_rows or 64))
        given = {"input_ids": numbers.long()[None]}
    trained = front.training
    rows = front.train(False)(**{name: value.to(device) for name, value in given.items()})
    front.train(trained)
    return rows.float().norm(dim=-1).median().clamp(min=1e-6)  # type: ignore[no-any-return]


def add_width_maps(front: Front, back: Back, width: int) -> Split:
    """Put maps to ``width`` columns between two halves; M2 starts as the transpose of M1."""
    width = count("width", width, at_least=2, remedy="One number, normalised, is only a sign.")
    if width >= front.width:
        raise InvalidInput("width", f"be below the hidden width {front.width}", width, "Leave it out.")
    narrow_front, narrow_back = NarrowFront(front, width), NarrowBack(back, width)
    with torch.no_grad():
        narrow_back.widen.weight.copy_(narrow_front.narrow.weight.T)
        narrow_back.widen.bias.zero_()
        if narrow_front.usual_length is not None and narrow_back.usual_length is not None:
            narrow_front.usual_length.copy_(_usual_length(front))
            narrow_back.usual_length.copy_(narrow_front.usual_length)
    return Split(narrow_front, narrow_back)
