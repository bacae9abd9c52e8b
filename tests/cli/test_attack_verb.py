"""`dpf attack`: succeeds on an undefended run, stays under the ceiling of a private one, says so in JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_task
import tiny_user
from dp_forward.attacks.inversion.recall import Inversion
from dp_forward.attacks.observations import hidden_rows
from dp_forward.noise.bounding import apply_bound
from dp_forward.privacy import NoiseSpec
from dp_forward.train.finetune import finetune
from tiny_task import TinyWorld

KEYS = {
    "attack",
    "success",
    "chance",
    "low",
    "high",
    "ceiling",
    "within_ceiling",
    "refuted",
    "run",
    "promise",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return TinyWorld.under(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def private(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained once from releases, on a sample of the training split."""
    folder = tmp_path_factory.mktemp("private") / "run"
    finetune(world.plan(epochs=1.0, epsilon=2.0, train_limit=128, evaluation_draws=1), folder=folder)
    return folder


@pytest.fixture(scope="module")
def undefended(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undefended") / "run"
    plan = world.plan(mechanism="none", regime="end-to-end", epochs=1.0, width=0, cut="embeddings")
    finetune(plan, folder=folder)
    return folder


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Fronts of one random model, without and with noise."""
    root = tmp_path_factory.mktemp("fronts")
    noises = {"none": None, "noisy": NoiseSpec(mechanism="matrix-gaussian", epsilon=0.5)}
    return {
        name: tiny_user.write_user(root / name, noise=noise, cut="embeddings", width=None)
        for name, noise in noises.items()
    }


def _inversion(world: TinyWorld, run: Path, *more: str) -> list[str]:
    where = ["--task", "sst2", "--data", f"sst2={world.task}", "--device", "cpu"]
    return ["attack", "inversion", str(run), *where, *more, "--json"]


@pytest.mark.slow
def test_members_of_a_private_run_are_told_under_its_ceiling(dpf: Callable[..., Any], private: Path) -> None:
    done = dpf("attack", "membership", str(private), "--limit", "60", "--json")
    assert done.code == 0, done.err
    assert done.json.keys() >= KEYS | {"auc", "tpr_at_1_percent_fpr", "tpr_at_0.1_percent_fpr", "scores"}
    assert done.json["ceiling"] == pytest.approx(
        NoiseSpec(mechanism="privunit", epsilon=2.0).build().guess_rate()
    )
    assert (done.json["others_from"], done.json["drawn_alike"]) == ("train, the rest", True)
    assert (done.json["members"], done.json["others"]) == (60, 60)
    shown = dpf("attack", "membership", str(private), "--others", "dev", "--noiseless")
    assert shown.code == 0, shown.err
    assert "not drawn alike" in shown.err
    assert "membership, confidence" in shown.out


@pytest.mark.slow
def test_nothing_is_promised_to_the_members_of_an_undefended_run(
    dpf: Callable[..., Any], undefended: Path
) -> None:
    done = dpf("attack", "membership", str(undefended), "--json")
    assert done.code == 0, done.err
    assert done.json["ceiling"] is None
    assert (done.json["others_from"], done.json["members"]) == ("validation", 64)
    dropped = dpf("attack", "membership", str(undefended), "--drop-words", "0.5", "--json")
    assert dropped.json["others_from"] == "validation, without 0.5 of the words"
    assert dropped.json["drawn_alike"] is False


@pytest.mark.slow
def test_the_same_inversion_reads_all_without_noise_and_little_with_it(
    dpf: Callable[..., Any], world: TinyWorld, fronts: dict[str, Path]
) -> None:
    plain = dpf(*_inversion(world, fronts["none"]))
    assert plain.code == 0, plain.err
    assert (plain.json["attack"], plain.json["success"], plain.json["ceiling"]) == ("nearest", 1.0, None)
    noisy = dpf(*_inversion(world, fronts["noisy"]))
    assert noisy.code == 0, noisy.err
    assert noisy.json.keys() >= KEYS
    assert noisy.json["success"] < 0.3
    assert noisy.json["low"] <= noisy.json["ceiling"] < 0.5


@pytest.mark.slow
def test_a_broken_promise_is_told_by_the_exit_code(
    dpf: Callable[..., Any], world: TinyWorld, fronts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_noise(target: Inversion, batch: Any) -> Any:
        return apply_bound(hidden_rows(target.front, batch, device=target.device), target.noise()[1])

    monkeypatch.setattr(Inversion, "observe", without_noise)
    done = dpf(*_inversion(world, fronts["noisy"]))
    assert done.code == 1
    assert done.json["refuted"] is True
    assert done.json["success"] > 0.9
    words = _inversion(world, fronts["noisy"])
    words.remove("--json")
    assert "BROKEN" in dpf(*words).out


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["encoder.1", "output"])
def test_deeper_cuts_are_inverted_too(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path, cut: str
) -> None:
    run = tiny_user.write_user(tmp_path, noise=None, cut=cut, width=None)
    done = dpf(*_inversion(world, run))
    assert done.code == 0, done.err
    assert (done.json["attack"], done.json["cut"]) == ("linear", cut)
    assert done.json["low"] > done.json["chance"], "the same attack succeeds without noise"


@pytest.mark.slow
def test_an_attribute_is_learnt_without_noise_and_kept_by_it(
    dpf: Callable[..., Any], fronts: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "moods.jsonl"
    rows = [
        {"words": text, "mood": ("low", "high")[label]} for text, label in tiny_task.sentences(200, seed=5)
    ]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    words = ["--labelled", str(file), "--text", "words", "--attribute", "mood", "--device", "cpu", "--json"]
    plain = dpf("attack", "attribute", str(fronts["none"]), *words)
    assert plain.code == 0, plain.err
    assert plain.json["attribute_values"] == ["high", "low"]
    assert plain.json["low"] > plain.json["chance"]
    noisy = dpf("attack", "attribute", str(fronts["noisy"]), *words, "--share", "0.4")
    assert noisy.code == 0, noisy.err
    assert noisy.json.keys() >= KEYS
    assert noisy.json["trials"] == 120
    assert noisy.json["low"] <= noisy.json["ceiling"] < 0.7


@pytest.mark.slow
def test_genres_are_found_by_keywords(
    dpf: Callable[..., Any], fronts: dict[str, Path], tmp_path: Path
) -> None:
    rows = [
        f"{text} {('action', 'horror')[label]}\t{label}" for text, label in tiny_task.sentences(80, seed=6)
    ]
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    where = ["--task", "sst2", "--data", f"sst2={tmp_path}", "--epochs", "2"]
    done = dpf("attack", "attribute", str(fronts["none"]), *where, "--json")
    assert done.code == 0, done.err
    assert done.json["source"] == "sst2 validation, keywords"
    assert done.json["trials"] == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["membership", "nowhere"], "front"),
        (["inversion", "nowhere"], "front"),
        (["membership", "FRONT"], "trained on"),
        (["membership", "RUN", "--task", "imdb"], "task"),
        (["membership", "RUN", "--limit", "10"], "members"),
        (["inversion", "FRONT"], "task"),
        (["inversion", "RUN", "--with-prior"], "with-prior"),
        (["inversion", "RUN", "--limit", "10"], "texts"),
        (["inversion", "RUN", "--split", "train"], "public"),
        (["inversion", "RUN", "--device", "nonsense"], "device"),
        (["attribute", "RUN"], "attribute"),
        (["attribute", "RUN", "--labelled", "x.csv", "--task", "sst2"], "labelled"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    dpf: Callable[..., Any], private: Path, fronts: dict[str, Path], words: list[str], named: str
) -> None:
    places = {"RUN": str(private), "FRONT": str(fronts["none"])}
    done = dpf("attack", *(places.get(word, word) for word in words))
    assert done.code == 2
    assert named in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
