"""A back learns from releases alone, promises what they promise, and goes on after a kill."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import tiny_models
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec, RandomizedResponse
from dp_forward.service.server.app import make_app
from dp_forward.service.server.settings import ServerSettings
from dp_forward.split import split_model
from dp_forward.split.artifacts import half_digest, load_provider_side, load_user_side, save_split
from dp_forward.train.provider_training import _guarantee, finetune_from_releases, held_out_records
from dp_forward.train.regimes import with_subjects
from tiny_releases import TinyReleases, in_batches
from tiny_user import write_user
from warm_process import Script

pytestmark = pytest.mark.slow

KILLED = Path(__file__).with_name("killed_provider.py")


@pytest.fixture(scope="module")
def made() -> TinyReleases:
    return TinyReleases.shared()


@pytest.fixture(scope="module")
def trained(made: TinyReleases, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run on public labels that nothing interrupted."""
    run = tmp_path_factory.mktemp("trained") / "run"
    return run, finetune_from_releases(made.plan(), folder=run)


def test_a_back_learns_from_releases_and_the_report_promises_what_they_do(
    made: TinyReleases, trained: tuple[Path, dict[str, Any]]
) -> None:
    run, report = trained
    assert report["accuracy"] > 0.75
    assert report["accuracy_low"] < report["accuracy"] <= report["accuracy_high"] + 1e-12
    assert report["accuracy"] == report["accuracy_on_released_labels"]
    assert report["accuracy_without_noise"] is None
    assert (report["texts"], report["records"]) == (77, 179)
    assert report["regime"] == "release-once"
    corpus = ReleasedCorpus.open(made.public)
    assert report["guarantee"]["training"] == corpus.guarantee.as_dict()
    assert "the front does not depend on the released texts" in report["guarantee"]["training"]["assumptions"]
    assert report["central"] is None
    assert report["front_has_seen_raw_texts_of"] is None, "the start has no report: not known, not none"
    text = (run / "report.md").read_text()
    assert "No central promise." in text
    assert "not known here" in text
    assert json.loads((run / "report.json").read_text()) == json.loads(json.dumps(report))


@pytest.mark.parametrize(
    ("start", "limit"),
    [
        ({"seen_raw": ["sst2"], "learnt": []}, "NOT for texts of sst2"),
        ({"seen_raw": [], "learnt": ["sst2"]}, "learnt from releases of sst2 before"),
        ({"seen_raw": [], "learnt": None}, "What the back had learnt before is not known"),
    ],
)
def test_the_promise_in_one_paragraph_holds_its_limits(
    made: TinyReleases, start: dict[str, Any], limit: str
) -> None:
    corpus = ReleasedCorpus.open(made.public)
    said = _guarantee(corpus, **start)
    assert limit in said["statements"]["training_texts"]
    assert said["statement"] == " ".join(with_subjects(said["statements"]))
    free = _guarantee(corpus, seen_raw=[], learnt=[])
    assert limit not in free["statement"]


def test_shuffled_labels_teach_nothing(made: TinyReleases, tmp_path: Path) -> None:
    nothing = made.release(tmp_path / "releases", shuffle_labels=True)
    assert finetune_from_releases(made.plan(nothing), folder=tmp_path / "run")["accuracy"] < 0.72


def test_randomized_labels_are_undone_in_the_accuracy(made: TinyReleases, tmp_path: Path) -> None:
    report = finetune_from_releases(made.plan(made.randomized, held_out=0.5), folder=tmp_path / "run")
    keep = RandomizedResponse(2.0, 2).keep
    undone = (report["accuracy_on_released_labels"] - (1 - keep)) / (2 * keep - 1)
    assert report["accuracy"] == pytest.approx(min(undone, 1.0))
    assert report["accuracy"] > 0.7
    assert report["guarantee"]["training"]["epsilon"] == pytest.approx(14.0)
    assert report["guarantee"]["labels"]["epsilon"] == pytest.approx(2.0)


def test_only_a_corpus_in_shuffled_batches_has_a_central_epsilon(made: TinyReleases, tmp_path: Path) -> None:
    batches = in_batches(made.randomized, tmp_path / "batches")
    plan = made.plan(batches, epochs=1.0, central_delta=1e-6)
    report = finetune_from_releases(plan, folder=tmp_path / "run")
    central = report["central"]
    assert (central["delta"], central["batches"]) == (1e-6, 2)
    assert 0 < central["epsilon_upper"] <= report["guarantee"]["training"]["epsilon"]
    assert any("shuffler is honest" in assumption for assumption in central["assumptions"])
    assert "shuffler is honest" in (tmp_path / "run" / "report.md").read_text()


def test_the_run_is_served_and_its_front_belongs_to_it(
    made: TinyReleases, trained: tuple[Path, dict[str, Any]]
) -> None:
    run, report = trained
    split = json.loads((run / "split.json").read_text())
    assert split["digest_front"] == report["front"] == half_digest(made.start / "front")
    assert split["digest_back"] == half_digest(run / "back") != half_digest(made.start / "back")
    app = make_app(
        load_provider_side(run / "back"), front_digest=split["digest_front"], settings=ServerSettings()
    )
    with TestClient(app, base_url="http://127.0.0.1") as client:
        manifest = client.get("/v1/manifest").json()
    assert (manifest["front"], manifest["width"]) == (report["front"], 4)
    user = load_user_side(run / "front", digest=report["front"])
    assert user.spec == replace(load_provider_side(run / "back").spec, front=user.digest)


def test_a_back_alone_is_enough(made: TinyReleases, tmp_path: Path) -> None:
    shutil.copytree(made.start / "back", tmp_path / "elsewhere" / "mine")
    plan = made.plan(model=str(tmp_path / "elsewhere" / "mine"), epochs=1.0, held_out=0.0)
    report = finetune_from_releases(plan, folder=tmp_path / "run")
    assert report["accuracy"] is None
    assert (report["texts"], report["records"]) == (0, 256)
    assert not (tmp_path / "run" / "front").exists()
    assert json.loads((tmp_path / "run" / "split.json").read_text())["digest_front"] == report["front"]


def test_a_result_of_split_is_a_start(tmp_path: Path, made: TinyReleases) -> None:
    noise = NoiseSpec(epsilon=12.0)
    halves = write_user(tmp_path / "start", noise=noise, cut="encoder.1")
    bare = made.__class__(halves, tmp_path / "releases", tmp_path, made.world)
    bare.release(bare.public, limit=40)
    for side in ("front", "back"):
        (halves / side / "release.json").unlink()
    finetune_from_releases(bare.plan(epochs=1.0), folder=tmp_path / "run")
    assert load_provider_side(tmp_path / "run" / "back").spec.noise == noise


def test_held_out_records_are_by_the_seed_and_never_trained_on() -> None:
    train, held = held_out_records(101, share=0.1, seed=4)
    assert len(held) == 11
    assert sorted([*train, *held]) == list(range(101))
    again, other = held_out_records(101, share=0.1, seed=4), held_out_records(101, share=0.1, seed=5)
    assert np.array_equal(again[1], held)
    assert not np.array_equal(other[1], held)
    with pytest.raises(InvalidInput, match="records to train on"):
        held_out_records(1, share=0.1, seed=0)


def _elsewhere(made: TinyReleases, folder: Path) -> Path:
    return Path(shutil.copytree(made.start, folder / "start"))


def _other_front(made: TinyReleases, folder: Path) -> Path:
    start = _elsewhere(made, folder)
    summary = json.loads((start / "split.json").read_text())
    (start / "split.json").write_text(json.dumps(summary | {"digest_front": "ab" * 32}))
    return start


def _front_swapped(made: TinyReleases, folder: Path) -> Path:
    start = _elsewhere(made, folder)
    other = write_user(folder / "other", noise=NoiseSpec(epsilon=12.0), cut="output")
    shutil.rmtree(start / "front")
    shutil.copytree(other / "front", start / "front")
    return start


def _other_noise(made: TinyReleases, folder: Path) -> Path:
    start = _elsewhere(made, folder)
    form = json.loads((start / "back" / "release.json").read_text())
    form["noise"]["epsilon"] = 6.0
    (start / "back" / "release.json").write_text(json.dumps(form))
    return start


def _back_only(folder: Path, *, width: int, labels: int = 2) -> Path:
    whole = tiny_models.tiny("bert", blocks=2, num_labels=labels)
    save_split(split_model(whole, "output", width=width), folder / "halves")
    shutil.copytree(folder / "halves" / "back", folder / "alone" / "back")
    return folder / "alone"


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (_other_front, "front of the model"),
        (_front_swapped, "front of the model"),
        (_other_noise, "have the noise"),
        (lambda made, folder: _back_only(folder, width=3), "matrices of 1 x 3"),
        (lambda made, folder: _back_only(folder, width=4, labels=3), "each of the 2 labels"),
        (lambda made, folder: made.start / "front", "hold a back"),
        (lambda made, folder: folder / "nowhere", "hold a back"),
    ],
)
def test_a_start_that_does_not_fit_is_refused_and_leaves_nothing(
    made: TinyReleases, tmp_path: Path, start: Any, named: str
) -> None:
    plan = made.plan(model=str(start(made, tmp_path)))
    with pytest.raises(InvalidInput, match=named):
        finetune_from_releases(plan, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_releases_without_labels_are_refused(made: TinyReleases, tmp_path: Path) -> None:
    blank = made.release(tmp_path / "releases", publish_labels=False, limit=20)
    with pytest.raises(InvalidInput, match="hold labels"):
        finetune_from_releases(made.plan(blank), folder=tmp_path / "run")


def test_a_complete_run_is_given_again_and_another_plan_is_refused(
    made: TinyReleases, trained: tuple[Path, dict[str, Any]]
) -> None:
    run, report = trained
    assert finetune_from_releases(made.plan(), folder=run) == json.loads(json.dumps(report))
    for other in (made.plan(seed=1), made.plan(made.randomized)):
        with pytest.raises(InvalidInput, match="no other plan"):
            finetune_from_releases(other, folder=run)


class Stopped(Exception):
    """Stands for the end of the process."""


def test_what_was_trained_before_a_stop_is_not_trained_again(made: TinyReleases, tmp_path: Path) -> None:
    seen: list[str] = []

    def stop(stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        seen.append(stage)
        if stage == "evaluating":
            raise Stopped

    plan = made.plan(epochs=1.0)
    with pytest.raises(Stopped):
        finetune_from_releases(plan, folder=tmp_path / "run", progress=stop)
    assert "task" in seen
    seen.clear()
    with pytest.raises(Stopped):
        finetune_from_releases(plan, folder=tmp_path / "run", resume=True, progress=stop)
    assert "task" not in seen
    report = finetune_from_releases(plan, folder=tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "stages").exists()
    assert report["stages"]["task"]["steps"] == 12


def test_a_run_killed_at_step_20_goes_on_from_its_checkpoint(
    made: TinyReleases, trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = [json.dumps(made.plan().as_dict()), str(run)]
    ended = Script(KILLED, words, log=run.with_name("log"), OMP_NUM_THREADS="1")
    assert ended.finish() == -signal.SIGKILL
    assert not (run / "report.json").exists()
    with pytest.raises(InvalidInput, match="resume=True"):
        finetune_from_releases(made.plan(), folder=run)
    steps: list[int] = []

    def told(stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        if stage == "task":
            steps.append(done)

    report = finetune_from_releases(made.plan(), folder=run, resume=True, progress=told)
    assert steps[0] == 13, "an epoch is 12 steps, and the first one is not taken again"
    assert report["stages"]["task"]["steps"] == 48
    assert half_digest(run / "back") == half_digest(trained[0] / "back"), "as if nothing had happened"
