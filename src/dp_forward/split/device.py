"""On which device a model computes: a GPU, where there is one and nobody asks for another."""

import torch

from dp_forward.errors import InvalidInput

__all__ = ["pick_device"]


def pick_device(wanted: torch.device | str | None = None) -> torch.device:
    """The device asked for; the GPU, where there is one, if none was.

    Edges:
        Refused where it is not there: "cuda" without a GPU, "cuda:3" where there are two.
    """
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(wanted)
    except RuntimeError:
        found = torch.device("meta")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type != "cpu" and not (found.type == "cuda" and (found.index or 0) < gpus):
        raise InvalidInput("device", "be cpu, or cuda where there is one", wanted, "Leave it out.")
    return found
