"""The processes of one run (torchrun, accelerate): which of them writes, and how much memory it takes."""

import os
import resource
import sys

import torch


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_everyone() -> None:
    if process_count() > 1:
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


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
    # The system counts kilobytes on Linux and bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _counts_gpu(device: torch.device | None) -> bool:
    return torch.cuda.is_available() if device is None else device.type == "cuda"
