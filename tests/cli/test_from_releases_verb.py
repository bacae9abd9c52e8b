"""`dpf finetune --from-releases`: from a corpus or a collection, with one-line refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.protocol.collection import CollectionSpec, pack_record, parse_record
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.split.artifacts import load_provider_side
from dp_forward.storage.stores import is_url, shown_place
from tiny_releases import TinyReleases

SMALL = ("--epochs", "2", "--batch", "16", "--learning-rate", "0.005", "--set", "held_out=0.25")


@pytest.fixture(scope="module")
def made() -> TinyReleases:
    return TinyReleases.shared()


def _words(made: TinyReleases, releases: Path, out: Path, *more: str) -> list[str]:
    where = ["--from-releases", str(releases), "--model", str(made.start), "--out", str(out)]
    return ["finetune", *where, *SMALL, *more]


def _collection(made: TinyReleases, folder: str, *, batch: bytes | None = None) -> str:
    """What a collector would hold after all records of the corpus were pushed to it."""
    corpus, provider = ReleasedCorpus.open(made.public, raw=True), load_provider_side(made.start / "back")
    manifest = Manifest.of(provider, corpus.front_digest, bits=corpus.release.bits)
    with Collection.open_or_create(folder, CollectionSpec.of(manifest, "public")) as collection:
        records = []
        for number in range(len(corpus)):
            item = corpus[number]
            header = manifest.header(request=number.to_bytes(16, "big"))
            data = pack_record(header.pack() + item["values"].numpy().tobytes(), int(item["labels"]))
            records.append(parse_record(data, labels=2))
        collection.add(records, batch)
        if batch is not None:
            collection.seal(batch, len(records))
    return folder


@pytest.mark.slow
def test_a_corpus_trains_a_back_and_a_second_call_prints_the_same(
    dpf: Callable[..., Any], made: TinyReleases, tmp_path: Path
) -> None:
    words = _words(made, made.randomized, tmp_path / "run", "--seed", "2", "--json")
    done = dpf(*words)
    assert done.code == 0, done.err
    wanted = {"accuracy", "accuracy_low", "accuracy_on_released_labels", "guarantee", "regime", "seconds"}
    assert done.json.keys() >= wanted | {"accuracy_without_noise", "peak_memory_mib", "central"}
    assert (done.json["central"], done.json["accuracy_without_noise"]) == (None, None)
    assert "held_out = 0.25" in done.err
    assert "head_learning_rate = 0.005" in done.err, "the effective plan is printed first"
    assert dpf(*words).json == done.json
    people = dpf(*words[:-1])
    assert "Training texts: 14.0-LDP" in people.out
    assert "not depending on the released texts" in people.out
    assert "central" not in people.out.lower()
    where = ("--task", "sst2", "--data", f"sst2={made.world.task}", "--limit", "50", "--draws", "2", "--json")
    measured = dpf("evaluate", str(tmp_path / "run"), *where)
    assert measured.code == 0, measured.err
    assert measured.json["accuracy"] > 0.6
    untold = dpf("evaluate", str(tmp_path / "run"))
    assert (untold.code, "--task" in untold.err) == (2, True)


@pytest.mark.slow
def test_a_collection_is_exported_once_and_a_run_keeps_what_it_began_with(
    dpf: Callable[..., Any], made: TinyReleases, tmp_path: Path, place: str
) -> None:
    collection = _collection(made, f"{place}&password=x" if is_url(place) else place, batch=b"b" * 16)
    run = tmp_path / "deep" / "run"
    words = _words(made, collection, run, "--delta", "1e-6")
    done = dpf(*words, "--json")
    assert done.code == 0, done.err
    assert len(ReleasedCorpus.open(run / "releases")) == 256
    assert done.json["central"]["delta"] == 1e-6
    assert done.json["plan"]["releases"] == shown_place(collection)
    assert not any(b"password" in path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".dpf-")]
    if not is_url(place):
        (Path(place) / "records.sqlite").unlink()
    again = dpf(*words)
    assert again.code == 0, again.err
    assert "Through the shuffler:" in again.out
    assert "shuffler is honest" in again.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--public-task", "imdb"], "public-task"),
        (["--set", "held_out=1.0"], "held_out"),
        (["--resume"], "resume"),
    ],
)
def test_what_the_releases_say_already_is_refused_in_one_line(
    dpf: Callable[..., Any], made: TinyReleases, tmp_path: Path, more: list[str], named: str
) -> None:
    refused = dpf(*_words(made, made.public, tmp_path / "run", *more))
    assert refused.code == 2
    line = refused.err.strip().splitlines()[-1]
    assert named in line
    if "--resume" not in more:
        assert refused.err.strip().count("\n") == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_start_must_be_named(dpf: Callable[..., Any], made: TinyReleases, tmp_path: Path) -> None:
    words = ["finetune", "--from-releases", str(made.public), "--out", str(tmp_path / "run")]
    missing = dpf(*words)
    assert (missing.code, "model" in missing.err) == (2, True)
    nothing = dpf(*words[:2], str(tmp_path), "--model", str(made.start), *words[3:])
    assert (nothing.code, "manifest.json" in nothing.err) == (2, True)
