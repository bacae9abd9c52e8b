"""Packages of the extras: imported at their first use, and named in one line where they are missing."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from dp_forward.errors import MissingPackage

__all__ = ["load_lazily", "name_extra"]

_EXTRAS: Final = {
    **dict.fromkeys(("torch", "transformers", "safetensors", "dp_accounting", "onnxscript"), "train"),
    **dict.fromkeys(("httpx", "onnxruntime", "tokenizers"), "client"),
    **dict.fromkeys(("starlette", "uvicorn", "prometheus_client"), "serve"),
    **dict.fromkeys(("opacus", "peft"), "baseline"),
    **dict.fromkeys(("gguf", "accelerate"), "llm"),
    "ray": "ray",
    "flwr": "flower",
}
"""Packages that are not installed with the core, and the extra that brings each."""


@contextlib.contextmanager
def name_extra(what: str = "This", extra: str | None = None) -> Iterator[None]:
    """Turn a failed import of an optional package into a `MissingPackage` that names its ``extra``."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _EXTRAS:
            raise
        remedy = f"pip install 'dp-forward[{extra or _EXTRAS[package]}]'"
        raise MissingPackage(f"{what} needs {package}, which is not installed: {remedy}.") from None


def load_lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package; ``homes`` says where to load a name at first use."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with name_extra():
            return getattr(import_module(homes[name]), name)

    def names() -> list[str]:
        here = vars(sys.modules[package])
        return sorted({*here["__all__"], *(name for name in here if name.startswith("__"))})

    return load, names
