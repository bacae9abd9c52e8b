"""Every regime trains, promises what is true of it, and goes on after a kill without drawing twice."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dp_forward.corpus.writer import ledger_of
from dp_forward.errors import InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.split.artifacts import load_provider_side
from dp_forward.train.finetune import finetune
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
from dp_forward.train.run import Run
from tiny_task import TinyWorld

KILLED = Path(__file__).with_name("killed_worker.py")


def test_end_to_end_learns_and_says_that_training_texts_are_not_protected(
    world: TinyWorld, tmp_path: Path
) -> None:
    plan = world.plan(regime="end-to-end", warm_up_epochs=1, draws=4, epochs=6.0)
    run = finetune(plan, folder=tmp_path / "run")
    assert run.report["accuracy"] > 0.8
    assert run.report["accuracy_without_noise"] > 0.9
    assert run.promises.training is None
    assert run.guarantee is not None
    written = (tmp_path / "run" / "report.md").read_text()
    assert "NOT protected" in written
    assert (
        f"always naming the most frequent label | {run.report['accuracy_of_commonest_label']:.4f}" in written
    )
    assert "not shown to be better" not in written
    assert (tmp_path / "run" / "curve.png").stat().st_size > 1000


def test_release_once_trains_the_back_from_one_charged_release(world: TinyWorld, tmp_path: Path) -> None:
    run = finetune(world.plan(label_epsilon=3.0, epochs=3.0), folder=tmp_path / "run")
    assert run.promises.training is not None
    assert run.promises.training.epsilon == pytest.approx(15.0)
    with Ledger.open(ledger_of(tmp_path / "run" / "releases")) as ledger:
        ledger.verify()
        assert ledger.releases == 1
        assert ledger.spent() == pytest.approx(15.0)


def test_the_front_of_release_once_is_the_published_one(world: TinyWorld) -> None:
    first, second = (finetune(world.plan(epochs=epochs)) for epochs in (1.0, 2.0))
    for name, value in first.pair.front.state_dict().items():
        assert value.equal(second.pair.front.state_dict()[name]), name


def test_public_front_learns_from_public_texts_and_protects_the_others(
    world: TinyWorld, tmp_path: Path
) -> None:
    plan = world.plan(
        regime="public-front",
        public_task="imdb",
        public_epochs=4.0,
        public_learning_rate=2e-3,
        public_batch=16,
        draws=4,
        warm_up_epochs=4,
        epochs=4.0,
    )
    run = finetune(plan, folder=tmp_path / "run")
    assert run.report["accuracy"] > 0.8
    assert run.promises.training is not None
    assert set(run.report["stages"]) == {"warm-up", "public", "task"}
    # Another mechanism on the same published front: the public step is not done again.
    gaussian = world.plan(
        model=str(tmp_path / "run"), width=None, mechanism="matrix-gaussian", epsilon=12.0, epochs=2.0
    )
    other = finetune(gaussian)
    assert other.plan.width == 4
    assert set(other.report["stages"]) == {"task"}
    with pytest.raises(InvalidInput, match="as in the run"):
        finetune(replace(gaussian, cut="encoder.1"))


def test_texts_that_a_front_was_trained_on_are_promised_nothing_later(
    world: TinyWorld, tmp_path: Path
) -> None:
    finetune(world.plan(regime="end-to-end", epochs=1.0), folder=tmp_path / "raw")
    later = world.plan(model=str(tmp_path / "raw"), width=None, epochs=1.0)
    with pytest.raises(InvalidInput, match="trained on the raw texts of sst2"):
        finetune(later, folder=tmp_path / "later")
    assert not (tmp_path / "later").exists()
    # Nor through a run in between, that saw the texts of another task raw.
    between = replace(later, regime="end-to-end", task="imdb", evaluation_split="train")
    run = finetune(between, folder=tmp_path / "between")
    assert run.report["front_has_seen_raw_texts_of"] == ["imdb", "sst2"]
    with pytest.raises(InvalidInput, match="raw texts of sst2"):
        finetune(replace(later, model=str(tmp_path / "between")))


def test_texts_that_were_declared_public_are_promised_nothing_later(world: TinyWorld, tmp_path: Path) -> None:
    public = {"public_task": "imdb", "public_epochs": 1.0, "public_batch": 16, "public_relabel": False}
    run = finetune(world.plan(regime="public-front", epochs=1.0, **public), folder=tmp_path / "run")
    assert run.report["front_has_seen_raw_texts_of"] == ["imdb"]
    later = world.plan(model=str(tmp_path / "run"), width=None, task="imdb")
    with pytest.raises(InvalidInput, match="raw texts of imdb"):
        finetune(later)


def test_two_releases_of_a_text_are_never_promised_as_one(world: TinyWorld, tmp_path: Path) -> None:
    finetune(world.plan(epochs=1.0), folder=tmp_path / "once")
    again = world.plan(model=str(tmp_path / "once"), width=None, epochs=1.0)
    with pytest.raises(InvalidInput, match="learnt from releases of sst2"):
        finetune(again)

    public = {"public_task": "imdb", "public_epochs": 1.0, "public_batch": 16, "public_relabel": False}
    first = world.plan(regime="public-front", epochs=3.0, learning_rate=0.05, **public)
    finetune(first, folder=tmp_path / "public")
    other = world.plan(
        model=str(tmp_path / "public"),
        width=None,
        mechanism="matrix-gaussian",
        epochs=1.0,
        learning_rate=1e-9,
        head_learning_rate=1e-9,
    )
    run = finetune(other, folder=tmp_path / "other")
    assert run.report["back_had_learnt_from_releases_of"] == []
    assert run.report["back_has_learnt_from_releases_of"] == ["sst2"]
    kept = load_provider_side(tmp_path / "public" / "public" / "back").back.state_dict()
    trained = load_provider_side(tmp_path / "public" / "back").back.state_dict()
    found = run.pair.back.state_dict()
    apart = [
        max(float((found[name] - value).abs().max()) for name, value in others.items())
        for others in (kept, trained)
    ]
    assert apart[0] < 1e-6, "it began where the releases had not been seen"
    assert apart[1] > 1e-3
    with pytest.raises(InvalidInput, match="learnt from releases of sst2"):
        finetune(replace(other, model=str(tmp_path / "other")))


def test_another_spelling_of_a_task_is_the_same_task(world: TinyWorld, tmp_path: Path) -> None:
    finetune(world.plan(task="SST2", regime="end-to-end", epochs=1.0), folder=tmp_path / "raw")
    with pytest.raises(InvalidInput, match="raw texts of sst2"):
        finetune(world.plan(model=str(tmp_path / "raw"), width=None))
    with pytest.raises(InvalidInput, match="differ from the task"):
        world.plan(regime="public-front", public_task="Sst2")


def test_a_label_is_answered_once(world: TinyWorld, tmp_path: Path) -> None:
    first = world.plan(regime="end-to-end", epochs=1.0)
    finetune(first, folder=tmp_path / "raw")
    finetune(replace(first, label_epsilon=1.0), folder=tmp_path / "answered")
    for start in ("raw", "answered"):
        with pytest.raises(InvalidInput, match="learnt labels of sst2"):
            finetune(replace(first, model=str(tmp_path / start), width=None, label_epsilon=1.0))


def test_private_texts_under_a_public_name_are_refused(world: TinyWorld, tmp_path: Path) -> None:
    lines = (world.task / "train.tsv").read_text().replace("sentence", "text", 1)
    (tmp_path / "train.tsv").write_text(lines)
    same = {"sst2": str(world.task), "imdb": str(tmp_path)}
    with pytest.raises(InvalidInput, match="private texts in it"):
        finetune(world.plan(regime="public-front", public_task="imdb", data=same))


def test_the_training_split_is_not_measured_on_where_it_is_protected(world: TinyWorld) -> None:
    with pytest.raises(InvalidInput, match="another than train"):
        world.plan(evaluation_split="Training")
    with pytest.raises(InvalidInput, match="another than train"):
        world.plan(regime="end-to-end", label_epsilon=1.0, evaluation_split="train")
    assert world.plan(regime="end-to-end", evaluation_split="train").task == "sst2"


def test_what_a_model_was_pretrained_or_trained_on_is_handed_down(world: TinyWorld, tmp_path: Path) -> None:
    pretrained, private = tmp_path / "pretrained", tmp_path / "run" / "model"
    for folder in (pretrained, private):
        shutil.copytree(world.model, folder)
    (private.parent / "report.json").write_text('{"regime": "dp-sgd", "plan": {"task": "sst2"}}')
    plan = PretrainPlan(corpus="movie-reviews", epsilon=8.0, steps=1).as_dict()
    for stored in ({"digest": "", "plan": plan}, plan):  # as a run folder has it, and as it once was
        (pretrained / "plan.json").write_text(json.dumps(stored))
        with pytest.raises(InvalidInput, match="raw texts of imdb"):
            finetune(world.plan(model=str(pretrained), task="imdb"))
    with pytest.raises(InvalidInput, match="raw texts of sst2"):
        finetune(world.plan(model=str(private)))


@pytest.mark.parametrize("regime", ["end-to-end", "release-once"])
def test_a_promise_per_token_is_refused_where_one_token_moves_every_row(
    world: TinyWorld, regime: str
) -> None:
    per_token = {"unit": "token", "mechanism": "matrix-gaussian", "regime": regime, "epochs": 1.0}
    with pytest.raises(InvalidInput, match="whole texts at the cut"):
        finetune(world.plan(cut="encoder.1", **per_token))
    run = finetune(world.plan(cut="embeddings", **per_token))
    assert run.guarantee is not None
    assert str(run.guarantee.unit) == "token"


def test_a_run_whose_front_has_other_noise_than_its_plan_is_refused(world: TinyWorld, tmp_path: Path) -> None:
    finetune(world.plan(epochs=1.0), folder=tmp_path / "run")
    form = tmp_path / "run" / "front" / "release.json"
    form.write_text(form.read_text().replace('"epsilon": 12.0', '"epsilon": 50.0'))
    with pytest.raises(InvalidInput, match="noise of its plan"):
        Run.load(tmp_path / "run")


def test_two_processes_make_one_run(world: TinyWorld, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv_backend=c10d"]
    words = [str(KILLED), str(world.model), str(world.task), str(tmp_path / "run"), "release-once"]
    done = subprocess.run(
        [*launch, "--rdzv_endpoint=localhost:0", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["stages"]["task"]["steps"] == 4 * 256 // 16
    with Ledger.open(ledger_of(tmp_path / "run" / "releases")) as ledger:
        assert ledger.releases == 1


def test_the_undefended_model_promises_nothing(world: TinyWorld) -> None:
    run = finetune(world.plan(regime="end-to-end", mechanism="none", epochs=4.0))
    assert run.guarantee is None
    assert run.report["accuracy"] == run.report["accuracy_without_noise"] > 0.9


def test_an_inner_cut_trains_with_the_auxiliary_loss_and_lora(world: TinyWorld) -> None:
    plan = world.plan(regime="end-to-end", cut="encoder.1", auxiliary_weight=1.0, lora_rank=2, epochs=1.0)
    run = finetune(plan)
    assert not [name for name, _ in run.pair.back.named_parameters() if "lora" in name], "merged again"


def test_randomized_labels_of_end_to_end_are_drawn_once(world: TinyWorld, tmp_path: Path) -> None:
    plan = world.plan(regime="end-to-end", label_epsilon=2.0, label_prior=[0.5, 0.5], epochs=1.0)
    run = finetune(plan, folder=tmp_path / "run")
    assert run.promises.labels is not None
    assert run.promises.training is None
    assert (tmp_path / "run" / "labels.npy").is_file()


def test_early_stopping_stops(world: TinyWorld) -> None:
    plan = world.plan(regime="end-to-end", mechanism="none", epochs=40.0, early_stopping=2)
    assert finetune(plan).report["stages"]["task"]["epochs"] < 40


def test_a_complete_run_is_given_again_and_can_be_saved(world: TinyWorld, tmp_path: Path) -> None:
    plan = world.plan(epochs=1.0)
    first = finetune(plan, folder=tmp_path / "run")
    started = time.perf_counter()
    again = finetune(plan, folder=tmp_path / "run", resume=True)
    assert time.perf_counter() - started < 5
    assert again.report == json.loads(json.dumps(first.report))
    assert again.guarantee is not None
    again.save(tmp_path / "copy")
    assert Run.load(tmp_path / "copy").metrics == again.metrics
    with pytest.raises(InvalidInput, match="new or empty"):
        again.save(tmp_path / "copy")


def test_labels_that_do_not_fit_are_refused(world: TinyWorld) -> None:
    with pytest.raises(InvalidInput, match="labels of sst2"):
        finetune(world.plan(regime="public-front", public_task="qqp"))
    with pytest.raises(InvalidInput, match="2 numbers"):
        finetune(world.plan(label_epsilon=1.0, label_prior=[0.2, 0.3, 0.5]))


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("shard-*"))}


def _worker(world: TinyWorld, out: Path, regime: str) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(KILLED), str(world.model), str(world.task), str(out), regime]
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("regime", "sign"),
    [("release-once", "releases/shard-*"), ("end-to-end", "stages/*/checkpoint-*/trainer_state.json")],
)
def test_a_killed_run_goes_on_without_charging_or_drawing_twice(
    world: TinyWorld, tmp_path: Path, regime: str, sign: str
) -> None:
    out = tmp_path / "run"
    worker = _worker(world, out, regime)
    deadline = time.monotonic() + 120
    while not list(out.glob(sign)) and time.monotonic() < deadline and worker.poll() is None:
        time.sleep(0.02)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert not (out / "report.json").exists(), "killed before its end"
    before = _digests(out / "releases")
    spent = None
    if regime == "release-once":
        with Ledger.open(ledger_of(out / "releases")) as ledger:
            spent = (ledger.releases, ledger.spent())
    again = _worker(world, out, regime)
    _, error = again.communicate(timeout=240)
    assert again.returncode == 0, error.decode()[-2000:]
    assert (out / "report.json").is_file()
    after = _digests(out / "releases")
    assert {name: after[name] for name in before} == before
    if spent is not None:
        with Ledger.open(ledger_of(out / "releases")) as ledger:
            ledger.verify()
            assert (ledger.releases, ledger.spent()) == spent


def test_a_model_that_learnt_nothing_is_called_so(world: TinyWorld, tmp_path: Path) -> None:
    run = finetune(world.plan(epsilon=0.01, epochs=1.0), folder=tmp_path / "run")
    assert run.report["accuracy"] < 0.75
    written = (tmp_path / "run" / "report.md").read_text()
    assert "not shown to be better than always naming the most frequent label" in written
    assert "--regime public-front" in written
