"""Two halves trained at one place, and the whole model made of them again.

Cutting copies a tied table (the masked-LM decoder is the token table) into both halves, where training would
move the copies apart, and an ordinary checkpoint has room for one. So the copies are tied again here: each
tensor of the whole model is one tensor in the halves, in however many places it stands.

Which tensor went where is not written down by hand for each family and cut: a copy of the model whose n-th
tensor holds the number n is cut in the same way, and the halves are read.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.noise.bounding import apply_bound
from dp_forward.privacy import Guarantee
from dp_forward.split import Split, split_model
from dp_forward.split.halves import Back, Front
from dp_forward.split.private_model import PrivateModel

__all__ = ["NoisyMaskedLM", "places_of", "rejoined", "softened", "tied_split"]

Places = dict[str, tuple[str, ...]]
"""Name of a parameter of the whole model -> its names in the halves (`front. ...`, `back. ...`)."""


def places_of(model: Any, cut: str) -> Places:
    """Where the parameters of a model are after the cut; a tied one may be in both halves."""
    numbered = copy.deepcopy(model).float()
    names = []
    with torch.no_grad():
        for number, (name, parameter) in enumerate(numbered.named_parameters()):
            parameter.fill_(number)  # float32 counts exactly beyond any model's number of tensors
            names.append(name)
    found: dict[str, list[str]] = {name: [] for name in names}
    for place, parameter in _named(split_model(numbered, cut, allow_vocabulary_head=True)):
        found[names[int(parameter.flatten()[0])]].append(place)
    return {name: tuple(places) for name, places in found.items()}


def tied_split(model: Any, cut: str) -> Split:
    """The two halves of a masked LM, with every tie of the whole model kept.

    Guarantees:
        A tensor of the model that both halves need is one parameter of both, so the halves train as the whole
        model would.
    Edges:
        Not for a provider: the back holds the token table, and shares it with the front. ALBERT's one block
        is likewise shared by both halves.
    """
    pair = split_model(model, cut, allow_vocabulary_head=True)
    halves = _both(pair)
    for places in places_of(model, cut).values():
        for other in places[1:]:
            owner, _, name = other.rpartition(".")
            setattr(halves.get_submodule(owner), name, halves.get_parameter(places[0]))
    return pair


def rejoined(pair: Split, *, like: Any) -> Any:
    """A whole model with the weights of the halves; ``like`` is the model that they were cut from.

    Guarantees:
        Without noise the result computes what the halves do, bit for bit, at every cut that drops no
        residual. ``like`` is untouched.
    Edges:
        Halves with maps to d' columns are refused: an ordinary model has no place for the maps. So are halves
        that hold two different versions of one tensor (cut without ``tied_split``, then trained).
    """
    if not (isinstance(pair.front, Front) and isinstance(pair.back, Back)):
        raise InvalidInput(
            "pair", "have no maps to d' columns", f"width {pair.front.width}", "Split without a width."
        )
    held, whole = dict(_named(pair)), copy.deepcopy(like)
    with torch.no_grad():
        for name, places in places_of(like, str(pair.cut)).items():
            versions = [held[place] for place in places]
            if any(not torch.equal(versions[0], version) for version in versions[1:]):
                raise InvalidInput(
                    "pair", f"hold one version of {name}", len(versions), "Cut it with tied_split."
                )
            for version in versions[:1]:
                whole.get_parameter(name).copy_(version)
    return whole


class NoisyMaskedLM(PrivateModel):
    """``back(sanitizer(front(block)))`` with a masked-LM head, for training on public text at one place.

    Guarantees:
        The state dict names each tensor once, so it can be written as safetensors, and is loaded in full. In
        evaluation the back reads noisy matrices only, with all of the noise.
    Edges:
        A frozen front gets no gradient and runs as in evaluation, without dropout; a tied decoder is frozen
        with it. ``least_noise`` below 1 softens the noise while training, text by text (`softened`); in
        evaluation all of it is there.
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
            return softened(inside, noisy, least=self._least_noise).to(noisy.dtype)

    def guarantee(self, **details: Any) -> Guarantee:
        """As everywhere, but softened noise promises nothing."""
        if self._least_noise < 1:
            raise InvalidInput(
                "least_noise",
                "be 1 for a guarantee, which needs all of the noise",
                self._least_noise,
                "Cut the finished checkpoint and join it with a Sanitizer.",
            )
        return super().guarantee(**details)

    def train(self, mode: bool = True) -> NoisyMaskedLM:
        """As everywhere, but a frozen front stays in evaluation."""
        super().train(mode)
        if self._frozen:
            self.front.train(False)
        return self


def softened(inside: Tensor, noisy: Tensor, *, least: float) -> Tensor:
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


def _both(pair: Split) -> nn.ModuleDict:
    return nn.ModuleDict({"front": pair.front, "back": pair.back})


def _named(pair: Split) -> list[tuple[str, nn.Parameter]]:
    return list(_both(pair).named_parameters(remove_duplicate=False))
