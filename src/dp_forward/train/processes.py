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


def start_counting_memory() -> None:
    """Forget the peak of a GPU so far; that of a process cannot be forgotten."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory_mib() -> float:
    """The peak in MiB: of the tensors on the GPU where there is one, else of the whole process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    # The system counts kilobytes on Linux and bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
