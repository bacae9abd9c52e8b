"""What an attacker sees of a text: released matrices, or the hidden ones of an undefended model.

Guarantees:
    With a mechanism that can be released, every matrix is a real release (`noise.released`): drawn as it
    would be for the wire, and read back from its integers. Other mechanisms are simulated, and
    `kind_of_noise` says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.noise.bounding import apply_bound
from dp_forward.noise.released.released_matrix import dequantise, release_batch
from dp_forward.privacy import Mechanism
from dp_forward.privacy.checks import count
from dp_forward.privacy.units import refuse_where_rows_mix
from dp_forward.progress import Count
from dp_forward.split.device import pick_device
from dp_forward.split.halves import Front, NarrowFront

__all__ = ["AnyFront", "observe_average", "observe_texts"]

AnyFront = Front | NarrowFront

_TEXTS_AT_ONCE: Final = 64
_NOISE_ENTRIES: Final = 1 << 16
_DRAWN_ENTRIES: Final = 1 << 26
"""Most numbers that are drawn before they are averaged."""


def kind_of_noise(mechanism: Mechanism | None) -> Literal["none", "released", "simulated"]:
    """Whether the noise of `observe` is what would leave the machine."""
    if mechanism is None:
        return "none"
    try:
        dequantise(np.zeros((1, 1), dtype=np.int16), mechanism)
    except InvalidInput:
        return "simulated"
    return "released"


def hidden_rows(
    front: AnyFront, batch: dict[str, Tensor], *, device: torch.device | str | None = None
) -> Tensor:
    """The hidden matrices [texts, rows, width] of a batch, on the device; the front runs as at inference."""
    place = pick_device(device)
    front.to(place).train(False)
    with torch.inference_mode():
        rows: Tensor = front(**{name: value.to(place) for name, value in batch.items() if name != "labels"})
    return rows.float().clone()


def hidden_batches(
    front: AnyFront, texts: EncodedTexts, *, device: torch.device | str | None = None
) -> Iterator[Tensor]:
    """The hidden matrices of all texts, some at a time, in their order."""
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        batch = texts.batch(range(start, min(start + _TEXTS_AT_ONCE, len(texts))))
        yield hidden_rows(front, batch, device=device)


@torch.inference_mode()
def observe(hidden: Tensor, mechanism: Mechanism | None, *, draws: int = 1, simulate: bool = False) -> Tensor:
    """What crosses for each hidden matrix: [texts, draws, rows, width], drawn anew in every call.

    Without a mechanism all draws would be the same, so one is given. ``simulate`` draws simulated noise of
    the same distribution, which is faster: for texts of the attacker's own.
    """
    if mechanism is None:
        return hidden[:, None]
    shape = (len(hidden), draws, *hidden.shape[1:])
    if simulate or kind_of_noise(mechanism) == "simulated":
        simulated: Tensor = Sanitizer(mechanism)(hidden, draws=draws)
        return simulated.reshape(shape)

    def release(part: Tensor) -> Tensor:
        return torch.from_numpy(np.stack([one.as_floats() for one in release_batch(part, mechanism)]))

    repeated = hidden.repeat_interleave(draws, dim=0).cpu()
    parts = torch.split(repeated, max(1, _NOISE_ENTRIES // max(1, repeated[0].numel())))
    # The noise takes most of the time, and its arithmetic runs outside of Python's lock.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        noisy = torch.cat(list(threads.map(release, parts)))
    return noisy.reshape(shape).to(hidden.device)


def observe_texts(
    front: AnyFront,
    mechanism: Mechanism | None,
    texts: EncodedTexts,
    *,
    draws: int = 1,
    noiseless: bool = False,
    device: torch.device | str | None = None,
    progress: Count | None = None,
) -> Iterator[Tensor]:
    """What crosses for each text (`observe`), some texts at a time, in their order.

    ``noiseless`` gives the bounded matrix itself: nothing that ever crosses, but what an attacker who holds a
    back can feed it. ``progress`` is called with the texts so far.
    """
    draws = count("draws", draws, remedy="Use 1, or more to average the noise away.")
    if mechanism is not None:
        refuse_where_rows_mix("mechanism", mechanism.unit, row_local=front.row_local, cut=front.cut)
    done = 0
    for hidden in hidden_batches(front, texts, device=device):
        if mechanism is not None and noiseless:
            yield apply_bound(hidden, Sanitizer(mechanism).bound)[:, None]
        else:
            yield observe(hidden, mechanism, draws=draws)
        done += len(hidden)
        if progress is not None:
            progress(done)


def observe_average(
    front: AnyFront,
    mechanism: Mechanism | None,
    batch: dict[str, Tensor],
    *,
    releases: int,
    device: str,
    simulate: bool = False,
) -> Tensor:
    """The average of so many releases of each text of a batch [texts, rows, width]; drawn a few at a time."""
    hidden = hidden_rows(front, batch, device=device)
    if mechanism is None:
        return hidden
    total, left = torch.zeros_like(hidden, dtype=torch.float64), releases
    most = max(1, _DRAWN_ENTRIES // max(1, hidden.numel()))
    while left > 0:
        draws = min(left, most)
        total += observe(hidden, mechanism, draws=draws, simulate=simulate).sum(dim=1, dtype=torch.float64)
        left -= draws
    return (total / releases).float()
