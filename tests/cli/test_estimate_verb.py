"""`dpf estimate`: shares as JSON, as bars and as a figure, of a corpus or a collection; one-line refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpus.release_cases import folding_user, texts, user
from dp_forward.cli.estimate import _bar
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import release_corpus
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.protocol.collection import CollectionSpec, pack_record, parse_record
from dp_forward.service.protocol.manifest import Manifest

RECORDS = 60
Dpf = Callable[..., Any]


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("estimate") / "releases"
    release_corpus(folding_user(epsilon=8.0), texts(RECORDS), out, bits=16)
    return out


def _collected(corpus: ReleasedCorpus, folder: str) -> str:
    """What a collector would hold after all records of the corpus were pushed to it."""
    manifest = Manifest(release=replace(corpus.release, cut="output"))
    with Collection.open_or_create(folder, CollectionSpec.of(manifest, corpus.spec.labels)) as collection:
        records = []
        for number in range(len(corpus)):
            header = manifest.header(request=number.to_bytes(16, "big"))
            data = pack_record(header.pack() + corpus[number]["values"].numpy().tobytes(), None)
            records.append(parse_record(data, labels=None))
        collection.add(records, None)
    return folder


@pytest.mark.slow
def test_shares_are_printed_for_programs_and_drawn_for_people(dpf: Dpf, folded: Path, tmp_path: Path) -> None:
    found = dpf("estimate", str(folded), "--json")
    assert found.code == 0, found.err
    assert found.json.keys() >= {"records", "shares", "guarantee", "of", "notes"}
    assert (found.json["records"], list(found.json["shares"])) == (RECORDS, ["a", "b", "c"])
    for row in found.json["shares"].values():
        assert row.keys() == {"share", "low", "high", "raw"}
        assert 0 <= row["low"] <= row["share"] <= row["high"] <= 1
    assert sum(row["raw"] for row in found.json["shares"].values()) == pytest.approx(1)
    people = dpf("estimate", str(folded), "--figure", str(tmp_path / "shares.png"))
    assert people.code == 0, people.err
    assert f"{found.json['shares']['b']['share']:.4f}" in people.out
    assert found.json["guarantee"]["statement"] in people.out
    assert "costs nothing" in people.out
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_collection_says_the_same_as_the_corpus_that_was_pushed(
    dpf: Dpf, folded: Path, tmp_path: Path, place: str
) -> None:
    collection = _collected(ReleasedCorpus.open(folded, raw=True), place)
    before = sorted(path.name for path in tmp_path.iterdir())
    found = dpf("estimate", collection, "--json")
    assert found.code == 0, found.err
    assert found.json["shares"] == dpf("estimate", str(folded), "--json").json["shares"]
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "the exported corpus is gone"


@pytest.mark.slow
def test_what_cannot_be_estimated_or_drawn_is_refused_in_one_line(
    dpf: Dpf, folded: Path, tmp_path: Path
) -> None:
    release_corpus(user(), texts(), tmp_path / "silent", publish_labels=False)
    for words, told in (
        ([str(tmp_path / "silent")], "not collected"),
        ([str(tmp_path / "nowhere")], "manifest.json"),
        ([str(folded), "--figure", str(tmp_path / "shares.txt")], "figure"),
    ):
        refused = dpf("estimate", *words)
        assert refused.code == 2
        assert told in refused.err
        assert refused.err.count("\n") == 1
        assert refused.out == ""


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (0.0, 1.0), (0.4, 0.6), (0.999, 1.0), (1.0, 1.0)])
def test_a_bar_has_one_length_and_shows_its_interval(low: float, high: float) -> None:
    bar = _bar(low, high)
    assert len(bar) == 40
    assert abs(bar.count("▒") - 40 * (high - low)) <= 1


@pytest.mark.slow
def test_a_label_is_shown_as_it_is_written(dpf: Dpf, tmp_path: Path) -> None:
    side, odd = user(), ("[bold]x", ":smile:", "[/y]")
    release_corpus(replace(side, spec=replace(side.spec, labels=odd)), texts(), tmp_path / "out")
    shown = dpf("estimate", str(tmp_path / "out"))
    assert shown.code == 0, shown.err
    assert all(label in shown.out for label in odd)
