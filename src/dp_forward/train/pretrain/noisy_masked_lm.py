"""A masked LM with the noise at its cut, for training on public text at one place."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.noise.bounding import apply_bound
from dp_forward.privacy import Guarantee
from dp_forward.split import Split, split_model
from dp_forward.split.private_model import PrivateModel


def split_tied(model: Any, cut: str) -> Split:
    """The two halves of a masked LM, whose parameters are those of the model: training them trains it.

    Cutting copies a tied table (the masked-LM decoder is the token table) into both halves, where training
    would move the copies apart, and an ordinary checkpoint has room for one. So each tensor of the whole
    model is put into the halves again, in however many places it stands. Which one went where is not written
    down for each family and cut: a copy of the model whose n-th tensor holds the number n is cut in the same
    way, and the halves are read.

    Guarantees:
        A tensor of the model that both halves need is one parameter of both, so the halves train as the whole
        model would. Without noise the model computes what the halves do, bit for bit, at every cut that drops
        no residual.
    Edges:
        Not for a provider: the back holds the token table, and shares it with the front. ALBERT's one block
        is likewise shared by both halves.
    """
    numbered = copy.deepcopy(model).float()
    with torch.no_grad():
        for number, parameter in enumerate(numbered.parameters()):
            parameter.fill_(number)  # float32 counts exactly beyond any model's number of tensors
    own, pair = list(model.parameters()), split_model(model, cut, allow_vocabulary_head=True)
    places = split_model(numbered, cut, allow_vocabulary_head=True)
    for half, found in ((pair.front, places.front), (pair.back, places.back)):
        for place, parameter in found.named_parameters(remove_duplicate=False):
            owner, _, name = place.rpartition(".")
            setattr(half.get_submodule(owner), name, own[int(parameter.flatten()[0])])
    return pair


class NoisyMaskedLM(PrivateModel):
    """``back(sanitizer(front(block)))`` with a masked-LM head.

    Guarantees:
        The state dict names each tensor once, so it can be written as safetensors, and is loaded in full. In
        evaluation the back reads noisy matrices only, with all of the noise.
    Edges:
        A frozen front gets no gradient and runs as in evaluation, without dropout; a tied decoder is frozen
        with it. ``least_noise`` below 1 softens the noise while training, text by text (`soften`).
    """

    def __init__(
        self,
        pair: Split,
        sanitizer: Sanitizer | None,
        draws: int,
        *,
        freeze_front: bool,
        least_noise: float = 1.0,
    ) -> None:
        super().__init__(pair, sanitizer, draws)
        self._least_noise = least_noise
        self._frozen = freeze_front
        if freeze_front:
            self.front.requires_grad_(False)
        first: dict[int, str] = {}
        self._aliases = {
            name: first[id(parameter)]
            for name, parameter in self.named_parameters(remove_duplicate=False)
            if first.setdefault(id(parameter), name) != name
        }
        untyped: Any = self
        untyped.register_state_dict_post_hook(_without_aliases)
        untyped.register_load_state_dict_pre_hook(_with_aliases)

    def _noisy(self, hidden: Tensor, draws: int) -> Tensor:
        noisy = super()._noisy(hidden, draws)
        if not self.training or self._least_noise == 1:
            return noisy
        assert isinstance(self.sanitizer, Sanitizer)
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            inside = apply_bound(hidden, self.sanitizer.bound).repeat_interleave(draws, dim=0)
            return soften(inside, noisy, least=self._least_noise).to(noisy.dtype)

    def guarantee(self, **details: Any) -> Guarantee:
        """As everywhere, but softened noise promises nothing."""
        if self._least_noise < 1:
            rule = "be 1 for a guarantee, which needs all of the noise"
            remedy = "Cut the finished checkpoint and join it with a Sanitizer."
            raise InvalidInput("least_noise", rule, self._least_noise, remedy)
        return super().guarantee(**details)

    def train(self, mode: bool = True) -> NoisyMaskedLM:
        """As everywhere, but a frozen front stays in evaluation."""
        super().train(mode)
        if self._frozen:
            self.front.train(False)
        return self


def soften(inside: Tensor, noisy: Tensor, *, least: float) -> Tensor:
    """Part of the way from the bounded to the noisy matrix, for any mechanism: a share of its own per text.

    The noise of a text-level budget lets a few bits of a whole text across at most, and a masked LM that
    meets nothing else forgets more than it learns. With shares between ``least`` and 1, as often in one
    octave as in another, it keeps more of what it knew, and fine-tuning through all of the noise then reaches
    more (docs/paper/pretraining.md).

    Guarantees:
        None: for public text in training only. Nothing that went through here may be released.
    """
    octaves = torch.rand(len(noisy), 1, 1, device=noisy.device)
    return inside + least**octaves * (noisy - inside)


def _without_aliases(module: NoisyMaskedLM, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for alias in module._aliases:
        state.pop(prefix + alias, None)


def _with_aliases(module: NoisyMaskedLM, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for alias, name in module._aliases.items():
        if prefix + name in state:
            state.setdefault(prefix + alias, state[prefix + name])
