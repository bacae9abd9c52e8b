"""`dpf serve --collect` and `dpf release --server`: from texts to a provider's collection, over loopback."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_task
import tiny_user
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import private_folder
from dp_forward.privacy import NoiseSpec, RandomizedResponse
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.corpus_export import export_corpus
from dp_forward.service.protocol.collection import CollectionSpec
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.app import make_app
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import run_server
from dp_forward.split.artifacts import load_provider_side
from warm_process import Verb

TOKEN = "a-token-of-enough-letters"
Dpf = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("collected")
    tiny_task.write_task(root / "sst2", train=12, validation=4)
    names = ("negative", "positive")
    tiny_user.write_user(root / "run", noise=NoiseSpec(epsilon=4.0), width=8, labels=names)
    (root / "token").write_text(TOKEN)
    return root / "run"


def words(run: Path, out: Path, *more: str) -> list[str]:
    data = f"sst2={run.parent / 'sst2'}"
    return ["release", str(run / "front"), "--task", "sst2", "--data", data, "--out", str(out), *more]


@contextlib.contextmanager
def serving(run: Path, folder: Path, labels: Any, *, least: int | None = None) -> Iterator[str]:
    """A collector in a thread; with ``least`` it says that it is a shuffler."""
    provider = load_provider_side(run / "back")
    digest = json.loads((run / "split.json").read_text())["digest_front"]
    spec = CollectionSpec.of(Manifest.of(provider, digest), labels, shuffler_least=least)
    settings = ServerSettings(port=0)
    collection = Collection.open_or_create(folder, spec)
    app = make_app(provider, front_digest=digest, settings=settings, collection=collection)
    said: list[str] = []
    ready, found = threading.Event(), []

    def listening(server: Any) -> None:
        found.append(server)
        ready.set()

    thread = threading.Thread(
        target=run_server, args=(app, settings), kwargs={"say": said.append, "ready": listening}
    )
    thread.start()
    try:
        assert ready.wait(30)
        yield json.loads(said[0])["address"]
    finally:
        found[0].should_exit = True
        thread.join(30)


@pytest.mark.slow
def test_a_release_is_pushed_to_a_served_collection(run: Path, dpf: Dpf, tmp_path: Path) -> None:
    token = str(run.parent / "token")
    collect = ["--collect", str(tmp_path / "collected"), "--token-file", token]
    server = Verb("serve", str(run / "back"), "--port", "0", *collect, log=tmp_path / "log")
    try:
        address = server.first_line()["address"]
        push = words(run, tmp_path / "out", "--server", address, "--token-file", token, "--json")
        first = dpf(*push)
        assert first.code == 0, first.err
        assert {name: first.json[name] for name in ("pushed", "known", "server", "records")} == {
            "pushed": 12,
            "known": 0,
            "server": address,
            "records": 12,
        }
        assert "central" not in first.out
        again = dpf(*push)
        assert (again.json["pushed"], again.json["known"]) == (0, 12)
        assert again.json["spent_per_record"] == first.json["spent_per_record"] == 4.0
        with contextlib.closing(sqlite3.connect(tmp_path / "collected" / "records.sqlite")) as lost, lost:
            lost.execute("DELETE FROM records")  # as from an older copy of its disk
        assert dpf(*push).json["pushed"] == 0, "they were acknowledged"
        assert dpf(*push, "--again").json["pushed"] == 12
        missing = dpf(*words(run, tmp_path / "out", "--server", address))
        assert missing.code == 4, "without the token"
    finally:
        server.signal(signal.SIGINT)
        assert server.finish(30) == 0
    corpus = export_corpus(tmp_path / "collected", tmp_path / "corpus")
    assert len(corpus) == 12
    own = ReleasedCorpus.open(tmp_path / "out")
    assert sorted(corpus.labels.tolist()) == sorted(own.labels.tolist())
    assert corpus.guarantee.promise == own.guarantee.promise


@pytest.mark.slow
def test_a_server_that_wants_something_else_is_refused_before_anything_is_charged(
    run: Path, dpf: Dpf, tmp_path: Path
) -> None:
    with serving(run, tmp_path / "collected", RandomizedResponse(1.0, 2)) as address:
        for more in ([], ["--no-labels"], ["--label-epsilon", "2"], ["--bits", "16"]):
            refused = dpf(*words(run, tmp_path / "out", "--server", address, *more))
            assert refused.code == 4, refused.err
            assert "Nothing was sent" in refused.err
            assert not (tmp_path / "out").exists()
            assert not private_folder(tmp_path / "out").exists()
        taken = dpf(*words(run, tmp_path / "out", "--server", address, "--label-epsilon", "1", "--json"))
        assert taken.json["pushed"] == 12, taken.err
        assert "central" not in taken.out
    assert len(Collection.open(tmp_path / "collected")) == 12


@pytest.mark.slow
def test_only_a_shuffler_brings_a_central_epsilon(run: Path, dpf: Dpf, tmp_path: Path) -> None:
    with serving(run, tmp_path / "shuffled", "none", least=5000) as address:
        push = words(run, tmp_path / "out", "--server", address, "--no-labels")
        found = dpf(*push, "--json").json
        assert found["shuffler_least"] == found["central"]["batch"] == 5000
        assert 0 < found["central"]["epsilon_upper"] < 4.0
        assert any("honest" in assumed for assumed in found["central"]["assumptions"])
        told = dpf(*push).out
        assert "does not collude" in told
        assert "shuffler" in told
    with serving(run, tmp_path / "direct", "none") as address:
        direct = dpf(*words(run, tmp_path / "out", "--server", address, "--no-labels"))
        assert direct.code == 0, direct.err
        assert "central" not in direct.out
        assert "The shuffler" not in direct.out
    with serving(run, tmp_path / "late", "none", least=5000) as address:
        late = dpf(*words(run, tmp_path / "out", "--server", address, "--no-labels", "--json"))
        assert late.json["central"] is None, "another server has the same records, unshuffled"
    with serving(run, tmp_path / "public", "public", least=5000) as address:
        public = dpf(*words(run, tmp_path / "second", "--server", address, "--json", "--budget", "8"))
        assert public.json["central"] is None, "nobody knows how many share a label"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--collect-labels", "public"], "collect"),
        (["--collect", "DIR", "--collect-labels", "guessed"], "collect-labels"),
        (["--collect", "DIR", "--collect-labels", "randomized"], "label-epsilon"),
        (["--collect", "DIR", "--collect-labels", "none", "--label-epsilon", "1"], "label-epsilon"),
        (["--collect", "DIR", "--label-prior", "0.5,0.5"], "`label-prior` must go with --label-epsilon"),
        (["--shuffler-token-file", "TOKEN"], "collect"),
        (
            ["--collect", "DIR", "--token-file", "TOKEN", "--shuffler-token-file", "TOKEN"],
            "`shuffler-token-file`",
        ),
    ],
)
def test_collecting_is_asked_for_in_one_way(
    run: Path, dpf: Dpf, tmp_path: Path, more: list[str], told: str
) -> None:
    named = {"DIR": str(tmp_path / "c"), "TOKEN": str(run.parent / "token")}
    found = dpf("serve", str(run / "back"), "--port", "0", *(named.get(word, word) for word in more))
    assert found.code == 2
    assert told in found.err


@pytest.mark.slow
def test_a_token_and_again_go_with_a_server(run: Path, dpf: Dpf, tmp_path: Path) -> None:
    for more in (["--token-file", str(run.parent / "token")], ["--again"], ["--ca", "x"], ["--proxy", "x"]):
        found = dpf(*words(run, tmp_path / "out", *more))
        assert found.code == 2
        assert "--server" in found.err
    away = dpf(*words(run, tmp_path / "out", "--server", "http://collector.example"))
    assert away.code == 2
    assert "https" in away.err
