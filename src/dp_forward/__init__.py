"""dp-forward: use a language model run by someone you do not trust.

The model is cut in two; the front runs with the user, the back with the provider, and what crosses is a
hidden matrix that was bounded and noised so that it is differentially private by itself.

`dp_forward.privacy` holds the proof (no torch is loaded for it).
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dp-forward")
except PackageNotFoundError:  # pragma: no cover - running from a source tree without install
    __version__ = "0+unknown"

__all__ = ["__version__"]
