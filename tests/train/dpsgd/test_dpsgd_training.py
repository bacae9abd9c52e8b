"""The DP-SGD baseline as a run: the promise it makes, and what it takes up after an interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel

from known_noise import known_noise  # noqa: F401 - a fixture
from tiny_encoded import encoded_texts
from tiny_models import LABELS, tiny

pytest.importorskip("opacus")

from dp_forward.data.encoded_texts import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.train.dpsgd.accounting import epsilon_of, noise_multiplier_for
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
from dp_forward.train.dpsgd.dpsgd_training import DpSgdOutcome, run_dpsgd, train_dpsgd
from dp_forward.train.dpsgd.private_optimizer import PrivateTraining
from dp_forward.train.run import RunFolder
from reproduction.runs.smoke import smoke_data, smoke_model

pytestmark = pytest.mark.usefixtures("known_noise")

PLAN = DpSgdPlan(task="sst2", epsilon=8.0, epochs=2, batch=8, micro_batch=3)
TRAIN, EVALUATION = encoded_texts(30), encoded_texts(10, seed=1)


def bert(**settings: Any) -> Any:
    return tiny("bert", blocks=1, **settings)


def train(plan: DpSgdPlan = PLAN, *, model: Any = None, records: EncodedTexts = TRAIN, **more: Any) -> Any:
    return train_dpsgd(model or bert(), records, EVALUATION, plan, **more)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_run_stays_within_its_budget_and_says_what_it_promises(mode: str) -> None:
    model = bert()
    shown: list[tuple[str, int, int, Mapping[str, float]]] = []
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = replace(PLAN, mode=mode)  # type: ignore[arg-type]
    outcome: DpSgdOutcome = train(plan, model=model, progress=lambda *given: shown.append(given))
    assert 7.5 < outcome.epsilon <= 8.0
    assert outcome.steps == 8
    assert [entry["step"] for entry in outcome.history] == [4, 8]
    assert [(stage, total) for stage, _, total, _ in shown] == [("dp-sgd", 8)] * 10
    assert [done for _, done, _, numbers in shown if numbers] == [4, 8]
    assert [done for _, done, _, numbers in shown if not numbers] == list(range(1, 9))
    for word in ("added or removed", "replaced", "trains sees every text", "query at inference is sent raw"):
        assert word in outcome.statement
    after = outcome.model.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "classifier.weight" in changed
    assert not any("_embeddings.weight" in name for name in changed)
    with torch.no_grad():
        assert torch.isfinite(outcome.model(input_ids=TRAIN.batch([0, 1])["input_ids"]).logits).all()


@pytest.mark.slow
def test_two_runs_with_one_seed_draw_different_noise() -> None:
    def weights() -> Tensor:
        found: Tensor = train(replace(PLAN, seed=7)).model.classifier.weight.detach()
        return found

    assert not torch.equal(weights(), weights())


class Stopped(Exception):
    """Stands for a kill."""


def killed(folder: Path, *, at_step: int, plan: DpSgdPlan = PLAN) -> RunFolder:
    def stop(stage: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if done == at_step:
            raise Stopped

    with pytest.raises(Stopped):
        train(plan, place=RunFolder(folder), progress=stop)
    return RunFolder(folder)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_resumed_run_reports_the_epsilon_of_the_whole(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, mode=mode)  # type: ignore[arg-type]
    place = killed(tmp_path, at_step=6, plan=plan)
    assert {path.stem for path in (tmp_path / "stages").iterdir()} == {"dpsgd-epoch-0001"}
    steps = []
    step = PrivateTraining.step
    monkeypatch.setattr(
        PrivateTraining, "step", lambda self, part: steps.append(self.steps) or step(self, part)
    )
    resumed = train(plan, place=place)
    assert min(steps) == 4  # the second epoch alone was trained, and it began at the weights of the first
    assert resumed.steps == 8
    assert [entry["epoch"] for entry in resumed.history] == [1, 2]
    whole = noise_multiplier_for(8.0, delta=1e-5, sample_rate=0.25, steps=8)
    assert resumed.noise_multiplier == whole
    assert epsilon_of([(whole, 0.25, 4)], delta=1e-5) < 7.0
    assert 7.5 < resumed.epsilon <= 8.0
    assert {path.stem for path in (tmp_path / "stages").iterdir()} == {"dpsgd-epoch-0002"}
    # Nothing is left to do, so nothing more is spent.
    again = train(plan, place=place)
    assert (again.steps, again.epsilon) == (8, resumed.epsilon)
    assert torch.equal(again.model.classifier.weight, resumed.model.classifier.weight)


@pytest.mark.slow
def test_the_epochs_of_another_run_are_refused_and_left_alone(tmp_path: Path) -> None:
    place = killed(tmp_path, at_step=5)
    state = tmp_path / "stages" / "dpsgd-epoch-0001.json"
    text = state.read_text()
    for changed, name in (({"model": bert(seed=3)}, "model"), ({"records": encoded_texts(31)}, "records")):
        with pytest.raises(InvalidInput, match=f"the same {name}"):
            train(place=place, **changed)
    assert state.read_text() == text


@pytest.mark.slow
def test_a_checkpoint_that_forgot_what_it_spent_is_refused(tmp_path: Path) -> None:
    place = killed(tmp_path, at_step=5)
    file = tmp_path / "stages" / "dpsgd-epoch-0001.json"
    state = json.loads(file.read_text())
    for history in ([], [[state["noise_multiplier"], 0.25, 1]], [[50.0, 0.25, 4]]):
        file.write_text(json.dumps(state | {"accountant_history": history}))
        with pytest.raises(InvalidInput, match="accountant's history"):
            train(place=place)
    file.write_text(json.dumps({name: state[name] for name in state if name != "accountant_history"}))
    with pytest.raises(InvalidInput, match="as it was written"):
        train(place=place)
    file.write_text(json.dumps(state))
    tensors = file.with_suffix(".safetensors")
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1])
    with pytest.raises(InvalidInput, match="as it was written"):
        train(place=place)
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InvalidInput, match="changed tensors"):
        train(place=place)


def test_records_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match="train labels"):
        train(records=encoded_texts(30, labels=LABELS + 4))
    with pytest.raises(InvalidInput, match="no labels"):
        train(records=encoded_texts(30, labels=0))


@pytest.mark.slow
def test_a_checkpoint_in_half_precision_trains_in_float32(tmp_path: Path) -> None:
    folder = tmp_path / "half"
    smoke_model(folder)
    AutoModel.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)
    plan = DpSgdPlan(
        task="sst2",
        model=str(folder),
        epsilon=8.0,
        # A rate of 1/4 and 8 steps, as everywhere here: the search for the noise takes seconds, once.
        epochs=2,
        batch=12,
        micro_batch=8,
        rows=16,
        train_limit=48,
        evaluation_limit=20,
        data=smoke_data(tmp_path / "data"),
    )
    report = run_dpsgd(plan, folder=tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert report["guarantee"]["training"]["epsilon"] <= 8.0
    assert run_dpsgd(plan, folder=tmp_path / "run") == report, "a finished run is not trained again"
