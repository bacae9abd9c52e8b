"""The device that is asked for, or the GPU, or a clear error."""

import pytest
import torch

from dp_forward.errors import InvalidInput
from dp_forward.split.device import pick_device


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize(
    ("gpus", "wanted", "found"), [(0, None, "cpu"), (2, None, "cuda"), (2, "cpu", "cpu")]
)
def test_the_gpu_is_taken_where_there_is_one_and_nothing_else_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, gpus: int, wanted: str | None, found: str
) -> None:
    pretend(monkeypatch, gpus)
    assert pick_device(wanted) == torch.device(found)


def test_a_gpu_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 2)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert pick_device(torch.device("cuda")) == torch.device("cuda")


@pytest.mark.parametrize(("gpus", "wanted"), [(0, "cuda"), (2, "cuda:2"), (2, "gpu"), (2, "meta"), (2, "")])
def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, gpus: int, wanted: str) -> None:
    pretend(monkeypatch, gpus)
    with pytest.raises(InvalidInput, match="cuda where there is one"):
        pick_device(wanted)
