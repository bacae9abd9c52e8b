"""The leak check: is what crosses really one tensor, and nothing else?

A pair that fails is refused with the reason. Checked are

* *one input*: `torch.export` of the back shows exactly one user input;
* *no vocabulary*: no parameter of the back is as large as the vocabulary (but of an allowed masked-LM head);
* *one shape*: texts of different length, padding and token types give hidden matrices of one shape;
* *no shared memory*: no parameter or buffer of the back lies in the front's memory;
* *no side channel*: for one fixed hidden matrix the back's output is the same, bit for bit, whichever text
  the front has read before, of whatever length, padding and token types, and has no gradient to the front;
* *equality*: without noise, back(front(x)) is the whole model's output as exactly as `CutInfo.exact` says
  (where no residual is dropped). A skip connection around the cut shows here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dp_forward.errors import InvalidInput
from dp_forward.split.halves import Split

__all__ = ["check_split"]


@dataclass(frozen=True, slots=True)
class LeakReport:
    """What the check found; `refuse` raises if anything is wrong."""

    back_inputs: int
    max_abs_difference: float | None
    problems: tuple[str, ...]

    def refuse(self) -> None:
        """Raise with the first problem, in one line."""
        if self.problems:
            rule = "send one tensor and nothing else across the cut"
            raise InvalidInput("model", rule, self.problems[0], "Do not use it.")


def sample_inputs(model: PreTrainedModel, *, rows: int, seed: int) -> dict[str, Tensor]:
    """Random inputs of the model's kind: pixels for images, else token ids of ``rows`` tokens."""
    stream = torch.Generator().manual_seed(seed)
    settings = model.config
    if hasattr(settings, "image_size"):
        size = settings.image_size
        return {"pixel_values": torch.randn(2, settings.num_channels, size, size, generator=stream)}
    # Without a PAD token Hugging Face's causal classifiers take one text at a time.
    texts = 2 if settings.pad_token_id is not None else 1
    ids = torch.randint(5, settings.vocab_size, (texts, rows), generator=stream)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def check_split(pair: Split, model: PreTrainedModel, *, rows: int = 8) -> LeakReport:
    """Run all the checks on a pair made from ``model``."""
    inputs = sample_inputs(model, rows=rows, seed=0)
    modes = [(part, part.training) for part in (pair.front, pair.back, model)]
    try:
        for part, _ in modes:
            part.eval()
        with torch.no_grad():
            hidden = pair.front(**inputs)
        problems = list(_leaks(pair, model, inputs, hidden))
        exported = torch.export.export(pair.back, (hidden,), strict=False)
        count = len(exported.graph_signature.user_inputs)
        if count != 1:
            problems.append(f"the back takes {count} inputs")
        difference = _difference(pair, model, inputs)
        # Not at all, but for the rounding of a causal head at `output`.
        if difference is not None and difference > (0.0 if pair.back.exact else 1e-5):
            found = f"the halves differ from the whole by {difference:.3g}"
            problems.append(f"{found}: something else crosses the cut")
    finally:
        for part, training in modes:
            part.train(training)
    return LeakReport(count, difference, tuple(problems))


def _leaks(pair: Split, model: PreTrainedModel, inputs: dict[str, Tensor], hidden: Tensor) -> Iterator[str]:
    vocabulary = getattr(model.config, "vocab_size", None)
    if vocabulary and not pair.back.vocabulary_head:
        for name, parameter in pair.back.named_parameters():
            if vocabulary in parameter.shape:
                yield f"the back holds {name}, as large as the vocabulary"
    if not {t.data_ptr() for t in _tensors(pair.front)}.isdisjoint(t.data_ptr() for t in _tensors(pair.back)):
        yield "front and back share memory"
    for other in _variants(inputs):
        with torch.no_grad():
            if pair.front(**other).shape != hidden.shape:
                yield "the shape of what crosses depends on the text"
    if _remembers(pair, model, hidden):
        yield "the back's output depends on what the front has read before"
    if _reaches_front(pair, inputs):
        yield "a gradient reaches the front past the cut"


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.numel():
            yield tensor


def _variants(inputs: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The same inputs as shorter texts, padded on either side, with other token types."""
    if "input_ids" not in inputs:
        return
    for keep in (slice(0, 3), slice(-3, None)):
        mask = torch.zeros_like(inputs["attention_mask"])
        mask[:, keep] = 1
        yield inputs | {"attention_mask": mask, "token_type_ids": 1 - mask}


def _outputs(result: Any) -> dict[str, Tensor]:
    return {name: value for name, value in result.items() if isinstance(value, Tensor)}


def _remembers(pair: Split, model: PreTrainedModel, hidden: Tensor) -> bool:
    """Whether the answer to one matrix changes with the text, its length or its padding."""
    texts = [sample_inputs(model, rows=hidden.shape[1], seed=seed) for seed in (1, 2)]
    seen = []
    for text in (*texts, *_variants(texts[0])):
        with torch.no_grad():
            pair.front(**text)
            seen.append(_outputs(pair.back(hidden.clone())))
    return any(not torch.equal(value, later[name]) for later in seen[1:] for name, value in seen[0].items())


def _reaches_front(pair: Split, inputs: dict[str, Tensor]) -> bool:
    weights = [p for p in pair.front.parameters() if p.requires_grad]
    answer = _outputs(pair.back(pair.front(**inputs).detach()))
    total = torch.stack([value.float().sum() for value in answer.values()]).sum()
    if not weights or not total.requires_grad:
        return False
    gradients = torch.autograd.grad(total, weights, allow_unused=True)
    return any(gradient is not None for gradient in gradients)


def _difference(pair: Split, model: PreTrainedModel, inputs: dict[str, Tensor]) -> float | None:
    """The largest difference in what the back returns; None where a residual is dropped or maps are used."""
    if not pair.comparable:
        return None
    with torch.no_grad():
        whole, halves = model(**inputs), _outputs(pair.back(pair.front(**inputs)))
    return max(float((whole[name] - value).abs().max()) for name, value in halves.items())
