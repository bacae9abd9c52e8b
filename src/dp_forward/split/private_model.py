"""Front, sanitizer and back as one ordinary module, for training and experiments.

`private` gives it by the name of a model, `join` from halves: an `nn.Module` that takes what the model took
and returns what the model returned, so Trainer, accelerate, peft and `pipeline` work on it. The noise is
simulated; a provider never runs this object, only the back.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dp_forward.data import FixedLength
from dp_forward.data.tokens import tokens_for
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.noise import Sanitizer
from dp_forward.privacy import Guarantee, NoiseSpec
from dp_forward.privacy.checks import count
from dp_forward.privacy.units import refuse_where_rows_mix
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split.artifacts import load_provider_side, load_user_side, save_sides
from dp_forward.split.halves import Split
from dp_forward.split.pretrained import load_model, load_tokenizer
from dp_forward.split.surgery import split_model
from dp_forward.storage.stores import Place

__all__ = ["PrivateModel", "join", "private"]


class PrivateModel(nn.Module):
    """``back(sanitizer(front(text)))``; without a ``sanitizer``, the undefended model cut in two.

    Guarantees:
        What the back reads went through the sanitizer, in training and in evaluation alike (but for public
        text: `train.pretrain`).
    Edges:
        ``draws`` noisy matrices per text are used in training, one in evaluation. Where the number of rows
        that cross is known (``spec``), a shorter batch is padded with zero rows, and a longer one refused.
    """

    def __init__(
        self,
        pair: Split,
        sanitizer: Sanitizer | None,
        draws: int,
        spec: ReleaseSpec | None = None,
        tokens: FixedLength | None = None,
    ) -> None:
        super().__init__()
        self.front, self.sanitizer, self.back = pair.front, sanitizer, pair.back
        self.spec, self.tokens = spec, tokens
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
        hidden = self.front(input_ids, attention_mask, token_type_ids, pixel_values)
        hidden, draws = self._all_rows(hidden), self.draws if self.training else 1
        if self.sanitizer is not None:
            hidden = self._noisy(hidden, draws)
            if labels is not None and draws > 1:
                labels = labels.repeat_interleave(draws, dim=0)
        return self.back(hidden, labels=labels)

    def _noisy(self, hidden: Tensor, draws: int) -> Tensor:
        assert self.sanitizer is not None
        return self.sanitizer(hidden, draws=draws)  # type: ignore[no-any-return]

    def _all_rows(self, hidden: Tensor) -> Tensor:
        if self.spec is None:
            return hidden
        missing = self.spec.matrix_rows - hidden.shape[1]
        rule, remedy = f"have at most {self.spec.rows} tokens", "Tokenise with truncation=True."
        refuse_if(missing < 0, "input_ids", rule, hidden.shape[1], remedy)
        return functional.pad(hidden, (0, 0, missing, 0) if self.front.pads_left else (0, 0, 0, missing))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def tokenizer(self) -> Any:
        """Of a model that was made by name or read from a folder; it cuts to the rows that cross."""
        if self.tokens is None:
            remedy = "Take the model's tokenizer."
            raise InvalidInput("model", "be made by dpf.private", "joined halves", remedy)
        return self.tokens.tokenizer

    def save_pretrained(self, folder: Place) -> None:
        """Write what `dpf serve FOLDER/back` and `dpf ask FOLDER/front` take."""
        tokenizer = self.tokenizer
        assert self.spec is not None
        save_sides(Split(self.front, self.back), self.spec, tokenizer, folder)

    @classmethod
    def from_pretrained(cls, folder: Place, *, draws: int = 1, seed: int | None = None) -> "PrivateModel":
        """What `save_pretrained`, or any run, wrote; the noise is calibrated anew."""
        root = Path(folder)
        user, provider = load_user_side(root / "front"), load_provider_side(root / "back")
        if user.spec != replace(provider.spec, front=user.digest):
            raise InvalidInput("folder", "have one kind of release", "two in its halves", "Get it again.")
        return _build(Split(user.front, provider.back), provider.spec, user.tokens, draws, seed)

    def guarantee(self, **details: Any) -> Guarantee:
        """What a query through this front and mechanism promises."""
        if self.sanitizer is None:
            raise InvalidInput("sanitizer", "be there for a guarantee", None, "Join with a Sanitizer.")
        return self.sanitizer.guarantee(**details)


def private(
    model: str = "minilm",
    *,
    cut: str,
    epsilon: float,
    labels: Sequence[str],
    mechanism: str = "privunit",
    delta: float | None = None,
    rows: int = 64,
    width: int | None = None,
    draws: int = 1,
    seed: int | None = None,
    **noise: Any,
) -> PrivateModel:
    """A model by name, cut in two with noise in between, to train and to save.

    Args:
        model: a Hugging Face name or folder, or `minilm`; it gets a new head for the labels if it has none.
        cut: where; see `dpf cuts MODEL`.
        epsilon: the budget of one query.
        mechanism: the name of the noise; see `NoiseSpec`.
        labels: their names, in the order of their numbers.
        rows: the tokens that every text is cut or filled up to.
        width: the columns that cross; by default the model's own.
        draws: noisy matrices per text and step of training.
        seed: of the simulated noise.
        noise: further settings of `NoiseSpec`, such as ``unit`` or ``threshold_share``.

    Edges:
        Training it on raw texts protects later queries, and no training text.
    """
    names = tuple(map(str, labels))
    whole = load_model(model, labels=len(names)).float()  # type: ignore[no-untyped-call]
    pair = split_model(whole, cut, width=width)
    front, tokenizer = pair.front, load_tokenizer(model)
    tokenizer.model_max_length = rows
    tokens = tokens_for(front, tokenizer, rows)
    noise = {"rows": rows, "columns": front.width, **noise}
    choice = NoiseSpec(mechanism=mechanism, epsilon=epsilon, delta=delta, **noise)
    return _build(pair, ReleaseSpec.of(front, noise=choice, rows=rows, labels=names), tokens, draws, seed)


def _build(pair: Split, spec: ReleaseSpec, tokens: FixedLength, draws: int, seed: int | None) -> PrivateModel:
    """The module of these halves; its settings name the labels."""
    spec.refuse_mixed_rows(row_local=pair.front.row_local)
    sanitizer = None if spec.noise is None else Sanitizer(spec.mechanism(), seed=seed)
    made = PrivateModel(pair, sanitizer, draws, spec, tokens)
    made.config.id2label = dict(enumerate(spec.labels))
    made.config.label2id = {label: number for number, label in enumerate(spec.labels)}
    return made


def join(pair: Split, sanitizer: Sanitizer | None = None, *, draws: int = 1) -> PrivateModel:
    """The halves and a ``sanitizer``, or none, as one module, trained on ``draws`` noisy matrices per text.

    Edges:
        A promise per token or phrase is refused unless the front computes each row from its own token
        (the cuts `embeddings` and `encoder.1.qkv`): elsewhere one token moves every row.
    """
    if sanitizer is not None and sanitizer.bound.over == "row":
        front = pair.front
        refuse_where_rows_mix("sanitizer", sanitizer.mechanism.unit, row_local=front.row_local, cut=front.cut)
    return PrivateModel(pair, sanitizer, draws)
