"""The training verbs, from flags or a TOML plan, with JSON, one-line errors and exit codes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from known_noise import known_noise  # noqa: F401 - a fixture
from tiny_task import TinyWorld


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return TinyWorld.under(tmp_path_factory.mktemp("world"))


def _words(world: TinyWorld, *more: str) -> list[str]:
    small = ["--rows", "12", "--width", "4", "--batch", "16", "--epochs", "1"]
    small += ["--evaluation-draws", "3", "--learning-rate", "0.002"]
    where = ["--model", str(world.model), "--task", "sst2", "--data", f"sst2={world.task}"]
    return ["finetune", *where, *small, *more]


@pytest.mark.slow
def test_finetune_evaluate_and_release_work_on_one_run(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = dpf(*_words(world, "--epsilon", "8", "--out", str(run), "--json"))
    assert done.code == 0, done.err
    assert done.json.keys() >= {
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "accuracy_without_noise",
        "accuracy_of_commonest_label",
        "labels",
        "records",
        "guarantee",
        "regime",
        "seconds",
        "peak_memory_mib",
    }
    assert "epsilon = 8.0" in done.err, "the effective plan is printed first"
    assert done.json["plan"]["threshold_share"] is not None
    for name in ("front", "back", "report.json", "report.md", "plan.json"):
        assert (run / name).exists()
    again = dpf(*_words(world, "--epsilon", "8", "--out", str(run), "--json"))
    assert again.json["accuracy"] == done.json["accuracy"]
    told = "was finished before: nothing was trained, released or charged now"
    assert (told in done.err, told in again.err) == (False, True)

    found = dpf(
        "evaluate", str(run), "--data", f"sst2={world.task}", "--draws", "5", "--epsilon", "30", "--json"
    )
    assert found.code == 0, found.err
    assert found.json["draws"] == 5
    assert found.json["accuracy_of_commonest_label"] == done.json["accuracy_of_commonest_label"] >= 0.5
    assert found.json["accuracy_low"] <= found.json["accuracy"] <= found.json["accuracy_high"]
    assert "30.0-LDP" in found.json["promise"]

    release = ["release", str(run / "front"), "--task", "sst2", "--data", f"sst2={world.task}"]
    ledger = str(tmp_path / "shards.ledger")
    first = dpf(
        *release,
        "--limit",
        "20",
        "--label-epsilon",
        "2",
        "--out",
        str(tmp_path / "shards"),
        "--json",
        "--ledger",
        ledger,
    )
    assert first.code == 0, first.err
    assert first.json["records"] == 20
    assert first.json["guarantee"]["epsilon"] == pytest.approx(10.0)
    assert first.json["spent_per_record"] == pytest.approx(10.0)
    again = dpf(
        *release, "--limit", "20", "--label-epsilon", "2", "--out", str(tmp_path / "more"), "--ledger", ledger
    )
    assert again.code == 3, "a second release of the same corpus passes the cap"
    few = [*release, "--limit", "3", "--out"]
    assert dpf(*few, str(tmp_path / "more")).code == 2, "and of another kind, too"
    alone = dpf(*few, str(tmp_path / "alone"), "--ledger", str(tmp_path / "book"))
    assert alone.code == 0
    assert "does not bound what other releases of these records spend" in alone.out
    assert "nothing protects them" in alone.out, "its labels are public"
    known = dpf("ledger", "register", "--json").json
    assert known["released"]["entries"] == 3
    assert known["public"]["entries"] == 1, "the validation split"
    assert "texts in 3 entries" in dpf("ledger", "register").out


@pytest.mark.slow
def test_texts_that_a_front_was_trained_on_are_not_released_with_a_promise(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained = dpf(*_words(world, "--epsilon", "8", "--regime", "end-to-end", "--out", str(run)))
    assert trained.code == 0, trained.err
    release = [
        "release",
        str(run / "front"),
        "--task",
        "sst2",
        "--data",
        f"sst2={world.task}",
        "--limit",
        "5",
    ]
    refused = dpf(*release, "--out", str(tmp_path / "seen"))
    assert (refused.code, "on the raw texts; got 5 of 5" in refused.err) == (2, True)
    assert dpf(*release, "--split", "Training", "--out", str(tmp_path / "seen")).code == 2
    assert not (tmp_path / "seen").exists()
    open_ones = dpf(*release, "--split", "validation", "--out", str(tmp_path / "unseen"))
    assert (open_ones.code, "5 of 5 texts that were declared public" in open_ones.err) == (2, True)
    (run / "report.json").unlink()  # killed before it could say what its front has seen
    assert dpf(*release, "--out", str(tmp_path / "seen")).code == 2


@pytest.mark.slow
def test_runs_on_the_same_records_share_a_ledger_and_its_cap(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    book = ["--ledger", str(tmp_path / "book")]

    def run(name: str, *more: str) -> Any:
        small = ["--epsilon", "8", "--train-limit", "64", "--out", str(tmp_path / name)]
        return dpf(*_words(world, *small, *more))

    assert run("first", *book, "--budget", "20").code == 0
    second = run("second", *book)
    assert second.code == 0
    third = run("third", *book)
    assert (third.code, "would be passed" in third.err) == (3, True)
    alone = run("alone", "--ledger", str(tmp_path / "other"))
    assert alone.code == 0, "the control: another ledger that was asked for knows of no other release"
    assert "up to epsilon 24.0 is charged to one of them in all ledgers" in alone.err
    default = run("default")
    assert (default.code, "--budget 32.0" in default.err) == (3, True), "the register knows of all"
    spent = dpf("ledger", "show", str(tmp_path / "book"), "--json")
    assert (spent.json["spent"], spent.json["releases"]) == (16.0, 2)
    nothing = run("raw", "--regime", "end-to-end", *book)
    assert (nothing.code, "No training record is released there" in nothing.err) == (2, True)
    assert not (tmp_path / "raw").exists()


@pytest.mark.slow
def test_a_plan_file_and_flags_make_one_plan(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'task = "sst2"\nmodel = "{world.model}"\nepsilon = 4.0\nrows = 12\nwidth = 4\nepochs = 1\n'
        f'train_limit = 64\nevaluation_draws = 2\n[data]\nsst2 = "{world.task}"\n'
    )
    more = ["--set", "head_learning_rate=0.01", "--set", "precision=fp32"]
    done = dpf(
        "finetune", "--plan", str(plan), "--epsilon", "6", *more, "--out", str(tmp_path / "run"), "--json"
    )
    assert done.code == 0, done.err
    assert (done.json["plan"]["head_learning_rate"], done.json["plan"]["precision"]) == (0.01, "fp32")
    assert (
        dpf("finetune", "--plan", str(plan), "--set", "averige=1", "--out", str(tmp_path / "run")).code == 2
    )
    assert done.json["plan"]["epsilon"] == 6.0
    other = dpf("finetune", "--plan", str(plan), "--out", str(tmp_path / "run"))
    assert other.code == 2
    assert "no other plan" in other.err


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--out", "x"], "epsilon"),
        (["--out", "x", "--epsilon", "8", "--label-prior", "half"], "numbers"),
    ],
)
def test_a_plan_that_means_nothing_costs_one_line_and_leaves_nothing(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path, more: list[str], named: str
) -> None:
    more = [str(tmp_path / word) if word == "x" else word for word in more]
    refused = dpf(*_words(world, *more))
    assert refused.code == 2
    assert named in refused.err
    assert refused.err.strip().count("\n") == 0
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("known_noise")
def test_the_baseline_reports_as_finetune_does(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    where = ["--model", str(world.model), "--task", "sst2", "--data", f"sst2={world.task}"]
    small = ["--rows", "12", "--batch", "24", "--epochs", "2", "--train-limit", "96", "--epsilon", "8"]
    done = dpf("baseline", "dpsgd", *where, *small, "--out", str(tmp_path / "run"), "--json")
    assert done.code == 0, done.err
    assert (done.json["regime"], done.json["records"]) == ("dp-sgd", 96)
    assert 0 < done.json["guarantee"]["training"]["epsilon"] <= 8
    assert "NOT protected" in done.json["guarantee"]["statements"]["queries"]
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert "NOT protected" in (tmp_path / "run" / "report.md").read_text()
    missing = dpf("baseline", "dpsgd", *where, "--out", str(tmp_path / "other"))
    assert missing.code == 2


@pytest.mark.slow
def test_pretraining_makes_an_ordinary_checkpoint(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    corpus = tmp_path / "public.txt"
    corpus.write_text("\n".join(["the film with a plot and some actor"] * 80) + "\n")
    words = ["pretrain", "--model", str(world.model), "--corpus", str(corpus), "--cut", "encoder.1"]
    small = ["--length", "16", "--steps", "4", "--head-steps", "2", "--batch", "4"]
    done = dpf(*words, *small, "--epsilon", "16", "--out", str(tmp_path / "made"), "--json")
    assert done.code == 0, done.err
    assert done.json.keys() >= {"loss", "seconds", "held_out_loss", "statement"}
    assert (tmp_path / "made" / "model.safetensors").is_file()
    tuned = dpf(
        *_words(world, "--epsilon", "8", "--out", str(tmp_path / "run")), "--model", str(tmp_path / "made")
    )
    assert tuned.code == 0, tuned.err
    missing = dpf(*words, *small, "--out", str(tmp_path / "other"))
    assert missing.code == 2
    assert "epsilon" in missing.err
