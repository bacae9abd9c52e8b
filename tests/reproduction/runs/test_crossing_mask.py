"""With the mask handed over a back leaves padding out; without it, rows of padding move its answers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import tiny_models
from dp_forward.noise import Sanitizer
from dp_forward.privacy import NoiseSpec
from dp_forward.split import Split, split_model
from dp_forward.train.noisy_model import NoisyModel
from reproduction.runs.crossing_mask import mask_crossing

TEXT = {"input_ids": torch.tensor([[5, 6, 7, 1]]), "attention_mask": torch.tensor([[1, 1, 1, 0]])}


def _pair() -> Split:
    return split_model(tiny_models.tiny("bert"), "encoder.1")


@pytest.mark.parametrize("handed", [True, False])
def test_without_noise_only_the_mask_gives_the_answer_of_the_whole_model(handed: bool) -> None:
    pair = _pair()
    module = NoisyModel(pair, None, rows=12, labels=3).eval()
    with mask_crossing(pair) if handed else contextlib.nullcontext():
        logits = module(**TEXT)["logits"]
    assert torch.allclose(logits, tiny_models.tiny("bert")(**TEXT).logits, atol=1e-5) == handed


def test_padding_is_known_behind_the_noise_in_every_draw_and_afterwards_no_more() -> None:
    pair, seen = _pair(), list[dict[str, Any]]()
    module = NoisyModel(pair, Sanitizer(NoiseSpec(epsilon=8.0).build(), seed=1), rows=6, labels=3).eval()

    def note(_: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        seen.append(given)

    pair.back.plain.model.register_forward_hook(note, with_kwargs=True)
    with mask_crossing(pair):
        module.back(module.add_noise(module.hidden(**TEXT), times=4))
    noisy = module.add_noise(module.hidden(**TEXT), times=4)
    module.back(noisy)
    assert seen[0]["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0]] * 4
    assert bool(seen[0]["inputs_embeds"][:, :3].all())
    assert "attention_mask" not in seen[1]
    assert bool(noisy.all()), "rows of padding are noise like the others"
