"""Front, noise and back as one module."""

import pytest
import torch

import dp_forward as dpf
from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    TEXT,
    TOKEN,
    Budget,
    MatrixGaussian,
    PrivUnit,
    calibrate,
    normalise,
    normalise_rows,
)
from tiny_models import SETTINGS, WHOLE_BLOCKS, tiny, tiny_inputs

PRIVUNIT = calibrate(PrivUnit, Budget(8.0), bound=normalise(1.0), unit=TEXT)
PER_TOKEN = calibrate(PrivUnit, Budget(8.0), bound=normalise_rows(1.0), unit=TOKEN)


@pytest.mark.parametrize("family", SETTINGS)
def test_without_noise_it_is_the_whole_model(family: str) -> None:
    model = tiny(family)
    joined = dpf.join(dpf.split(model, "encoder.2"))
    with torch.no_grad():
        assert torch.equal(joined(**tiny_inputs(family)).logits, model(**tiny_inputs(family)).logits)
    with pytest.raises(InvalidInput, match="sanitizer"):
        joined.guarantee()


@pytest.mark.slow
@pytest.mark.parametrize("family", SETTINGS)
def test_with_noise_it_trains_both_halves(family: str) -> None:
    inside = () if family in WHOLE_BLOCKS else ("encoder.1.attention",)
    for cut in ("embeddings", *inside, "encoder.2", "output"):
        _train_once(family, cut)


def _train_once(family: str, cut: str) -> None:
    joined = dpf.join(dpf.split(tiny(family), cut), dpf.Sanitizer(PRIVUNIT, seed=1), draws=3).train()
    labels = torch.tensor([0, 2])
    output = joined(**tiny_inputs(family), labels=labels)
    assert output.logits.shape == (6, 3)
    output.loss.backward()
    # GPT-2's and Llama's halves may hold a parameter that a cut leaves without work; most must move.
    for half in (joined.front, joined.back):
        moved = [p for p in half.parameters() if p.grad is not None and p.grad.abs().sum() > 0]
        assert len(moved) > 0.5 * len(list(half.parameters()))


def test_noise_is_there_in_evaluation_too_and_one_draw_per_text() -> None:
    model = tiny("bert")
    joined = dpf.join(dpf.split(model, "encoder.1"), dpf.Sanitizer(PRIVUNIT, seed=1), draws=4).eval()
    first, second = (joined(**tiny_inputs("bert")).logits for _ in range(2))
    assert first.shape == (2, 3)
    assert not torch.equal(first, second)
    assert joined.guarantee().epsilon == pytest.approx(8.0)


def test_a_promise_per_token_is_refused_where_one_token_moves_every_row() -> None:
    model = tiny("bert")
    dpf.join(dpf.split(model, "embeddings"), dpf.Sanitizer(PER_TOKEN))
    dpf.join(dpf.split(model, "embeddings", width=8), dpf.Sanitizer(PER_TOKEN))
    for cut in ("encoder.1", "encoder.2.attention", "output"):
        with pytest.raises(InvalidInput, match="whole texts"):
            dpf.join(dpf.split(model, cut), dpf.Sanitizer(PER_TOKEN))
    whole = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=normalise_rows(1.0, rows=9), unit=TEXT)
    dpf.join(dpf.split(model, "encoder.1"), dpf.Sanitizer(whole))


def test_lora_trains_on_either_half() -> None:
    from peft import LoraConfig, get_peft_model

    joined = dpf.join(dpf.split(tiny("bert"), "encoder.2"), dpf.Sanitizer(PRIVUNIT, seed=1)).train()
    adapter = LoraConfig(r=2, target_modules=["query", "value"])
    joined.back.model = get_peft_model(joined.back.model, adapter)
    joined.front.model = get_peft_model(joined.front.model, adapter)
    joined(**tiny_inputs("bert"), labels=torch.tensor([0, 1])).loss.backward()
    trained = {name for name, p in joined.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert trained
    assert all("lora" in name for name in trained)
    assert {name.split(".")[0] for name in trained} == {"front", "back"}


def test_the_public_names_are_loaded_when_used() -> None:
    assert callable(dpf.split)
    assert {"PrivateModel", "Sanitizer", "Split", "join", "load_back", "load_front"} <= set(dpf.__all__)
    assert dpf.PrivateModel.__name__ == "PrivateModel"
    with pytest.raises(AttributeError, match="nothing"):
        dpf.nothing  # noqa: B018
    with pytest.raises(InvalidInput, match="draws"):
        dpf.join(dpf.split(tiny("bert"), "encoder.1"), draws=0)
