"""The DP-SGD baseline: the promise it makes, what it clips, and what it takes up after an interruption."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tiny_models import LABELS, VOCABULARY, tiny

pytest.importorskip("opacus")

from dp_forward.errors import InvalidInput
from dp_forward.train.dpsgd import private_optimizer as dpsgd_private
from dp_forward.train.dpsgd.accounting import as_replace_one, sampling
from dp_forward.train.dpsgd.clipping_check import clipping_error, made_up
from dp_forward.train.dpsgd.dpsgd_training import DpSgdSettings, epsilon_of, noise_multiplier_for, train_dpsgd
from dp_forward.train.dpsgd.private_optimizer import Private, make_private, set_trainable

ROWS = 6
# RDP is loose and quick; what is tested here does not depend on the accountant.
QUICK = DpSgdSettings(epsilon=8.0, epochs=2, batch=8, micro_batch=3, accountant="rdp")


class Texts:
    """Encoded texts whose label is their first token's remainder."""

    def __init__(self, count: int, *, seed: int = 0, labels: int = LABELS) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(2, VOCABULARY, (count, ROWS), generator=generator)
        self._labels = self.ids[:, 0] % labels

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        mask = torch.ones(ROWS, dtype=torch.long)
        return {"input_ids": self.ids[index], "attention_mask": mask, "labels": self._labels[index]}


TRAIN, EVALUATION = Texts(30), Texts(10, seed=1)


def bert(**settings: Any) -> Any:
    return tiny("bert", blocks=1, **settings)


def private(
    mode: str,
    *,
    clip_norm: float = 1.0,
    noise_multiplier: float = 1.0,
    model: Any = None,
    records: Texts = TRAIN,
) -> Private:
    model = set_trainable(model or bert(), "frozen-embeddings", lora_rank=1)
    weights = [p for p in model.parameters() if p.requires_grad]
    return make_private(
        model,
        records=records,
        optimizer=torch.optim.SGD(weights, lr=0.0),
        mode=mode,  # type: ignore[arg-type]
        batch=8,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
    )


@pytest.mark.parametrize("trainable", ["frozen-embeddings", "lora"])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_run_stays_within_its_budget_and_says_what_it_promises(mode: str, trainable: str) -> None:
    model = bert()
    heard: list[dict[str, float]] = []
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    outcome = train_dpsgd(
        model,
        TRAIN,
        EVALUATION,
        replace(QUICK, mode=mode, trainable=trainable),  # type: ignore[arg-type]
        on_progress=heard.append,
    )
    assert 7.5 < outcome.epsilon <= 8.0
    assert outcome.steps == 8
    assert [entry["step"] for entry in outcome.history] == [4, 8]
    assert outcome.accuracy == outcome.history[-1]["accuracy"]
    assert sum("accuracy" in entry for entry in heard) == 2
    assert [entry["step"] for entry in heard if "accuracy" not in entry] == list(range(1, 9))
    for word in ("added or removed", "replaced", "trains sees every text", "query at inference is sent raw"):
        assert word in outcome.statement
    after = outcome.model.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "classifier.weight" in changed
    assert not any("_embeddings.weight" in name for name in changed)
    with torch.no_grad():
        assert torch.isfinite(outcome.model(input_ids=TRAIN.ids).logits).all()


def test_the_noise_multiplier_is_the_reference_rounded_to_the_safe_side() -> None:
    # 25,000 records, batches of 32, three epochs, delta 1e-5: the exact value by privacy-loss distributions.
    exact = 0.6982679341457687
    found = noise_multiplier_for(1.0, delta=1e-5, sample_rate=0.00128, steps=2344)
    assert exact < found < 1.005 * exact
    spent = epsilon_of(found, delta=1e-5, sample_rate=0.00128, steps=2344)
    assert 0.98 < spent <= 1.0
    assert epsilon_of(exact * 0.98, delta=1e-5, sample_rate=0.00128, steps=2344) > 1.0


def test_a_run_without_noise_has_no_epsilon_and_is_refused() -> None:
    assert epsilon_of(0.0, delta=1e-5, sample_rate=0.01, steps=100) == math.inf
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        private("hooks", noise_multiplier=0.0)
    with pytest.raises(InvalidInput, match="epsilon"):
        replace(QUICK, epsilon=math.inf)


def test_replacing_a_record_is_removing_one_and_adding_another() -> None:
    epsilon, delta = as_replace_one(1.0, 1e-5)
    assert epsilon == 2.0
    assert delta == pytest.approx((1 + math.e) * 1e-5)


def sum_of(made: Private, texts: list[int]) -> Tensor:
    """The clipped sum of some records before the noise, by Opacus."""
    part = [torch.stack(parts) for parts in zip(*(made.loader.dataset[i] for i in texts), strict=True)]
    made.backward(part)
    made.optimizer.accumulate() if made.mode == "ghost" else made.optimizer.clip_and_accumulate()
    found = torch.cat([p.summed_grad.flatten() for p in made.optimizer.params]).clone()
    made.optimizer.zero_grad()
    return found


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


class Padded(Texts):
    """The same texts, each cut to a length of its own and filled up with PAD."""

    @property
    def lengths(self) -> list[int]:
        return [1 + 5 * index % ROWS for index in range(len(self))]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        kept = torch.arange(ROWS) < self.lengths[index]
        found = super().__getitem__(index)
        return {**found, "input_ids": found["input_ids"] * kept, "attention_mask": kept.long()}


def test_columns_that_are_pad_in_all_texts_are_left_out_and_change_nothing() -> None:
    made = private("hooks", model=without_dropout())
    texts = [Padded(30)[index] for index in (0, 3, 6)]
    part = [torch.stack([text[name] for text in texts]) for name in made.names]
    kept = max(Padded(30).lengths[index] for index in (0, 3, 6))
    inputs, labels = made.inputs(part)
    assert {value.shape for value in inputs.values()} == {(3, kept)}
    assert kept < ROWS
    assert torch.equal(labels, part[-1])
    whole = dict(zip(made.names[:-1], part[:-1], strict=True))
    torch.testing.assert_close(made.module(**inputs).logits, made.module(**whole).logits)
    left = {name: value.flip(1) for name, value in whole.items()}
    assert made.inputs([*left.values(), part[-1]])[0]["input_ids"].shape == (3, ROWS), "PAD on the left stays"


def test_a_batch_goes_from_short_to_long_and_holds_the_same_records() -> None:
    made = private("ghost", records=Padded(30))
    assert len(made._by_length().batch_sampler) == len(made.loader)  # type: ignore[arg-type]
    # The same generator, so the same draws: what Opacus drew, and what we make of it.
    state = made.loader.generator.get_state()
    drawn = [list(batch) for batch in made.loader.batch_sampler]  # type: ignore[union-attr]
    made.loader.generator.set_state(state)
    ours = [list(batch) for batch in made._by_length().batch_sampler]  # type: ignore[union-attr]
    lengths = Padded(30).lengths
    assert ours == [sorted(batch, key=lengths.__getitem__) for batch in drawn]
    assert ours != drawn
    assert list(dpsgd_private._ByLength([[3, 1, 2], [], [5]], [0, 9, 7, 8, 0, 1])) == [[2, 3, 1], [], [5]]
    plain = private("ghost")
    assert plain._by_length() is plain.loader, "records that do not know their lengths keep their order"


def without_dropout() -> Any:
    return bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_an_empty_batch_is_a_step_of_noise_alone_and_of_the_right_size(mode: str) -> None:
    made = private(mode, clip_norm=0.5, noise_multiplier=3.0)
    empty = [torch.zeros((0, ROWS), dtype=torch.long)] * 2 + [torch.zeros(0, dtype=torch.long)]
    made.step(empty)
    drawn = torch.cat([p.grad.flatten() for p in made.optimizer.params]) * made.optimizer.expected_batch_size
    ratio = float(drawn.std()) / (3.0 * 0.5)
    tolerance = 4 / math.sqrt(2 * drawn.numel())
    assert abs(ratio - 1) < tolerance
    assert abs(ratio * 2 / 3 - 1) > tolerance  # the control: noise of two thirds would be noticed
    assert made.history == [(3.0, 0.25, 1)]


def test_two_runs_with_one_seed_draw_different_noise() -> None:
    def weights() -> Tensor:
        outcome = train_dpsgd(bert(), TRAIN, EVALUATION, replace(QUICK, epochs=1, seed=7))
        return outcome.model.classifier.weight.detach()

    assert not torch.equal(weights(), weights())


def test_a_layer_that_opacus_would_clip_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = private("hooks", model=without_dropout())
    trial = made_up(made.loader.dataset[0], made.names, vocabulary=VOCABULARY, labels=LABELS)
    assert clipping_error(made, trial) < 1e-3
    made.plain()

    from opacus.grad_sample import GradSampleModule

    right = GradSampleModule.GRAD_SAMPLERS[nn.LayerNorm]

    def wrong(*given: Any) -> Any:
        return {parameter: gradient / 2 for parameter, gradient in right(*given).items()}

    monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, nn.LayerNorm, wrong)
    with pytest.raises(InvalidInput, match="clipped gradients wrong by"):
        private("hooks")


class Stopped(Exception):
    """Stands for a kill."""


def killed(folder: Path, *, at_step: int, settings: DpSgdSettings = QUICK) -> None:
    def stop(progress: dict[str, float]) -> None:
        if progress["step"] == at_step:
            raise Stopped

    with pytest.raises(Stopped):
        train_dpsgd(bert(), TRAIN, EVALUATION, settings, folder=folder, on_progress=stop)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_resumed_run_reports_the_epsilon_of_the_whole(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(QUICK, mode=mode, trainable="lora")  # type: ignore[arg-type]
    killed(tmp_path, at_step=6, settings=settings)
    assert [path.name for path in tmp_path.iterdir()] == ["dpsgd-epoch-0001"]
    steps = []
    step = Private.step
    monkeypatch.setattr(Private, "step", lambda self, part: steps.append(self.steps) or step(self, part))
    resumed = train_dpsgd(bert(), TRAIN, EVALUATION, settings, folder=tmp_path, resume=True)
    assert min(steps) == 4  # the second epoch alone was trained, and it began at the weights of the first
    assert resumed.steps == 8
    assert [entry["epoch"] for entry in resumed.history] == [1, 2]
    whole = noise_multiplier_for(8.0, delta=1e-5, sample_rate=0.25, steps=8, accountant="rdp")
    assert resumed.noise_multiplier == whole
    rest = epsilon_of(whole, delta=1e-5, sample_rate=0.25, steps=4, accountant="rdp")
    assert rest < 7.0
    assert 7.5 < resumed.epsilon <= 8.0
    # Nothing is left to do, so nothing more is spent.
    again = train_dpsgd(bert(), TRAIN, EVALUATION, settings, folder=tmp_path, resume=True)
    assert (again.steps, again.epsilon) == (8, resumed.epsilon)
    assert torch.equal(again.model.classifier.weight, resumed.model.classifier.weight)


def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    killed(tmp_path, at_step=5)
    state = tmp_path / "dpsgd-epoch-0001" / "state.json"
    text = state.read_text()
    with pytest.raises(InvalidInput, match="be new"):
        train_dpsgd(bert(), TRAIN, EVALUATION, QUICK, folder=tmp_path)
    others: list[tuple[Any, Texts, DpSgdSettings, str]] = [
        (bert(), TRAIN, replace(QUICK, clip_norm=2.0), "settings"),
        (bert(seed=3), TRAIN, QUICK, "model_digest"),
        (bert(), Texts(31), QUICK, "records"),
    ]
    for model, train, settings, name in others:
        with pytest.raises(InvalidInput, match=name):
            train_dpsgd(model, train, EVALUATION, settings, folder=tmp_path, resume=True)
    assert state.read_text() == text


def test_a_checkpoint_that_forgot_what_it_spent_is_refused(tmp_path: Path) -> None:
    killed(tmp_path, at_step=5)
    folder = tmp_path / "dpsgd-epoch-0001"
    state = json.loads((folder / "state.json").read_text())
    for history in ([], [[state["noise_multiplier"], 0.25, 1]], [[50.0, 0.25, 4]]):
        (folder / "state.json").write_text(json.dumps(state | {"accountant_history": history}))
        with pytest.raises(InvalidInput, match="accountant's history"):
            train_dpsgd(bert(), TRAIN, EVALUATION, QUICK, folder=tmp_path, resume=True)
    (folder / "state.json").write_text(json.dumps(state))
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InvalidInput, match=r"truncated weights\.safetensors"):
        train_dpsgd(bert(), TRAIN, EVALUATION, QUICK, folder=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "magic"),
        ("trainable", "everything"),
        ("accountant", "gdp"),
        ("epsilon", 0.0),
        ("delta", 1.5),
        ("clip_norm", 0.0),
        ("epochs", 0),
        ("micro_batch", 0),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"`{name}`"):
        replace(QUICK, **{name: value})


def test_records_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match="train labels"):
        train_dpsgd(bert(), Texts(30, labels=LABELS + 4), EVALUATION, QUICK)
    with pytest.raises(InvalidInput, match="`batch`"):
        sampling(8, 8)
    unlabelled = [{"input_ids": TRAIN.ids[0], "attention_mask": torch.ones(ROWS)}] * 9
    with pytest.raises(InvalidInput, match="no labels"):
        train_dpsgd(bert(), unlabelled, EVALUATION, QUICK)


def test_what_opacus_cannot_clip_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert()
    model.classifier = nn.Sequential(nn.BatchNorm1d(32), model.classifier)
    with pytest.raises(InvalidInput, match="Opacus can clip"):
        private("hooks", model=model)
    with pytest.raises(InvalidInput, match="Opacus can clip"):  # its blocks share their weights
        private("ghost", model=tiny("albert", blocks=2))
    monkeypatch.setattr(dpsgd_private, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="torchcsprng"):
        train_dpsgd(bert(), TRAIN, EVALUATION, replace(QUICK, secure=True))


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
