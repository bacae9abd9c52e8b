"""Where an interrupted DP-SGD run can be taken up: one folder per finished epoch, whole or not there.

``FOLDER/dpsgd-epoch-0002/``: ``weights.safetensors`` (what trains), ``optimizer.safetensors`` and
``state.json`` (settings, history, the accountant's history, digests of the two files and of the model that
the run began with). A folder is written under another name and renamed when complete; older ones go after.

Guarantees:
    What was spent is never forgotten: a checkpoint whose accountant's history does not fit its number of
    steps, or whose files do not fit their digests, is refused, not repaired.
Edges:
    No state of a random generator is stored. A run that is taken up draws fresh noise: the steps lost with
    the interruption were never shown to anyone, and are not charged.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dp_forward.errors import DpForwardError, InvalidInput

__all__ = ["Checkpoint", "digest_of", "newest", "save"]

_PREFIX = "dpsgd-epoch-"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The end of an epoch."""

    settings: dict[str, Any]
    model_digest: str
    records: int
    epoch: int
    noise_multiplier: float
    accountant_history: list[tuple[float, float, int]]
    history: list[dict[str, float]]
    seconds: float
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]

    @property
    def steps(self) -> int:
        """The noisy steps behind it."""
        return sum(steps for _, _, steps in self.accountant_history)


def digest_of(model: torch.nn.Module) -> str:
    """A fingerprint of all weights: a run is taken up with the model that it began with."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint beside the older ones, then remove those."""
    final = folder / f"{_PREFIX}{checkpoint.epoch:04d}"
    part = folder / f"{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    digests = {}
    for name in ("weights", "optimizer"):
        file = part / f"{name}.safetensors"
        tensors: dict[str, Tensor] = getattr(checkpoint, name)
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, file)
        digests[name] = _file_digest(file)
    plain = {
        name: getattr(checkpoint, name)
        for name in checkpoint.__slots__
        if name not in ("weights", "optimizer")
    }
    state = {"format": _FORMAT, "steps": checkpoint.steps, "digests": digests, **plain}
    (part / "state.json").write_text(json.dumps(state, indent=2) + "\n")
    for file in part.iterdir():
        with open(file, "rb") as stream:
            os.fsync(stream.fileno())
    os.replace(part, final)
    for older in folder.glob(f"{_PREFIX}*"):
        if older != final:
            shutil.rmtree(older, ignore_errors=True)


def newest(folder: Path) -> Checkpoint | None:
    """The last complete checkpoint of a folder, checked; None where there is none."""
    found = sorted(path for path in folder.glob(f"{_PREFIX}*") if path.suffix != ".part")
    if not found:
        return None
    try:
        return _load(found[-1])
    except (DpForwardError, MemoryError):
        raise
    except Exception as error:
        raise _refused(found[-1], f"something else ({type(error).__name__})") from None


def _load(path: Path) -> Checkpoint:
    state = json.loads((path / "state.json").read_text())
    if state.pop("format") != _FORMAT:
        raise _refused(path, "another format")
    digests, steps = state.pop("digests"), state.pop("steps")
    tensors: dict[str, Any] = {}
    for name in ("weights", "optimizer"):
        file = path / f"{name}.safetensors"
        if _file_digest(file) != digests[name]:
            raise _refused(path, f"a changed or truncated {file.name}")
        tensors[name] = load_file(file)
    history = [
        (float(noise), float(rate), int(count)) for noise, rate, count in state.pop("accountant_history")
    ]
    checkpoint = Checkpoint(**state, **tensors, accountant_history=history)
    honest = all(noise == checkpoint.noise_multiplier and count > 0 for noise, _, count in history)
    if not honest or checkpoint.steps != steps or not history:
        raise _refused(path, "an accountant's history that does not fit its steps")
    return checkpoint


def _file_digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refused(path: Path, found: str) -> InvalidInput:
    return InvalidInput(
        "folder", "hold a checkpoint as it was written", f"{found} in {path.name}", "Start in a new folder."
    )
