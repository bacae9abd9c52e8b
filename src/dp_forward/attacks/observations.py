"""What an attacker sees of a text: released matrices, or the hidden ones of an undefended model.

Guarantees:
    With a mechanism that can be released, every matrix is a real release (`noise.released`): drawn as it
    would be for the wire, and read back from its integers. Other mechanisms are simulated, and
    `kind_of_noise` says so.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer, dequantise, release_batch
from dp_forward.noise.bounding import apply_bound
from dp_forward.privacy import Mechanism
from dp_forward.privacy.checks import count
from dp_forward.privacy.units import refuse_where_rows_mix
from dp_forward.progress import Count
from dp_forward.split.device import pick_device
from dp_forward.split.halves import AnyFront

__all__ = ["each_batch", "observe_texts"]

Device = torch.device | str | None


def kind_of_noise(mechanism: Mechanism | None) -> Literal["none", "released", "simulated"]:
    """Whether the noise of `observe` is what would leave the machine."""
    if mechanism is None:
        return "none"
    try:
        dequantise(np.zeros((1, 1), dtype=np.int16), mechanism)
    except InvalidInput:
        return "simulated"
    return "released"


def hidden_rows(front: AnyFront, batch: dict[str, Tensor], *, device: Device = None) -> Tensor:
    """The hidden matrices [texts, rows, width] of a batch, on the device; the front runs as at inference."""
    place = pick_device(device)
    front.to(place).train(False)
    with torch.inference_mode():
        rows: Tensor = front(**{name: value.to(place) for name, value in batch.items() if name != "labels"})
    return rows.float().clone()


def each_batch(
    texts: EncodedTexts, size: int, progress: Count | None = None
) -> Iterator[tuple[dict[str, Tensor], Callable[[float], None]]]:
    """The tokens of all texts, ``size`` at a time, each with a callable for the share that is done.

    ``progress`` is called with the texts so far; a share of a batch counts as so many of its texts.
    """
    report = progress or (lambda done: None)
    for start in range(0, len(texts), size):
        some = range(start, min(start + size, len(texts)))

        def tell(share: float, some: range = some) -> None:
            report(some.start + int(share * (len(some) - 1)))

        yield texts.batch(some), tell
        report(some.stop)


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
    parts = torch.split(repeated, max(1, (1 << 16) // max(1, repeated[0].numel())))
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
    device: Device = None,
    progress: Count | None = None,
) -> Iterator[Tensor]:
    """What crosses for each text (`observe`), some texts at a time, in their order.

    ``noiseless`` gives the bounded matrix itself: nothing that ever crosses, but what an attacker who holds a
    back can feed it. ``progress`` is called with the texts so far.
    """
    draws = count("draws", draws, remedy="Use 1, or more to average the noise away.")
    if mechanism is not None:
        refuse_where_rows_mix("mechanism", mechanism.unit, row_local=front.row_local, cut=front.cut)
    for batch, _ in each_batch(texts, 64, progress):
        hidden = hidden_rows(front, batch, device=device)
        if mechanism is not None and noiseless:
            yield apply_bound(hidden, Sanitizer(mechanism).bound)[:, None]
        else:
            yield observe(hidden, mechanism, draws=draws)
