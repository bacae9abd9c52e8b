"""Cut a Hugging Face model into a `Front` and a `Back` at a named point.

>>> pair = dp_forward.split(model, cut="encoder.1")  # this module can be called: a verb and a package
>>> hidden = pair.front(**inputs)  # [batch, rows, width]
>>> torch.equal(pair.back(hidden).logits, model(**inputs).logits)
True
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dp_forward.optional_packages import load_lazily
from dp_forward.split.cut import Cut, parse_cut
from dp_forward.split.families import FAMILIES, Family, Wiring
from dp_forward.split.legal_cuts import CutInfo, legal_cuts

if TYPE_CHECKING:
    from dp_forward.split.halves import Back as Back
    from dp_forward.split.halves import Front as Front
    from dp_forward.split.halves import Split as Split
    from dp_forward.split.surgery import split_model as split_model

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

__getattr__, __dir__ = load_lazily(
    __name__,
    {
        **dict.fromkeys(("Back", "Front", "Split"), "dp_forward.split.halves"),
        "split_model": "dp_forward.split.surgery",
    },
)


class _Verb(ModuleType):
    """Lets ``dpf.split(model, cut=...)`` and ``dp_forward.split.surgery`` live under one name."""

    def __call__(self, model: Any, cut: str | Cut, **settings: Any) -> Split:
        made: Split = __getattr__("split_model")(model, cut, **settings)
        return made


sys.modules[__name__].__class__ = _Verb
