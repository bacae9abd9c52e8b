"""Cut a Hugging Face model into a `Front` and a `Back` at a named point.

pair = dpf.split(model, cut="encoder.6")      # this module can be called: a verb and a package
hidden = pair.front(input_ids=ids)
pair.back(hidden).logits
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from dp_forward.split.cut import Cut, parse_cut
from dp_forward.split.families import FAMILIES, Family, Wiring
from dp_forward.split.halves import Back, Front, Split
from dp_forward.split.legal_cuts import CutInfo, legal_cuts
from dp_forward.split.surgery import split_model

__all__ = [
    "FAMILIES",
    "Back",
    "Cut",
    "CutInfo",
    "Family",
    "Front",
    "Split",
    "Wiring",
    "legal_cuts",
    "parse_cut",
    "split_model",
]


class _Verb(ModuleType):
    """Lets ``dpf.split(model, cut=...)`` and ``dp_forward.split.surgery`` live under one name."""

    def __call__(self, model: Any, cut: str | Cut, **settings: Any) -> Split:
        return split_model(model, cut, **settings)


sys.modules[__name__].__class__ = _Verb
