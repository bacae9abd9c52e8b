"""The default regime on a tiny model: one folded release per record, the closed form, what is said of it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import ledger_of
from dp_forward.errors import InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.privacy import Notion
from dp_forward.split.halves import AnswerBack, ReadoutFront
from dp_forward.train import finetune as module
from dp_forward.train.closed_form_training import PROJECTION, Projected, compare_noise, label_phrases
from dp_forward.train.finetune import finetune, preview
from dp_forward.train.report import weakness
from dp_forward.train.run import Run
from tiny_task import TinyWorld


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return TinyWorld.under(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def run(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return finetune(world.folded_plan(), folder=folder), folder


def test_it_learns_from_one_release_of_text_and_label(run: tuple[Run, Path]) -> None:
    made, folder = run
    assert isinstance(made.pair.front, ReadoutFront)
    assert isinstance(made.pair.back, AnswerBack)
    assert made.promises.training is not None
    assert made.promises.training.notion is Notion.RECORD_LDP
    corpus = ReleasedCorpus.open(folder / "releases")
    assert (len(corpus), corpus.spec.labels) == (256, "folded")
    with Ledger.open(ledger_of(folder / "releases")) as ledger:
        assert ledger.spent() == pytest.approx(8.0)
        assert ledger.releases == 1
    assert made.report["accuracy"] > 0.7
    assert made.report["accuracy_low"] > made.report["accuracy_of_commonest_label"]
    assert made.report["records"] == 256
    assert sum(made.report["shares"].values()) == pytest.approx(1.0)


def test_it_is_read_back_as_it_was(run: tuple[Run, Path]) -> None:
    made, folder = run
    again = Run.load(folder)
    assert again.spec == made.spec or again.spec.noise == made.spec.noise
    assert again.promises.statements == made.promises.statements
    assert json.loads((folder / "report.json").read_text())["regime"] == "release-once"


def test_it_follows_from_the_releases_alone(run: tuple[Run, Path]) -> None:
    """The same releases give the same front, bit for bit, and other ones another."""
    made, folder = run
    projected, corpus = Projected.load(folder / PROJECTION), ReleasedCorpus.open(folder / "releases")
    assert made.plan.noise is not None
    refined = projected.refine(corpus, query=made.plan.noise)
    front = made.pair.front
    assert isinstance(front, ReadoutFront)
    assert front.decide is not None
    np.testing.assert_array_equal(
        front.decide.weight.detach().numpy(), refined.learnt.weights.astype(np.float32)
    )
    assert not np.allclose(projected.prior().weights, refined.learnt.weights)


@pytest.mark.slow
def test_a_run_that_is_killed_after_the_charge_draws_and_charges_nothing_again(
    world: TinyWorld, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    if os.fork() == 0:
        module.Projected.refine = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
        finetune(world.folded_plan(), folder=folder)
        os._exit(9)
    assert os.wait()[1] == signal.SIGKILL
    before = {path.name: path.read_bytes() for path in (folder / "releases").iterdir()}
    made = finetune(world.folded_plan(), folder=folder, resume=True)
    assert {path.name: path.read_bytes() for path in (folder / "releases").iterdir()} == before
    with Ledger.open(ledger_of(folder / "releases")) as ledger:
        assert ledger.releases == 1
    assert made.report["accuracy"] > 0.6


@pytest.mark.slow
def test_a_preview_charges_and_stores_nothing(world: TinyWorld, tmp_path: Path) -> None:
    found, said = preview(world.folded_plan())
    assert (found["records"], found["labels"]) == (256, 2)
    assert found["epsilon"] == pytest.approx(8.0)
    assert "text and label together" in said[0]
    few, words = preview(world.folded_plan(train_limit=20, epsilon=0.5))
    assert few["expected_signal"] < 1 < found["expected_signal"]
    assert any("not enough" in sentence for sentence in words)
    assert list(tmp_path.iterdir()) == []


def test_without_public_text_it_says_what_is_lost(world: TinyWorld) -> None:
    _, said = preview(world.folded_plan(public_task=None))
    assert any("directions are random" in sentence for sentence in said)


@pytest.mark.slow
def test_a_front_that_public_text_trained_is_protected_as_well(world: TinyWorld, tmp_path: Path) -> None:
    public = {
        "regime": "public-front",
        "warm_up_epochs": 4.0,
        "public_batch": 16,
        "public_learning_rate": 2e-3,
    }
    made = finetune(world.folded_plan(**public), folder=tmp_path / "run")
    assert made.report["accuracy"] > 0.8
    assert made.promises.training is not None
    assert made.promises.training.epsilon == pytest.approx(8.0)


def test_too_little_public_text_is_refused_before_a_front_trains_on_it(
    world: TinyWorld, tmp_path: Path
) -> None:
    plan = world.folded_plan(regime="public-front", public_limit=10)
    with pytest.raises(InvalidInput, match="texts or more"):
        finetune(plan, folder=tmp_path / "run")
    assert not any((tmp_path / "run").rglob("*.safetensors")), "no stage was finished"


def test_the_other_noises_are_compared_on_the_same_records(run: tuple[Run, Path]) -> None:
    made, folder = run
    found = compare_noise(made.plan, folder / PROJECTION, gaussian_delta=1e-5)
    assert found["without_noise"] > 0.8
    assert found["gaussian"] <= found["without_noise"] + 0.05


def test_a_label_is_described_by_its_words_unless_it_has_none() -> None:
    labels = ("late_delivery", "re-fund")
    assert label_phrases(labels, {}) == {"late_delivery": ("late delivery",), "re-fund": ("re fund",)}
    assert label_phrases(labels, {"re-fund": ["money back"]})["re-fund"] == ("money back",)
    assert label_phrases(("0", "1"), {}) == {}
    with pytest.raises(InvalidInput, match="describe"):
        label_phrases(labels, {"praise": ["thanks"]})


def test_a_model_that_is_not_better_than_its_descriptions_is_called_so() -> None:
    report = {"accuracy": 0.7, "accuracy_low": 0.66, "accuracy_of_commonest_label": 0.5, "texts": 100}
    assert weakness(report) is None
    described = {**report, "accuracy_of_descriptions": 0.6}
    assert "descriptions" in (weakness({**described, "gain_over_descriptions_low": -0.01}) or "")
    assert weakness({**described, "gain_over_descriptions_low": 0.01}) is None
