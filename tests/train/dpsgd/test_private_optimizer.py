"""One step of DP-SGD: what is drawn, what is clipped, which noise, and what Opacus cannot do."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tiny_encoded import ROWS, encoded_texts
from tiny_models import tiny

pytest.importorskip("opacus")

from dp_forward.data.encoded_texts import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.train.dpsgd.private_optimizer import PrivateTraining, clipping_error, freeze_embeddings

TRAIN = encoded_texts(30)


def private(
    mode: str,
    *,
    clip_norm: float = 1.0,
    noise_multiplier: float = 1.0,
    model: Any = None,
    records: EncodedTexts = TRAIN,
) -> PrivateTraining:
    model = model or tiny("bert", blocks=1)
    freeze_embeddings(model)
    weights = [p for p in model.parameters() if p.requires_grad]
    return PrivateTraining(
        model,
        records,
        optimizer=torch.optim.SGD(weights, lr=0.0),
        mode=mode,  # type: ignore[arg-type]
        batch=8,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
    )


def without_dropout() -> Any:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    return tiny("bert", blocks=1, **none)


def sum_of(made: PrivateTraining, texts: list[int]) -> Tensor:
    """The clipped sum of some records before the noise, by Opacus."""
    made.backward(made.batch(texts))
    made.optimizer.accumulate() if made.mode == "ghost" else made.optimizer.clip_and_accumulate()
    found = torch.cat([p.summed_grad.flatten() for p in made.optimizer.params]).clone()
    made.optimizer.zero_grad()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_one_record_moves_the_sum_by_at_most_the_clipping_norm(mode: str) -> None:
    def influence(clip_norm: float) -> float:
        made = private(mode, clip_norm=clip_norm, model=without_dropout())
        everyone = sum_of(made, [0, 1, 2, 3])
        return max(
            float((everyone - sum_of(made, [i for i in range(4) if i != left_out])).norm())
            for left_out in range(4)
        )

    assert 0.09 < influence(0.1) <= 0.1 * (1 + 1e-4)
    # Without a bound that binds, one record moves the sum further.
    assert influence(1e6) > 0.2


def test_columns_that_are_pad_in_all_texts_are_left_out_and_change_nothing() -> None:
    texts, chosen = encoded_texts(30, ragged=True), [0, 3, 6]
    made = private("hooks", model=without_dropout(), records=texts)
    part, whole = made.batch(chosen), texts.batch(chosen)
    labels = part.pop("labels")
    kept = int(texts.lengths[chosen].max())
    assert {value.shape for value in part.values()} == {(3, kept)}
    assert kept < ROWS
    assert torch.equal(labels, whole.pop("labels"))
    torch.testing.assert_close(made.module(**part).logits, made.module(**whole).logits)
    left = private("hooks", records=encoded_texts(30, ragged=True, pads_left=True))
    assert left.batch(chosen)["input_ids"].shape == (3, ROWS), "PAD on the left stays"


def test_a_batch_goes_from_short_to_long_and_holds_the_same_records(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = encoded_texts(30, ragged=True)
    made = private("ghost", records=texts)
    monkeypatch.setattr(made, "batch", list)  # the numbers of the records in place of their tensors
    assert len(made.draws) == 4
    # The same generator, so the same draws: what Opacus drew, and what we make of it.
    state = made.draws.generator.get_state()
    drawn = list(made.draws)
    made.draws.generator.set_state(state)
    found: list[Any] = list(made.parts(len(texts)))
    assert found == [sorted(batch, key=texts.lengths.__getitem__) for batch in drawn]
    assert found != drawn
    made.draws.generator.set_state(state)
    cut: list[Any] = list(made.parts(3))
    assert max(len(part) for part in cut) <= 3
    assert [number for part in cut for number in part] == [number for batch in found for number in batch]


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_an_empty_batch_is_a_step_of_noise_alone_and_of_the_right_size(mode: str) -> None:
    made = private(mode, clip_norm=0.5, noise_multiplier=3.0)
    made.step(made.batch([]))
    drawn = torch.cat([p.grad.flatten() for p in made.optimizer.params]) * made.optimizer.expected_batch_size
    ratio = float(drawn.std()) / (3.0 * 0.5)
    tolerance = 4 / math.sqrt(2 * drawn.numel())
    assert abs(ratio - 1) < tolerance
    assert abs(ratio * 2 / 3 - 1) > tolerance  # the control: noise of two thirds would be noticed
    assert made.accountant.history == [(3.0, 0.25, 1)]
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        private(mode, noise_multiplier=0.0)


def test_a_layer_that_opacus_would_clip_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = private("hooks", model=without_dropout())
    assert clipping_error(made) < 1e-3
    made.remove_hooks()

    from opacus.grad_sample import GradSampleModule

    right = GradSampleModule.GRAD_SAMPLERS[nn.LayerNorm]

    def wrong(*given: Any) -> Any:
        return {parameter: gradient / 2 for parameter, gradient in right(*given).items()}

    monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, nn.LayerNorm, wrong)
    with pytest.raises(InvalidInput, match="clipped gradients wrong by"):
        private("hooks")


def test_what_opacus_cannot_clip_is_refused_in_one_line() -> None:
    model = tiny("bert", blocks=1)
    model.classifier = nn.Sequential(nn.BatchNorm1d(32), model.classifier)
    with pytest.raises(InvalidInput, match="Opacus can clip"):
        private("hooks", model=model)
    with pytest.raises(InvalidInput, match="Opacus can clip"):  # its blocks share their weights
        private("ghost", model=tiny("albert", blocks=2))


@pytest.mark.slow
def test_the_benchmark_against_opacus_runs_at_a_tiny_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By its path: Opacus installs a package of the name `benchmarks` too.
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    benchmark = import_module("benchmarks.against_opacus")
    target = tmp_path / "out.json"
    assert benchmark.main(["--smoke", "--device", "cpu", "--precisions", "fp32", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["measured"]["fp32"]["matmul_precision"] == "highest"
    assert set(found["measured"]["fp32"]["ratios"]) == set(found["goals"]) - {
        "end_to_end_over_non_private_memory"  # on a CPU nobody counts it
    }
    assert benchmark.missed({"hooks_over_end_to_end_time": 4.4}) == ["hooks_over_end_to_end_time"]
    assert benchmark.missed({"hooks_over_end_to_end_time": 4.6}) == []
