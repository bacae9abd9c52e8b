"""What a model has learnt is passed on from run to run, and no promise is made against it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.split.artifacts import load_provider_side
from dp_forward.train.finetune import finetune
from dp_forward.train.lineage import (
    raw_texts_of,
    refuse_front_that_saw,
    refuse_seen_texts,
    seen_raw_beside,
)
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
from dp_forward.train.run import RunFolder
from tiny_task import TinyWorld

pytestmark = pytest.mark.slow


def test_texts_that_a_front_was_trained_on_are_promised_nothing_later(
    world: TinyWorld, raw_run: Path, tmp_path: Path
) -> None:
    later = world.plan(model=str(raw_run), width=None, epochs=1.0)
    with pytest.raises(InvalidInput, match="trained on the raw texts of sst2"):
        finetune(later, folder=tmp_path / "later")
    assert not (tmp_path / "later").exists()
    # Nor through a run in between, that saw the texts of another task raw.
    between = replace(later, regime="end-to-end", task="imdb", evaluation_split="train")
    run = finetune(between, folder=tmp_path / "between")
    assert run.report["front_has_seen_raw_texts_of"] == ["imdb", "sst2"]
    with pytest.raises(InvalidInput, match="raw texts of sst2"):
        finetune(replace(later, model=str(tmp_path / "between")))


def test_texts_that_were_declared_public_are_promised_nothing_later(
    world: TinyWorld, public_run: Path
) -> None:
    assert json.loads((public_run / "report.json").read_text())["front_has_seen_raw_texts_of"] == ["imdb"]
    with pytest.raises(InvalidInput, match="raw texts of imdb"):
        refuse_seen_texts(world.plan(model=str(public_run), width=None, task="imdb"))


def test_two_releases_of_a_text_are_never_promised_as_one(
    world: TinyWorld, released_run: Path, public_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="learnt from releases of sst2"):
        finetune(world.plan(model=str(released_run), width=None, epochs=1.0))
    other = world.plan(
        model=str(public_run),
        width=None,
        mechanism="matrix-gaussian",
        epochs=1.0,
        learning_rate=1e-9,
        head_learning_rate=1e-9,
    )
    run = finetune(other, folder=tmp_path / "other")
    assert run.report["back_had_learnt_from_releases_of"] == []
    assert run.report["back_has_learnt_from_releases_of"] == ["sst2"]
    kept = load_provider_side(public_run / "public" / "back").back.state_dict()
    trained = load_provider_side(public_run / "back").back.state_dict()
    found = run.pair.back.state_dict()
    apart = [
        max(float((found[name] - value).abs().max()) for name, value in others.items())
        for others in (kept, trained)
    ]
    assert apart[0] < 1e-6, "it began where the releases had not been seen"
    assert apart[1] > 1e-3
    with pytest.raises(InvalidInput, match="learnt from releases of sst2"):
        refuse_seen_texts(replace(other, model=str(tmp_path / "other")))


def test_another_spelling_of_a_task_is_the_same_task(world: TinyWorld) -> None:
    assert world.plan(task="SST2").task == "sst2"
    with pytest.raises(InvalidInput, match="differ from the task"):
        world.plan(regime="public-front", public_task="Sst2")


def test_a_label_is_answered_once(world: TinyWorld, raw_run: Path, tmp_path: Path) -> None:
    answered = world.plan(regime="end-to-end", epochs=1.0, label_epsilon=1.0)
    finetune(answered, folder=tmp_path / "answered")
    for start in (raw_run, tmp_path / "answered"):
        with pytest.raises(InvalidInput, match="learnt labels of sst2"):
            finetune(replace(answered, model=str(start), width=None))


def test_what_a_model_was_pretrained_or_trained_on_is_passed_on(world: TinyWorld, tmp_path: Path) -> None:
    pretrained, private = tmp_path / "pretrained", tmp_path / "run" / "model"
    for folder in (pretrained, private):
        shutil.copytree(world.model, folder)
    plan = PretrainPlan(corpus="movie-reviews", epsilon=8.0, steps=1).as_dict()
    for stored in ({"digest": "", "plan": plan}, plan):  # as a run folder has it, and as it once was
        (pretrained / "plan.json").write_text(json.dumps(stored))
        with pytest.raises(InvalidInput, match="raw texts of imdb"):
            finetune(world.plan(model=str(pretrained), task="imdb"))
    (private.parent / "report.json").write_text('{"regime": "dp-sgd", "plan": {"task": "sst2"}}')
    with pytest.raises(InvalidInput, match="raw texts of sst2"):
        finetune(world.plan(model=str(private)))
    assert raw_texts_of(world.plan()) == []


def test_a_run_without_its_report_is_no_start(world: TinyWorld, raw_run: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "run"
    shutil.copytree(raw_run, unfinished)
    (unfinished / "report.json").unlink()
    assert not RunFolder(unfinished).complete
    with pytest.raises(InvalidInput, match="have a report with"):
        refuse_seen_texts(world.plan(model=str(unfinished), width=None))


def test_a_projection_is_spoken_for_by_the_report_of_its_run(tmp_path: Path) -> None:
    """One that was prepared without a run has none, and that it saw no text is an assumption."""
    front = tmp_path / "projection" / "front"
    front.mkdir(parents=True)
    (tmp_path / "projection" / "projection.safetensors").touch()
    refuse_front_that_saw("sst2", front)
    assert seen_raw_beside(front.parent) is None
    (tmp_path / "report.json").write_text('{"front_has_seen_raw_texts_of": ["sst2"]}')
    refuse_front_that_saw("imdb", front)
    with pytest.raises(InvalidInput, match="raw texts of sst2"):
        refuse_front_that_saw("sst2", front)
    assert seen_raw_beside(front.parent) == ["sst2"]
