"""How much memory a training took, counted in one way by all kinds of training."""

from __future__ import annotations

import resource
import sys

import torch

__all__ = ["peak_memory_mib", "start_counting_memory"]

_PROCESS_UNIT = 2**20 if sys.platform == "darwin" else 2**10
"""The system counts kilobytes on Linux and bytes on macOS."""


def start_counting_memory(device: torch.device | None = None) -> None:
    """Forget the peak of a GPU so far; that of a process cannot be forgotten."""
    if _counts_gpu(device):
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mib(device: torch.device | None = None) -> float:
    """The peak in MiB: of the tensors on a GPU, else of the whole process.

    Without a ``device`` it is that of the GPU where there is one.
    """
    if _counts_gpu(device):
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _PROCESS_UNIT


def _counts_gpu(device: torch.device | None) -> bool:
    return torch.cuda.is_available() if device is None else device.type == "cuda"
