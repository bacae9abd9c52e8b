"""A release on Ray: as the local engine's, each record charged and drawn once, whoever asks again."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_task
from command import caller
from corpus.release_cases import ROWS
from dp_forward.cli.main import run
from dp_forward.corpus.draw_store import DrawStore
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import ledger_of, private_folder, release_corpus
from dp_forward.data import read_texts
from dp_forward.data.own_data import task_of
from dp_forward.errors import InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.privacy import NoiseSpec
from dp_forward.split.artifacts import UserSide, load_user_side
from tiny_user import write_user

RECORDS = 40
WORDS = [word for word in tiny_task.WORDS if word.isalpha()]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return write_user(folder, noise=NoiseSpec(epsilon=4.0), cut="output", rows=ROWS, width=None) / "front"


@pytest.fixture(scope="module")
def user(front: Path) -> UserSide:
    return load_user_side(front)


def rows(records: int = RECORDS) -> list[dict[str, str]]:
    words = [f"{WORDS[at % len(WORDS)]} {WORDS[at * 7 % len(WORDS)]} n{at}" for at in range(records)]
    return [{"text": text, "label": ("bad", "good")[at % 2]} for at, text in enumerate(words)]


def write_rows(path: Path) -> Path:
    """The same rows as CSV, JSONL or Parquet."""
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, ["text", "label"])
            table.writeheader()
            table.writerows(rows())
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    else:
        arrow = pytest.importorskip("pyarrow", reason="needs the extra ray")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows()), path)
    return path


# --- without Ray --------------------------------------------------------------------------------------------


def test_options_of_ray_need_its_engine(capsys: Any, front: Path, tmp_path: Path) -> None:
    data, out = str(write_rows(tmp_path / "texts.csv")), str(tmp_path / "out")
    dpf = caller(run, capsys)
    alone = dpf("release", str(front), data, "--out", out, "--ray-workers", "2")
    assert (alone.code, "--engine ray" in alone.err) == (2, True)
    some = dpf("release", str(front), data, "--out", out, "--engine", "ray", "--limit", "5")
    assert (some.code, "limit" in some.err) == (2, True)
    assert not Path(out).exists()


def test_a_missing_package_is_named_with_its_extra(capsys: Any, front: Path, tmp_path: Path) -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        words = ("release", str(front), str(write_rows(tmp_path / "a.csv")), "--out", str(tmp_path / "out"))
        refused = caller(run, capsys)(*words, "--engine", "ray")
        assert (refused.code, "dp-forward[ray]" in refused.err) == (2, True)
        assert not (tmp_path / "out").exists()
    else:
        pytest.skip("ray is installed")


# --- on Ray -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Any:
    pytest.importorskip("ray", reason="needs the extra ray")
    from dp_forward.integrations import ray as module

    module.connect()
    return module


def counts(out: Path) -> tuple[int, int]:
    with DrawStore(private_folder(out), ReleasedCorpus.open(out).name) as store:
        return store.counts()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_files_are_read_as_without_ray(engine: Any, user: UserSide, tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"texts{suffix}")
    task = task_of({"task": "texts", "data": {"texts": str(path)}, "validation_share": 0.0})
    plain = read_texts(task, "train", user.tokens)
    dataset, same = engine.read_task(task, "train")
    with engine.prepare(dataset, same, user, tmp_path / "out") as (texts, _):
        assert texts.fingerprint() == plain.fingerprint()
        assert np.array_equal(texts.prints, plain.prints)
    assert not private_folder(tmp_path / "out").exists(), "the token ids are gone"


@pytest.mark.slow
def test_every_record_is_charged_and_drawn_once(engine: Any, user: UserSide, tmp_path: Path) -> None:
    import ray.data

    out = tmp_path / "out"
    dataset = ray.data.read_json(str(write_rows(tmp_path / "texts.jsonl")))
    seen: list[tuple[Any, ...]] = []
    corpus = engine.release(dataset, user, out, workers=1, progress=lambda *one: seen.append(one))
    assert seen[-1][:3] == ("releasing", RECORDS, RECORDS)
    assert corpus.labels is not None
    assert corpus.labels.tolist() == [0, 1] * (RECORDS // 2)
    assert counts(out) == (RECORDS, RECORDS)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    engine.release(dataset, user, out, workers=1)  # complete: as it is, and free
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    values = corpus.__getitems__(range(RECORDS))["hidden"].numpy().reshape(RECORDS, -1)
    assert len(np.unique(values, axis=0)) == RECORDS
    with Ledger.open(ledger_of(out)) as book:
        book.verify()
        assert book.spent() == pytest.approx(4.0)
    texts = read_texts(
        task_of({"task": "t", "data": {"t": str(tmp_path / "texts.jsonl")}, "validation_share": 0.0}),
        "train",
        user.tokens,
    )
    with pytest.raises(InvalidInput, match="another corpus or engine"):  # it would not know the draws
        release_corpus(user, texts, out, resume=True)


@pytest.mark.slow
def test_a_task_that_runs_again_draws_nothing(engine: Any, user: UserSide, tmp_path: Path) -> None:
    """What Ray does after a worker was killed between its commit and its answer."""
    import ray

    from dp_forward.corpus.corpus_spec import CorpusSpec

    spec = CorpusSpec(release=user.spec, labels="none", records=4, shard_records=4)
    ids = np.zeros((4, ROWS), np.int32)
    piece = {"record": np.arange(4), "ids": ids, "lengths": np.full(4, ROWS, np.int32)}
    settings = {"front": ray.put(user), "spec": spec, "store": (str(tmp_path), "one"), "device": "cpu"}
    drawn: list[Any] = []
    for _ in range(2):
        assert engine._Drawing(**settings)(dict(piece))["first"].tolist() == [0]
        with DrawStore(tmp_path, "one") as store:
            assert store.counts() == (4, 4)
            drawn.append(store.read(range(4)))
    assert drawn[0] == drawn[1]
    assert len(drawn[0][0]) == 4 * spec.release.payload_bytes


@pytest.mark.slow
def test_a_bad_row_is_refused_without_its_text(engine: Any, user: UserSide, tmp_path: Path) -> None:
    import ray.data

    dataset = ray.data.from_items([*rows(8), {"text": "SECRET WORDS", "label": "SECRET LABEL"}])
    with pytest.raises(InvalidInput, match="labels of the task") as refused:
        engine.release(dataset, user, tmp_path / "out")
    assert "SECRET" not in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert not private_folder(tmp_path / "out").exists()
