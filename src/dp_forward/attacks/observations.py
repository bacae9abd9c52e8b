"""What crosses the cut, as an attacker sees it: released matrices, or the hidden ones of an undefended model.

Guarantees:
    With a mechanism that can be released, every matrix is a real release (`noise.released`): drawn as it
    would be for the wire, and read back from its integers. Other mechanisms are simulated, and
    `kind_of_noise` says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.noise.bounding import apply_bound
from dp_forward.noise.released.released_matrix import release_batch
from dp_forward.privacy import Mechanism
from dp_forward.privacy.checks import count
from dp_forward.privacy.units import refuse_where_rows_mix
from dp_forward.split.device import pick_device
from dp_forward.split.halves import Front, NarrowFront

__all__ = ["AnyFront", "Progress", "at_least_twenty", "crossing", "hidden_of", "kind_of_noise"]

AnyFront = Front | NarrowFront
Progress = Callable[[int, int], None]
"""Called with how much is done, of how much."""

_AT_ONCE = 64
_NOISE_ENTRIES = 1 << 16
_TOO_FEW = 20


def at_least_twenty(name: str, texts: int) -> None:
    """Fewer texts give an interval that says nothing."""
    if texts < _TOO_FEW:
        raise InvalidInput(name, f"be {_TOO_FEW} texts or more", texts, "An interval needs more of them.")


def kind_of_noise(mechanism: Mechanism | None) -> Literal["none", "released", "simulated"]:
    """Whether the noise of `crossing` is what would leave the machine."""
    if mechanism is None:
        return "none"
    rows = getattr(getattr(mechanism, "bound", None), "rows", None)
    sensitivity = getattr(mechanism, "sensitivity", None)
    rows = rows or getattr(getattr(sensitivity, "bound", None), "rows", None) or 1
    try:
        release_batch(np.ones((1, rows, 2)), mechanism)
    except InvalidInput as refused:
        if refused.name != "mechanism":
            raise
        return "simulated"
    return "released"


@torch.inference_mode()
def hidden_of(
    front: AnyFront, texts: EncodedTexts, *, device: torch.device | str | None = None
) -> Iterator[Tensor]:
    """The hidden matrices [some texts, rows, width] in the order of the texts, on the device."""
    place = pick_device(device)
    front.to(place).train(False)
    for start in range(0, len(texts), _AT_ONCE):
        batch = texts.batch(range(start, min(start + _AT_ONCE, len(texts))))
        batch.pop("labels", None)
        yield front(**{name: value.to(place) for name, value in batch.items()}).float()


@torch.inference_mode()
def crossing(
    front: AnyFront,
    mechanism: Mechanism | None,
    texts: EncodedTexts,
    *,
    draws: int = 1,
    noiseless: bool = False,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Iterator[Tensor]:
    """What crosses for each text: [some texts, draws, rows, width], in the order of the texts.

    Every call draws anew. Without a mechanism all draws would be the same, so one is given. ``noiseless``
    gives the bounded matrix itself: nothing that ever crosses, but what an attacker who holds a back can feed
    it.
    """
    draws = count("draws", draws, remedy="Use 1, or more to average the noise away.")
    if mechanism is not None:
        refuse_where_rows_mix("mechanism", mechanism.unit, row_local=front.row_local, cut=front.cut)
    released = not noiseless and kind_of_noise(mechanism) == "released"
    simulated = None if mechanism is None or released else Sanitizer(mechanism)
    done = 0
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for hidden in hidden_of(front, texts, device=device):
            if mechanism is None:
                seen = hidden[:, None]
            elif simulated is not None and noiseless:
                seen = apply_bound(hidden, simulated.bound)[:, None]
            elif simulated is not None:
                seen = simulated(hidden, draws=draws).reshape(len(hidden), draws, *hidden.shape[1:])
            else:
                seen = _released(hidden, mechanism, draws, threads)
            done += len(hidden)
            yield seen
            if progress is not None:
                progress(done, len(texts))


def _released(hidden: Tensor, mechanism: Mechanism, draws: int, threads: ThreadPoolExecutor) -> Tensor:
    """Real releases; the noise takes most of the time, and its arithmetic runs outside of Python's lock."""

    def drawn(part: Tensor) -> Tensor:
        released = release_batch(part, mechanism)
        return torch.from_numpy(np.stack([one.as_floats() for one in released]))

    repeated = hidden.repeat_interleave(draws, dim=0).cpu()
    parts = torch.split(repeated, max(1, _NOISE_ENTRIES // max(1, repeated[0].numel())))
    noisy = torch.cat(list(threads.map(drawn, parts)))
    return noisy.reshape(len(hidden), draws, *hidden.shape[1:]).to(hidden.device)
