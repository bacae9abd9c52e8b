"""dp-forward: use a language model run by someone you do not trust.

The model is cut in two; the front runs with the user, the back with the provider, and what crosses is a
hidden matrix that was bounded and noised so that it is differentially private by itself.

>>> import dp_forward as dpf
>>> from dp_forward.privacy import NoiseSpec
>>> pair = dpf.split(model, cut="encoder.1")  # any model of Hugging Face
>>> private = dpf.join(pair, dpf.Sanitizer(NoiseSpec(epsilon=8.0).build()))
>>> private(**inputs).logits.shape
torch.Size([2, 3])

`dp_forward.privacy` holds the proof. Nothing here loads torch before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dp_forward.optional_packages import load_lazily

if TYPE_CHECKING:
    from dp_forward import split as split
    from dp_forward.noise import Sanitizer as Sanitizer
    from dp_forward.service.client.client import Client as Client
    from dp_forward.split.artifacts import load_back as load_back
    from dp_forward.split.artifacts import load_front as load_front
    from dp_forward.split.artifacts import save_split as save_split
    from dp_forward.split.halves import Split as Split
    from dp_forward.split.private_model import PrivateModel as PrivateModel
    from dp_forward.split.private_model import join as join
    from dp_forward.split.private_model import private as private
    from dp_forward.train.finetune import finetune as finetune
    from dp_forward.train.plan import Plan as Plan
    from dp_forward.train.private_classifier import PrivateClassifier as PrivateClassifier
    from dp_forward.train.run import Run as Run

    __version__: str

_HOMES = {
    "Client": "dp_forward.service.client.client",
    "PrivateClassifier": "dp_forward.train.private_classifier",
    "PrivateModel": "dp_forward.split.private_model",
    "Plan": "dp_forward.train.plan",
    "Run": "dp_forward.train.run",
    "Sanitizer": "dp_forward.noise",
    "Split": "dp_forward.split.halves",
    "finetune": "dp_forward.train.finetune",
    "join": "dp_forward.split.private_model",
    "load_back": "dp_forward.split.artifacts",
    "load_front": "dp_forward.split.artifacts",
    "private": "dp_forward.split.private_model",
    "save_split": "dp_forward.split.artifacts",
}
"""Where the public names live; they are loaded when first used, because torch is slow to import."""

__all__ = [
    "Client",
    "Plan",
    "PrivateClassifier",
    "PrivateModel",
    "Run",
    "Sanitizer",
    "Split",
    "__version__",
    "finetune",
    "join",
    "load_back",
    "load_front",
    "private",
    "save_split",
    "split",
]


_load, __dir__ = load_lazily(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # slow to import

        try:
            return version("dp-forward")
        except PackageNotFoundError:  # pragma: no cover - running from a source tree without install
            return "0+unknown"
    return import_module("dp_forward.split") if name == "split" else _load(name)
