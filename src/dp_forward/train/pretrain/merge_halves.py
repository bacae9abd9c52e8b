"""Cut a masked LM with its ties kept, and merge the trained halves into an ordinary model again.

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
from torch import nn

from dp_forward.errors import InvalidInput
from dp_forward.split import Split, split_model
from dp_forward.split.halves import Back, Front

Places = dict[str, tuple[str, ...]]
"""Name of a parameter of the whole model -> its names in the halves (`front. ...`, `back. ...`)."""


def _parameter_places(model: Any, cut: str) -> Places:
    """Where the parameters of a model are after the cut; a tied one may be in both halves."""
    numbered = copy.deepcopy(model).float()
    names = []
    with torch.no_grad():
        for number, (name, parameter) in enumerate(numbered.named_parameters()):
            parameter.fill_(number)  # float32 counts exactly beyond any model's number of tensors
            names.append(name)
    found: dict[str, list[str]] = {name: [] for name in names}
    halves = _halves(split_model(numbered, cut, allow_vocabulary_head=True))
    for place, parameter in halves.named_parameters(remove_duplicate=False):
        found[names[int(parameter.flatten()[0])]].append(place)
    return {name: tuple(places) for name, places in found.items()}


def split_tied(model: Any, cut: str) -> Split:
    """The two halves of a masked LM, with every tie of the whole model kept.

    Guarantees:
        A tensor of the model that both halves need is one parameter of both, so the halves train as the whole
        model would.
    Edges:
        Not for a provider: the back holds the token table, and shares it with the front. ALBERT's one block
        is likewise shared by both halves.
    """
    pair = split_model(model, cut, allow_vocabulary_head=True)
    halves = _halves(pair)
    for places in _parameter_places(model, cut).values():
        for other in places[1:]:
            owner, _, name = other.rpartition(".")
            setattr(halves.get_submodule(owner), name, halves.get_parameter(places[0]))
    return pair


def merge_halves(pair: Split, *, like: Any) -> Any:
    """A whole model with the weights of the halves; ``like`` is the model that they were cut from.

    Guarantees:
        Without noise the result computes what the halves do, bit for bit, at every cut that drops no
        residual. ``like`` is untouched.
    Edges:
        Halves with maps to d' columns are refused: an ordinary model has no place for the maps. So are halves
        that hold two different versions of one tensor (cut without `split_tied`, then trained).
    """
    if not (isinstance(pair.front, Front) and isinstance(pair.back, Back)):
        raise InvalidInput(
            "pair", "have no maps to d' columns", f"width {pair.front.width}", "Split without a width."
        )
    held, whole = _halves(pair), copy.deepcopy(like)
    with torch.no_grad():
        for name, places in _parameter_places(like, str(pair.cut)).items():
            versions = [held.get_parameter(place) for place in places]
            if any(not torch.equal(versions[0], version) for version in versions[1:]):
                raise InvalidInput(
                    "pair", f"hold one version of {name}", len(versions), "Cut it with split_tied."
                )
            for version in versions[:1]:
                whole.get_parameter(name).copy_(version)
    return whole


def _halves(pair: Split) -> nn.ModuleDict:
    return nn.ModuleDict({"front": pair.front, "back": pair.back})
