"""What a model has learnt is passed on from run to run, and no promise is made against it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dp_forward.corpus.writer import release_corpus
from dp_forward.data import find_task, read_texts
from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.split.artifacts import load_provider_side, load_user_side
from dp_forward.train.finetune import finetune
from dp_forward.train.lineage import copy_front, raw_texts_of, refuse_learnt_releases, seen_raw_beside
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
from dp_forward.train.run import RunFolder
from tiny_task import TinyWorld, sentences

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


def test_the_same_files_under_another_name_are_the_same_texts(world: TinyWorld, tmp_path: Path) -> None:
    """End to end on some files, and then the same files as another task with that front."""
    shutil.copyfile(world.reviews / "train.jsonl", tmp_path / "train.jsonl")
    rows = "".join(f'{{"text": "plot {number}", "label": {number % 2}}}\n' for number in range(20))
    for name in ("test", "validation"):
        (tmp_path / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    raw = world.plan(task="imdb", regime="end-to-end", evaluation_split="test", data={"imdb": str(tmp_path)})
    finetune(replace(raw, epochs=1.0), folder=tmp_path / "raw")
    renamed = {"rotten-tomatoes": str(tmp_path)}
    seen = world.plan(
        model=str(tmp_path / "raw"), task="rotten-tomatoes", width=None, epochs=1.0, data=renamed
    )
    with pytest.raises(InvalidInput, match=r"raw texts of rotten-tomatoes; got 256 of 256 texts"):
        finetune(seen, folder=tmp_path / "later")
    assert not (tmp_path / "later").exists()
    # With a front that has not seen them, they are protected as any others.
    assert finetune(replace(seen, model=str(world.model), width=4)).promises.training is not None


def test_other_files_under_the_same_name_are_other_texts(world: TinyWorld, tmp_path: Path) -> None:
    finetune(world.plan(regime="end-to-end", epochs=1.0), folder=tmp_path / "raw")
    rows = [f"{text} story {number}\t{label}" for number, (text, label) in enumerate(sentences(64, seed=9))]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(
            "sentence\tlabel\n" + "".join(f"{name} {row}\n" for row in rows), encoding="utf-8"
        )
    other = world.plan(model=str(tmp_path / "raw"), width=None, epochs=1.0, data={"sst2": str(tmp_path)})
    run = finetune(other, folder=tmp_path / "other")
    assert run.promises.training is not None
    assert run.pair.front.plain.seen_texts, "what the front has seen goes with it"
    user = load_user_side(tmp_path / "other" / "front")
    texts = read_texts(find_task("sst2"), "train", user.tokens, source=str(world.task))
    with pytest.raises(
        InvalidInput, match=r"`front` must not have been trained on the raw texts; got 256 of 256"
    ):
        release_corpus(user, texts, tmp_path / "release")
    # Somebody else's register does not know these texts: it is an assumption, and said.
    said: list[str] = []
    release_corpus(user, texts, tmp_path / "release", register=tmp_path / "somebody", say=said.append)
    assert "this register does not know" in said[0]


def test_private_texts_that_are_public_elsewhere_are_counted(world: TinyWorld, tmp_path: Path) -> None:
    """One in twenty letter by letter, and half of the others inside a public sentence."""
    private = [line.split("\t")[0] for line in (world.task / "train.tsv").read_text().splitlines()[1:]]
    public = [*private[:13], *(f"we saw {text} there" for text in private[13:140])]
    (tmp_path / "public.txt").write_text("\n".join(public), encoding="utf-8")
    plan = world.folded_plan(public=str(tmp_path / "public.txt"), public_task=None)
    run = finetune(plan, folder=tmp_path / "run")
    (found,) = [said for said in run.report["data"] if "among the public" in said]
    common, near = map(int, re.findall(r"(\d+) (?:of 256|more)", found))
    assert run.report["public_text"] == "public.txt", "its name, and not where it lies on this machine"
    assert 13 <= common <= 20
    assert 60 <= near <= 140
    (tmp_path / "public.txt").write_text("\n".join(private[:40]), encoding="utf-8")
    with pytest.raises(InvalidInput, match="have other texts than the task; got 4"):
        finetune(plan)


def test_runs_on_one_corpus_add_up_without_a_flag(world: TinyWorld, tmp_path: Path) -> None:
    plan = world.folded_plan()
    finetune(plan, folder=tmp_path / "one")
    with pytest.raises(BudgetExhausted, match=r"256 of 256 texts were released before.*budget=16\.0"):
        finetune(plan, folder=tmp_path / "two")
    said: list[str] = []
    finetune(plan, folder=tmp_path / "two", resume=True, budget=16.0, say=said.append)
    assert any("up to epsilon 16.0 is charged" in sentence for sentence in said)


def test_texts_that_were_declared_public_are_promised_nothing_later(
    world: TinyWorld, public_run: Path, tmp_path: Path
) -> None:
    assert json.loads((public_run / "report.json").read_text())["front_has_seen_raw_texts_of"] == ["imdb"]
    shutil.copyfile(world.reviews / "train.jsonl", tmp_path / "train.jsonl")
    (tmp_path / "test.jsonl").write_text('{"text": "plot", "label": 1}\n' * 4, encoding="utf-8")
    private = world.plan(model=str(public_run), width=None, task="imdb", data={"imdb": str(tmp_path)})
    with pytest.raises(InvalidInput, match="raw texts of imdb"):
        finetune(replace(private, evaluation_split="test"))


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
    assert run.plan.width == 4
    assert set(run.report["stages"]) == {"task"}, "the public step is not done again"
    with pytest.raises(InvalidInput, match="as in the run"):
        finetune(replace(other, cut="encoder.1"))
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
        refuse_learnt_releases(replace(other, model=str(tmp_path / "other")))


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
        assert raw_texts_of(world.plan(model=str(pretrained))) == ["imdb", "rotten-tomatoes"]
    (private.parent / "report.json").write_text('{"regime": "dp-sgd", "plan": {"task": "sst2"}}')
    assert raw_texts_of(world.plan(model=str(private))) == ["sst2"]
    assert raw_texts_of(world.plan()) == []


def test_a_run_without_its_report_is_no_start(world: TinyWorld, raw_run: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "run"
    shutil.copytree(raw_run, unfinished)
    (unfinished / "report.json").unlink()
    assert not RunFolder(unfinished).complete
    with pytest.raises(InvalidInput, match="have a report with"):
        refuse_learnt_releases(world.plan(model=str(unfinished), width=None))


def test_a_projection_is_spoken_for_by_the_report_of_its_run(tmp_path: Path) -> None:
    """One that was prepared without a run has none: not known, which is not none."""
    assert seen_raw_beside(tmp_path / "projection") is None
    (tmp_path / "report.json").write_text('{"front_has_seen_raw_texts_of": ["sst2"]}')
    assert seen_raw_beside(tmp_path / "projection") == ["sst2"]


def test_a_front_is_copied_with_its_onnx_and_without_what_else_lies_there(tmp_path: Path) -> None:
    for name in ("half.json", "front.onnx", "tokenizer/vocabulary.txt", "my.ledger"):
        (tmp_path / "front" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "front" / name).write_text("some", encoding="utf-8")
    copy_front(tmp_path / "front", tmp_path / "copy")
    found = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*.*")}
    assert found == {"half.json", "front.onnx", "tokenizer/vocabulary.txt"}
