"""Checkpoints of a DP-SGD run: one after each epoch, with what was spent until then.

``FOLDER/checkpoint.json`` (which run it is, the accountant's history, the learning curve) names the file
``epoch-0002.safetensors`` (weights that train, optimizer) and its digest. It is written after that file;
older ones go last. Opacus's own checkpoints are pickles, which can run code when they are read.

Guarantees:
    What was spent is never forgotten: a checkpoint whose accountant's history does not fit its number of
    steps, or whose tensors do not fit their digest, is refused, not repaired.
Edges:
    No state of a random generator is stored. A resumed run draws fresh noise: the steps lost with the
    interruption were never shown to anyone, and are not charged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dp_forward.errors import InvalidInput
from dp_forward.storage.digests import file_digest
from dp_forward.storage.files import draft_of
from dp_forward.storage.json_files import read_json, write_json
from dp_forward.train.dpsgd.private_optimizer import PrivateTraining

__all__ = ["Checkpoint", "load_checkpoint", "restore", "save_checkpoint", "weights_digest"]

_STATE = "checkpoint.json"
_FORMAT = 2
_REMEDY = "Start in a new folder."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The end of an epoch."""

    run: dict[str, Any]
    """Settings, model and records: what must be the same when the run is resumed."""
    accountant_history: list[tuple[float, float, int]]
    history: list[dict[str, float]]
    weights: dict[str, Tensor]
    optimizer: dict[int, dict[str, Tensor]]

    @property
    def steps(self) -> int:
        """The noisy steps behind it."""
        return sum(steps for _, _, steps in self.accountant_history)


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of all weights: a run is resumed with the model that it began with."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def save_checkpoint(
    folder: Path, run: dict[str, Any], private: PrivateTraining, trained: Any, history: list[dict[str, float]]
) -> None:
    """Store the end of an epoch; then the one before goes."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"weights.{name}": weight for name, weight in _weights(trained).items()}
    for index, entry in private.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in entry.items()}
    file = folder / f"epoch-{len(history):04d}.safetensors"
    with draft_of(file) as draft:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, draft)
    state = {
        "format": _FORMAT,
        "run": run,
        "noise_multiplier": float(private.optimizer.noise_multiplier),
        "steps": private.steps,
        "accountant_history": private.accountant.history,
        "history": history,
        "tensors": {"file": file.name, "sha256": file_digest(file)},
    }
    write_json(folder / _STATE, state)
    for older in folder.glob("epoch-*.safetensors"):
        if older != file:
            older.unlink()


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint of a folder, checked; None where there is none."""
    if not (folder / _STATE).exists():
        return None
    state = read_json(folder / _STATE, name="folder", remedy=_REMEDY)
    try:
        return _checked(folder, state)
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise _refuse(f"something else ({type(error).__name__})") from None


def restore(checkpoint: Checkpoint, private: PrivateTraining, trained: Any) -> None:
    """Put back weights, optimizer and what was spent; the noise starts fresh."""
    weights = _weights(trained)
    if weights.keys() != checkpoint.weights.keys():
        raise InvalidInput("folder", "hold the weights of this model", "others", _REMEDY)
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(checkpoint.weights[name])
    groups = private.optimizer.state_dict()["param_groups"]
    private.optimizer.load_state_dict({"state": checkpoint.optimizer, "param_groups": groups})
    private.accountant.history = list(checkpoint.accountant_history)


def _checked(folder: Path, state: dict[str, Any]) -> Checkpoint:
    if state["format"] != _FORMAT:
        raise _refuse("another format")
    file = folder / state["tensors"]["file"]
    if file_digest(file) != state["tensors"]["sha256"]:
        raise _refuse(f"a changed or truncated {file.name}")
    weights: dict[str, Tensor] = {}
    optimizer: dict[int, dict[str, Tensor]] = {}
    for name, tensor in load_file(file).items():
        kind, _, rest = name.partition(".")
        if kind == "weights":
            weights[rest] = tensor
        else:
            index, _, entry = rest.partition(".")
            optimizer.setdefault(int(index), {})[entry] = tensor
    spent = [(float(noise), float(rate), int(steps)) for noise, rate, steps in state["accountant_history"]]
    found = Checkpoint(state["run"], spent, state["history"], weights, optimizer)
    honest = all(noise == state["noise_multiplier"] and steps > 0 for noise, _, steps in spent)
    if not honest or found.steps != state["steps"] or not spent:
        raise _refuse("an accountant's history that does not fit its steps")
    return found


def _weights(trained: Any) -> dict[str, Tensor]:
    return {name: weight for name, weight in trained.named_parameters() if weight.requires_grad}


def _refuse(found: str) -> InvalidInput:
    return InvalidInput("folder", "hold a checkpoint as it was written", found, _REMEDY)
