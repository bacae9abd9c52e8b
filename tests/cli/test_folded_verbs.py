"""Folded records over the wire: from `dpf split --fold` to questions asked through what was learnt."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_task
from dp_forward.cli.serve import _make_app, serve_locally
from dp_forward.corpus.writer import private_folder
from dp_forward.privacy import Budget, PrivUnit, calibrate
from dp_forward.privacy.shuffling import shuffled_mechanism
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.server.settings import ServerSettings
from dp_forward.split.artifacts import half_digest, load_user_side
from dp_forward.train.closed_form_training import prepare_projection
from service.collector.collect_cases import summary
from service.shuffler.shuffle_cases import TOKEN, running
from warm_process import Verb

Dpf = Callable[..., Any]
RECORDS, LOCAL = 1200, ServerSettings(port=0)
PHRASES = {"bad": ["dull cold grim"], "good": ["lovely bright warm"]}


def rows(count: int, *, seed: int) -> list[tuple[str, str]]:
    return [(text, ("bad", "good")[label]) for text, label in tiny_task.sentences(count, seed=seed)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, public text, a user's records, and a projection at epsilon 8 and at 1."""
    root = tmp_path_factory.mktemp("folded")
    tiny_task.write_checkpoint(root / "model")
    (root / "public.txt").write_text("".join(f"{text}\n" for text, _ in rows(200, seed=9)))
    lines = [f"{text},{label}\n" for text, label in rows(RECORDS, seed=1)]
    (root / "mine.csv").write_text("text,label\n" + "".join(lines))
    # Another thing about the same texts, which everybody may know: whether they are long.
    long = ["long" if len(line.split()) > 5 else "short" for line in lines]
    (root / "lengths.txt").write_text("".join(f"{word}\n" for word in long))
    for epsilon, name in ((8.0, "start"), (1.0, "careful")):
        prepare_projection(
            str(root / "model"),
            ["good", "bad"],
            epsilon=epsilon,
            records=RECORDS,
            describe=PHRASES,
            public=str(root / "public.txt"),
            rows=12,
        ).save(root / name / "projection")
    (root / "word").write_text(TOKEN)
    return root


def words(world: Path, out: Path, *more: str, start: str = "start") -> list[str]:
    front = world / start / "projection" / "front"
    return ["release", str(front), str(world / "mine.csv"), "--out", str(out), *more]


def learn(world: Path, releases: Path, out: Path, *more: str, start: str = "start") -> list[str]:
    model = str(world / start / "projection")
    return ["finetune", "--from-releases", str(releases), "--model", model, "--out", str(out), *more]


@pytest.fixture(scope="module")
def released(world: Path) -> Path:
    """The user's own corpus of them."""
    from dp_forward.cli.main import run

    with pytest.raises(SystemExit) as ended:
        run(words(world, world / "released"))
    assert ended.value.code == 0
    return world / "released"


def right(run: Path) -> float:
    """How often the decision of RUN/front is right about other texts."""
    user, held = load_user_side(run / "front"), rows(200, seed=5)
    scores = user.front(**user.tokens.encode([text for text, _ in held]))[:, 0]
    named = [user.spec.labels[number] for number in scores.argmax(dim=-1).tolist()]
    return sum(name == label for name, (_, label) in zip(named, held, strict=True)) / len(held)


@pytest.mark.slow
def test_the_verb_makes_the_same_projection_and_says_what_it_will_be_worth(
    world: Path, dpf: Dpf, tmp_path: Path
) -> None:
    made = ["split", str(world / "model"), "--cut", "output", "--fold", "good, bad", "--rows", "12"]
    made += ["--epsilon", "8", "--records", str(RECORDS), "--public", str(world / "public.txt")]
    made += ["--describe", "bad=dull cold grim", "--describe", "good=lovely bright warm"]
    done = dpf(*made, "--out", str(tmp_path / "start"), "--json")
    assert done.code == 0, done.err
    assert done.json["digest_front"] == half_digest(world / "start" / "projection" / "front")
    assert done.json["epsilon"] == pytest.approx(8.0)
    assert (done.json["records"], done.json["public_text"]) == (RECORDS, "public.txt")
    spec = load_user_side(tmp_path / "start" / "projection" / "front").spec
    assert spec.folded
    assert spec.labels == ("bad", "good")
    again = dpf(*made, "--out", str(tmp_path / "start"))
    assert (again.code, "Users may have the front" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--cut", "output", "--epsilon", "4"], "--fold"),
        (["--cut", "encoder.1", "--fold", "a,b", "--epsilon", "4", "--records", "9"], "cut"),
        (["--cut", "output", "--fold", "a,b", "--records", "9"], "epsilon"),
        (["--cut", "output", "--fold", "a,b", "--epsilon", "4"], "records"),
        (["--cut", "output", "--fold", "a,b", "--epsilon", "4", "--records", "9", "--labels", "2"], "labels"),
        (["--cut", "output", "--fold", "a,a", "--epsilon", "4", "--records", "9"], "each once"),
        (["--cut", "output", "--fold", "a", "--epsilon", "4", "--records", "9"], "two labels"),
    ],
)
def test_what_does_not_make_a_projection_is_refused(
    world: Path, dpf: Dpf, tmp_path: Path, more: list[str], told: str
) -> None:
    refused = dpf("split", str(world / "model"), "--out", str(tmp_path / "start"), *more)
    assert refused.code == 2
    assert told in refused.err
    assert not (tmp_path / "start").exists()


@pytest.mark.slow
def test_records_are_pushed_to_a_collector_and_what_was_learnt_from_them_is_asked(
    world: Path, dpf: Dpf, tmp_path: Path
) -> None:
    projection = world / "start" / "projection"
    collect = ["--collect", str(tmp_path / "collected")]
    server = Verb("serve", str(projection), "--port", "0", *collect, log=tmp_path / "log")
    try:
        address = server.first_line()["address"]
        first = dpf(*words(world, tmp_path / "out", "--server", address, "--json"))
        assert first.code == 0, first.err
        assert (first.json["pushed"], first.json["spent_per_record"]) == (RECORDS, 8.0)
        again = dpf(*words(world, tmp_path / "out", "--server", address, "--json"))
        assert (again.json["pushed"], again.json["known"]) == (0, RECORDS)
        assert again.json["spent_per_record"] == 8.0
        assert httpx.get(f"{address}/v1/manifest").status_code == 404
        asked = ["ask", str(projection / "front"), "a film", "--server", address]
        refused = dpf(*asked, "--ledger", str(tmp_path / "ledger"), "--budget", "20")
        assert (refused.code, "be one that asks" in refused.err) == (2, True)
        assert not (tmp_path / "ledger").exists()
    finally:
        server.signal(signal.SIGINT)
        assert server.finish(30) == 0
    with Collection.open(tmp_path / "collected") as collection, collection.snapshot() as moment:
        assert moment.execute("SELECT count(label) FROM records").fetchone() == (0,)
    done = dpf(*learn(world, tmp_path / "collected", tmp_path / "run", "--json"))
    assert done.code == 0, done.err
    assert (done.json["accuracy"], done.json["records"], done.json["central"]) == (None, RECORDS, None)
    assert done.json["guarantee"]["training"]["epsilon"] == pytest.approx(8.0)
    assert done.json["guarantee"]["queries"]["epsilon"] == pytest.approx(8.0)
    assert "no label to compare" in done.json["notes"]
    assert done.json["shares"] == {"bad": pytest.approx(0.5, abs=0.15), "good": pytest.approx(0.5, abs=0.15)}
    other = ["--other-labels", str(world / "lengths.txt")]
    disordered = dpf(*learn(world, tmp_path / "collected", tmp_path / "other", *other))
    assert (disordered.code, "forgets the order" in disordered.err) == (2, True)
    assert right(tmp_path / "run") > 0.85
    with serve_locally(tmp_path / "run") as address:
        for text, label in (("lovely warm film with a bright plot", "good"), ("dull grim cold story", "bad")):
            asked = ["ask", str(tmp_path / "run" / "front"), text, "--server", address]
            answer = dpf(*asked, "--ledger", str(tmp_path / "asked"), "--budget", "20", "--json")
            assert answer.code == 0, answer.err
            assert answer.json[0]["label"] == label


@pytest.mark.slow
def test_through_a_shuffler_a_central_epsilon_is_printed(world: Path, dpf: Dpf, tmp_path: Path) -> None:
    projection, folder, least = world / "careful" / "projection", tmp_path / "collected", RECORDS
    with running(_make_app(projection, LOCAL, folder, shuffler_token=TOKEN), LOCAL) as behind:
        mixing = ["--collector", behind, "--collector-token-file", str(world / "word")]
        mixing += ["--store", str(tmp_path / "store"), "--least", str(least), "--port", "0"]
        shuffler = Verb("shuffle", *mixing, log=tmp_path / "shuffler")
        try:
            address = shuffler.first_line()["address"]
            past = dpf(*words(world, tmp_path / "past", "--server", behind, start="careful"))
            assert past.code != 0, "records come through the shuffler alone"
            out = tmp_path / "out"
            pushed = dpf(*words(world, out, "--server", address, "--json", "--budget", "2", start="careful"))
            assert pushed.code == 0, pushed.err
            until = time.monotonic() + 30
            while summary(Collection.open(folder))["records"] < RECORDS and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            shuffler.signal(signal.SIGINT)
            assert shuffler.finish(30) == 0
    proved = shuffled_mechanism(calibrate(PrivUnit, Budget(1.0)), users=least, delta=1e-5).upper.epsilon
    assert pushed.json["central"]["epsilon_upper"] == pytest.approx(proved, rel=1e-6)
    done = dpf(*learn(world, folder, tmp_path / "run", "--json", start="careful"))
    assert done.code == 0, done.err
    assert done.json["central"]["epsilon_upper"] == pytest.approx(proved, rel=1e-6)
    assert 0 < proved < 0.5
    told = dpf(*learn(world, folder, tmp_path / "run", start="careful")).out
    assert "Through the shuffler:" in told
    assert "shuffler is honest" in told


@pytest.mark.slow
def test_what_was_learnt_is_a_function_of_the_releases(
    world: Path, released: Path, dpf: Dpf, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        assert dpf(*learn(world, released, tmp_path / name)).code == 0
    for half in ("front", "back"):
        assert half_digest(tmp_path / "one" / half) == half_digest(tmp_path / "two" / half)
    again = dpf(*learn(world, released, tmp_path / "one", "--json")).json
    assert again == json.loads((tmp_path / "one" / "report.json").read_text()) | {"out": again["out"]}


@pytest.mark.slow
def test_a_run_that_measured_no_accuracy_keeps_the_one_that_is_evaluated(
    world: Path, released: Path, dpf: Dpf, tmp_path: Path
) -> None:
    run, held = tmp_path / "run", tmp_path / "public.csv"
    assert dpf(*learn(world, released, run)).code == 0
    held.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows(60, seed=5)))

    def expected() -> dict[float, float | None]:
        found = dpf("explain", "--run", run, "--json").json["epsilons"]
        return {row["epsilon"]: row["accuracy"] for row in found}

    assert set(expected().values()) == {None}
    words = ["evaluate", str(run), "--task", "public", "--data", f"public={held}", "--split", "train"]
    assert dpf(*words, "--epsilon", "1").code == 0
    assert set(expected().values()) == {None}, "that is another promise than the run's"
    clean = dpf(*words, "--json").json["accuracy_without_noise"]
    keep = math.exp(1) / (1 + math.exp(1))
    assert expected()[1.0] == pytest.approx(clean * keep + (1 - clean) * (1 - keep))
    assert json.loads((run / "report.json").read_text())["evaluated"] == "public, train"


@pytest.mark.slow
def test_other_public_labels_of_the_same_records_cost_nothing(
    world: Path, released: Path, dpf: Dpf, tmp_path: Path
) -> None:
    other = ["--other-labels", str(world / "lengths.txt"), "--json"]
    done = dpf(*learn(world, released, tmp_path / "run", *other))
    assert done.code == 0, done.err
    assert (done.json["labels"], done.json["records"]) == (["long", "short"], RECORDS)
    assert "costs nothing" in done.json["guarantee"]["statements"]["labels"]
    assert done.json["guarantee"]["training"]["epsilon"] == pytest.approx(8.0)
    user = load_user_side(tmp_path / "run" / "front")
    held = [text for text, _ in rows(200, seed=5)]
    long = [len(text.split()) > 5 for text in held]
    found = (user.front(**user.tokens.encode(held))[:, 0].argmax(dim=-1) == 0).tolist()
    same = sum(a == b for a, b in zip(long, found, strict=True)) / len(held)
    assert same > 0.8
    assert sum(long) / len(held) < 0.7, "the control: always long is right less often"


def _few_labels(world: Path, folder: Path) -> list[str]:
    (folder / "few.txt").write_text("a\nb\n")
    return ["--other-labels", str(folder / "few.txt")]


@pytest.mark.parametrize(
    "case",
    [
        (lambda world, folder: ["--epochs", "2"], "closed form"),
        (lambda world, folder: ["--set", "held_out=0.2"], "no labels"),
        (lambda world, folder: ["--set", "head_learning_rate=2.0"], "head_learning_rate"),
        (_few_labels, f"each of the {RECORDS} records"),
        (lambda world, folder: ["--other-labels", str(folder / "none.txt")], "can be read"),
        (lambda world, folder: ["--model", str(world / "careful" / "projection")], "front of the model"),
        (lambda world, folder: ["--model", str(world / "start" / "projection" / "front")], "hold a back"),
    ],
)
def test_what_does_not_fit_folded_releases_is_refused_and_leaves_nothing(
    world: Path, released: Path, dpf: Dpf, tmp_path: Path, case: Any
) -> None:
    more, told = case
    refused = dpf(*learn(world, released, tmp_path / "run", *more(world, tmp_path)))
    assert refused.code == 2
    assert told in refused.err.strip().splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [["--collect-labels", "public"], ["--label-epsilon", "1"], ["--also-epsilon", "2"]]
)
def test_a_projection_is_served_to_collect_and_for_nothing_else(
    world: Path, dpf: Dpf, tmp_path: Path, more: list[str]
) -> None:
    serve = ["serve", str(world / "start" / "projection"), "--port", "0"]
    refused = dpf(*serve, "--collect", str(tmp_path / "collected"), *more)
    assert (refused.code, "projection" in refused.err) == (2, True)
    assert not (tmp_path / "collected").exists()
    nowhere = dpf(*serve)
    assert (nowhere.code, "collect" in nowhere.err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--no-labels"], ["--label-epsilon", "1"]])
def test_a_folded_label_cannot_be_left_out_or_randomized_again(
    world: Path, dpf: Dpf, tmp_path: Path, more: list[str]
) -> None:
    refused = dpf(*words(world, tmp_path / "out", *more))
    assert (refused.code, "folded into the release" in refused.err) == (2, True)
    assert not private_folder(tmp_path / "out").exists()
