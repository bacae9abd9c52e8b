"""Halves of a masked LM that hold the model's own parameters: training them trains the model.

Cutting copies a tied table (the masked-LM decoder is the token table) into both halves, where training would
move the copies apart, and an ordinary checkpoint has room for one. So each tensor of the whole model is put
into the halves again, in however many places it stands, and the model is the trained one at any time.

Which tensor went where is not written down by hand for each family and cut: a copy of the model whose n-th
tensor holds the number n is cut in the same way, and the halves are read.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from dp_forward.split import Split, split_model


def split_tied(model: Any, cut: str) -> Split:
    """The two halves of a masked LM, whose parameters are those of the model.

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
    halves, places = _halves(pair), _halves(split_model(numbered, cut, allow_vocabulary_head=True))
    for place, parameter in places.named_parameters(remove_duplicate=False):
        owner, _, name = place.rpartition(".")
        setattr(halves.get_submodule(owner), name, own[int(parameter.flatten()[0])])
    return pair


def _halves(pair: Split) -> nn.ModuleDict:
    return nn.ModuleDict({"front": pair.front, "back": pair.back})
