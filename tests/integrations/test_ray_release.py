"""A release on Ray: as the local engine's, each record charged and drawn once, whoever asks again."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_task
from command import caller
from corpus.release_cases import ROWS
from dp_forward.cli.main import run
from dp_forward.corpus import corpus_spec
from dp_forward.corpus.corpus_spec import CorpusSpec
from dp_forward.corpus.draw_store import DrawStore
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import ledger_of, private_folder, release_corpus
from dp_forward.data import EncodedTexts, Task, read_texts
from dp_forward.data.own_data import task_of
from dp_forward.data.records import check_rows
from dp_forward.data.row_files import Row
from dp_forward.errors import InvalidInput
from dp_forward.integrations.ray import (
    _Drawing,
    _front_files,
    _load,
    _map_columns,
    _RayEngine,
    _read_front,
    _write_columns,
)
from dp_forward.ledger import Ledger
from dp_forward.privacy import NoiseSpec
from dp_forward.split.artifacts import UserSide, load_user_side
from dp_forward.train.closed_form_training import prepare_projection
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


@pytest.fixture(scope="module")
def default_user(tmp_path_factory: pytest.TempPathFactory) -> UserSide:
    """As `dpf split --fold` makes it: a front that reads the last two states of the model."""
    root = tmp_path_factory.mktemp("default")
    tiny_task.write_checkpoint(root / "model")
    (root / "public.txt").write_text("".join(f"{text}\n" for text, _ in tiny_task.sentences(200, seed=9)))
    named: dict[str, Any] = {"public": str(root / "public.txt"), "rows": ROWS, "epsilon": 4.0}
    prepare_projection(str(root / "model"), ["bad", "good"], records=RECORDS, **named).save(root / "run")
    return load_user_side(root / "run" / "front")


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


def test_a_front_reads_the_same_where_no_model_was_made(
    default_user: UserSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor is a process that never made a model of this class; the front was used before."""
    from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

    text = default_user.tokens.encode(["good bad"])
    assert default_user.front.plain.pooling == "mean2"
    before = default_user.front(**text)
    files = _front_files(default_user)
    monkeypatch.delitem(_CAN_RECORD_REGISTRY, str(type(default_user.front.plain.model)))
    again = _read_front(files)
    assert again.spec == default_user.spec
    assert torch.equal(again.front(**text), before)


class InProcess(_RayEngine):
    """The tasks of the engine without Ray: in any order, all of them twice, and lost where a test says so."""

    kill: Callable[[int], bool] = staticmethod(lambda task: False)

    def _receipts(self, spec: CorpusSpec, name: str, first: int) -> Generator[Any]:
        pieces = list(spec.pieces(first)) * 2
        random.Random(first).shuffle(pieces)
        for number, piece in enumerate(pieces):
            actor = _Drawing(self.user, spec, (str(self.place), name), self.device)
            where = {"first": np.array([piece.start]), "last": np.array([piece.stop])}
            if not self.kill(number):
                yield actor(_load(where, self.folder, self.shapes))
            actor._store.close()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_spec, "_PIECE_RECORDS", 3)


def in_process(user: UserSide, folder: Path, **settings: Any) -> tuple[EncodedTexts, InProcess]:
    """Texts in files, as `prepare` leaves them, and what draws them."""
    task = Task(name="t", text_fields=("text",), labels=user.spec.labels, source="", own=True)
    records = check_rows(task, "train", (Row("a row", row) for row in rows()))
    columns = EncodedTexts.from_records(records, user.tokens).columns
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    shapes = _write_columns([columns], folder / "texts", None)
    texts = EncodedTexts(_map_columns(folder / "texts", shapes), pads_left=False)
    engine = InProcess(user, folder / "texts", shapes, folder, 1, "cpu")
    for name, value in settings.items():
        object.__setattr__(engine, name, value)
    return texts, engine


@pytest.mark.usefixtures("small_pieces")
def test_tasks_in_any_order_and_twice_draw_every_record_once(user: UserSide, tmp_path: Path) -> None:
    texts, engine = in_process(user, tmp_path)
    out = tmp_path / "out"
    corpus = release_corpus(user, texts, out, engine=engine, shard_records=8)
    assert corpus.labels is not None
    assert corpus.labels.tolist() == [0, 1] * (RECORDS // 2)
    with DrawStore(tmp_path, corpus.name) as store:
        assert store.counts() == (RECORDS, RECORDS)
        assert store.read(range(RECORDS)) == (b"", b""), "kept once, in the shards"
    values = corpus.__getitems__(range(RECORDS))["hidden"].numpy().reshape(RECORDS, -1)
    assert len(np.unique(values, axis=0)) == RECORDS


@pytest.mark.usefixtures("small_pieces")
def test_a_killed_driver_continues_with_the_draws_of_the_store(user: UserSide, tmp_path: Path) -> None:
    def die(done: int) -> None:
        if done >= 9:
            raise KeyboardInterrupt

    texts, engine = in_process(user, tmp_path)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        release_corpus(user, texts, out, engine=engine, shard_records=8, progress=die)
    (name,) = (path.stem.removeprefix("draws_") for path in tmp_path.glob("draws_*.sqlite"))
    with DrawStore(tmp_path, name) as store:
        kept = {at: found for at in range(9, RECORDS) if (found := store.read(range(at, at + 1)))}
    assert 0 < len(kept) < RECORDS - 9, "some are drawn, some are not"
    with pytest.raises(InvalidInput, match="another corpus or engine"):  # it would draw those again
        release_corpus(user, texts, out, resume=True, shard_records=8)
    corpus = release_corpus(user, texts, out, engine=engine, shard_records=8, resume=True)
    values = ReleasedCorpus.open(corpus.folder, raw=True).__getitems__(range(RECORDS))["values"].numpy()
    assert all(values[at].tobytes() == noisy for at, (noisy, _) in kept.items())
    with Ledger.open(ledger_of(out)) as book:
        assert book.spent() == pytest.approx(4.0)


@pytest.mark.usefixtures("small_pieces")
def test_a_task_that_is_lost_is_noticed(user: UserSide, tmp_path: Path) -> None:
    """The control: an engine that never runs some task does not pass for one that did."""
    texts, engine = in_process(user, tmp_path, kill=lambda task: task > 9)
    with pytest.raises((StopIteration, RuntimeError)):
        release_corpus(user, texts, tmp_path / "out", engine=engine, shard_records=8)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_what_a_killed_worker_committed_is_not_drawn_again(user: UserSide, tmp_path: Path) -> None:
    """Killed after its charge, or after its draw, before it could say so."""
    spec = CorpusSpec(release=user.spec, labels="none", records=4, shard_records=4)
    ids = np.zeros((4, ROWS), np.int32)
    piece = {"record": np.arange(4), "ids": ids, "lengths": np.full(4, ROWS, np.int32)}
    with DrawStore(tmp_path, "one") as store:
        assert store.charge([0, 1], spec.charge()) == [0, 1]
        drawn = []
        for _ in range(2):
            assert _Drawing(user, spec, (str(tmp_path), "one"), "cpu")(dict(piece))["first"].tolist() == [0]
            assert store.counts() == (4, 4)
            drawn.append(store.read(range(4)))
    assert drawn[0] == drawn[1]
    assert drawn[0] is not None
    assert len(drawn[0][0]) == 4 * spec.release.payload_bytes


def test_labels_on_some_records_only_are_refused(user: UserSide, tmp_path: Path) -> None:
    ids = np.zeros((2, ROWS), np.int32)
    with pytest.raises(InvalidInput, match="a label each"):
        _write_columns([{"ids": ids, "labels": np.zeros(2, np.int64)}, {"ids": ids}], tmp_path, None)


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
def test_the_front_that_is_made_by_default_is_released(
    engine: Any, default_user: UserSide, tmp_path: Path
) -> None:
    import ray.data

    default_user.front(**default_user.tokens.encode(["good bad"]))  # used before
    corpus = engine.release(ray.data.from_items(rows()), default_user, tmp_path / "out", workers=1)
    values = corpus.__getitems__(range(RECORDS))["hidden"].numpy().reshape(RECORDS, -1)
    assert len(np.unique(values, axis=0)) == RECORDS


@pytest.mark.slow
def test_a_bad_row_is_refused_without_its_text(engine: Any, user: UserSide, tmp_path: Path) -> None:
    import ray.data

    dataset = ray.data.from_items([*rows(8), {"text": "SECRET WORDS", "label": "SECRET LABEL"}])
    with pytest.raises(InvalidInput, match="labels of the task") as refused:
        engine.release(dataset, user, tmp_path / "out")
    assert "SECRET" not in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert not private_folder(tmp_path / "out").exists()
