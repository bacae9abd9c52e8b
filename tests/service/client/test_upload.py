"""A stored release reaches a collector record by record, once, whatever fails; and nothing else does."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from corpus.release_cases import texts, user
from dp_forward.corpus.reader import MANIFEST, ReleasedCorpus
from dp_forward.corpus.writer import ledger_of, private_folder, release_corpus
from dp_forward.errors import InvalidInput
from dp_forward.ledger import Cap, Ledger
from dp_forward.privacy import RandomizedResponse
from dp_forward.service.client import upload as upload_module
from dp_forward.service.client.transport import RetryPolicy, ServerRefused, ServerUnavailable
from dp_forward.service.client.upload import check_collector, push_corpus, record_id
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.collector_routes import RecordReader
from dp_forward.service.collector.corpus_export import export_corpus
from dp_forward.service.protocol.policy import ProtocolMismatch
from dp_forward.service.server.app import make_app
from dp_forward.service.server.settings import ServerSettings
from service.collector.collect_cases import CUT, FRONT, RANDOMIZED, provider, spec, stored

SERVER, RECORDS = "http://127.0.0.1:8765", 22
AT_ONCE = RetryPolicy(attempts=30, first=0.0, longest=0.0)
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("released") / "out"
    release_corpus(user(CUT), texts(RECORDS), out)
    return out


@pytest.fixture
def out(released: Path, tmp_path: Path) -> Path:
    shutil.copytree(private_folder(released), private_folder(tmp_path / "out"))
    return Path(shutil.copytree(released, tmp_path / "out"))


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.open_or_create(tmp_path / "collected", spec())


@pytest.fixture
def served(collection: Collection) -> Iterator[Answer]:
    """A real collector, asked without sockets."""
    app = make_app(provider(), front_digest=FRONT, settings=ServerSettings(), collection=collection)
    with TestClient(app, base_url=SERVER) as client:

        def answer(request: httpx.Request) -> httpx.Response:
            found = client.request(
                request.method, request.url.path, content=request.content, headers=request.headers
            )
            return httpx.Response(found.status_code, content=found.content, headers=_kept(found))

        yield answer


def _kept(found: httpx.Response) -> dict[str, str]:
    return {name: found.headers[name] for name in ("retry-after",) if name in found.headers}


def pushed(out: Path, answer: Answer, **settings: Any):
    chosen = {"server": SERVER, "cut": CUT, "retry": AT_ONCE} | settings
    return push_corpus(out, transport=httpx.MockTransport(answer), **chosen)


def multiset(folder: Path) -> list[tuple[bytes, int]]:
    corpus = ReleasedCorpus.open(folder, raw=True)
    batch = corpus.__getitems__(range(len(corpus)))
    labels = batch["labels"].tolist() if "labels" in batch else [-1] * len(corpus)
    return sorted((v.tobytes(), label) for v, label in zip(batch["values"].numpy(), labels, strict=True))


def small_bodies(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    monkeypatch.setattr(upload_module, "_BODY_BYTES", records * spec().record_bytes)


def test_what_is_collected_is_what_was_released(
    out: Path, collection: Collection, served: Answer, tmp_path: Path
) -> None:
    seen: list[int] = []
    done = pushed(out, served, progress=seen.append)
    assert (done.pushed, done.known, done.server) == (RECORDS, 0, SERVER)
    assert done.spec.shuffler_least is None
    assert seen[-1] == RECORDS
    corpus = export_corpus(collection.place, tmp_path / "corpus")
    assert multiset(corpus.folder) == multiset(out)
    own = ReleasedCorpus.open(out)
    assert corpus.guarantee.as_dict() == own.guarantee.as_dict()
    assert (corpus.scale, corpus.front_digest, corpus.release.noise) == (
        own.scale,
        own.front_digest,
        own.release.noise,
    )
    again = pushed(out, served)
    assert (again.pushed, again.known) == (0, RECORDS)
    with Ledger.open(ledger_of(out)) as book:
        assert book.releases == 1, "pushing charges nothing"


@pytest.mark.parametrize(
    ("how", "settings"),
    [("none", {"publish_labels": False}), (RANDOMIZED, {"label_mechanism": RANDOMIZED})],
)
def test_other_labels_go_the_same_way(how: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    release_corpus(user(CUT), texts(RECORDS), tmp_path / "out", **settings)
    collection = Collection.open_or_create(tmp_path / "collected", spec(how))
    done = pushed(tmp_path / "out", _straight(collection.place))
    assert (done.pushed, done.known) == (RECORDS, 0)
    corpus = export_corpus(collection.place, tmp_path / "corpus")
    assert multiset(corpus.folder) == multiset(tmp_path / "out")


@pytest.mark.slow
def test_a_network_that_fails_stores_each_record_once(
    out: Path, collection: Collection, served: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_bodies(monkeypatch, 1)
    chosen, failed, bodies = random.Random(3), [0], set()

    def weather(request: httpx.Request) -> httpx.Response:
        if chosen.random() < 0.18:
            failed[0] += 1
            raise httpx.ConnectError("before it came")
        bodies.add(request.content)
        found = served(request)
        if chosen.random() < 0.18:
            failed[0] += 1
            raise httpx.ReadError("after it was stored")
        return found

    done = pushed(out, weather)
    assert failed[0] > 3
    assert len(bodies - {b""}) == RECORDS, "a retry sends identical bytes"
    assert len(stored(collection)) == RECORDS
    assert done.pushed + done.known == RECORDS
    assert done.known > 0, "the control: some had arrived although no answer came back"


def _straight(folder: Path, die: Callable[[str], None] = lambda when: None) -> Answer:
    """A collector without HTTP, for other processes; ``die`` may end them before or after it stores."""

    def answer(request: httpx.Request) -> httpx.Response:
        with Collection.open(folder) as there:
            if request.method == "GET":
                return httpx.Response(200, json=there.spec.as_dict())
            die("before")
            new, known = there.add(RecordReader(there.spec).body(request.content))
        die("after")
        return httpx.Response(200, json={"stored": new, "known": known})

    return answer


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_and_stores_each_record_once(
    out: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_bodies(monkeypatch, 2)
    collection.close()
    for number in range(8):
        child = os.fork()
        if child == 0:
            calls = [0]

            def die(when: str, number: int = number, calls: list[int] = calls) -> None:
                calls[0] += when == "before"
                if calls[0] == 1 + number % 3 and when == ("before", "after")[number % 2]:
                    os.kill(os.getpid(), signal.SIGKILL)

            try:
                pushed(out, _straight(collection.place, die))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert number >= 3, "the control: it was killed several times"
    done = pushed(out, _straight(collection.place))
    assert done.pushed + done.known == RECORDS
    corpus = export_corpus(collection.place, tmp_path / "corpus")
    assert multiset(corpus.folder) == multiset(out)


def test_two_pushes_side_by_side_are_one(out: Path, collection: Collection, served: Answer) -> None:
    pushed(out, served)
    (private_folder(out) / "push.json").unlink()
    again = pushed(out, served, server="http://localhost:1")  # another line to the same collector
    assert (again.pushed, again.known) == (0, RECORDS)
    assert len(collection) == RECORDS


@pytest.mark.slow
def test_uploads_side_by_side_lose_no_entry_of_the_log(
    out: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = upload_module.write_json

    def slow(*given: Any, **settings: Any) -> None:
        time.sleep(0.02)  # between reading and writing, somebody else reads
        plain(*given, **settings)

    monkeypatch.setattr(upload_module, "write_json", slow)
    servers = [f"http://127.0.0.1:{port}" for port in range(1, 7)]
    with ThreadPoolExecutor(len(servers)) as threads:
        done = list(threads.map(lambda at: pushed(out, _straight(collection.place), server=at), servers))
    assert sum(one.pushed for one in done) == RECORDS
    noted = json.loads((private_folder(out) / "push.json").read_text())
    assert noted["servers"] == {at: {"records": RECORDS, "least": None} for at in servers}
    assert not noted["lost"]


def test_a_server_that_lost_its_disk_gets_everything_again(out: Path, served: Answer, tmp_path: Path) -> None:
    pushed(out, served)
    fresh = Collection.open_or_create(tmp_path / "fresh", spec())
    assert pushed(out, _straight(fresh.place)).pushed == 0, "it was acknowledged before"
    assert pushed(out, _straight(fresh.place), again=True).pushed == RECORDS


# --- what is refused before a byte is sent ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["manifest"].update(front="bb" * 32), "front"),
        (lambda d: d["manifest"]["noise"].update(epsilon=400.0), "epsilon"),
        (lambda d: d["manifest"]["noise"].update(epsilon=1.0), "epsilon"),
        (lambda d: d["manifest"]["noise"].update(mechanism="matrix-gaussian", delta=1e-5), "mechanism"),
        (lambda d: d["manifest"]["noise"].update(unit="token"), "unit"),
        (lambda d: d["manifest"].update(bits=16), "bits"),
        (lambda d: d["manifest"].update(rows=7), "rows"),
        (lambda d: d["manifest"].update(matrix_rows=1 << 30), "matrix_rows"),
        (lambda d: d["manifest"].update(cut="encoder.2"), "cut"),
        (lambda d: d["manifest"].update(labels=["a", "b", "x\x1b[2J"]), "labels"),
        (lambda d: d["manifest"].update(epsilons=[1.0]), "epsilons"),
        (lambda d: d.update(labels={"how": "none"}), "labels"),
        (lambda d: d.update(labels={"how": "randomized", "epsilon": 1.0, "releases": 1}), "labels"),
        (lambda d: d.update(shuffler={"least": 0}), "version"),
        (lambda d: d.update(version=9), "version"),
        (lambda d: d.update(extra=1), "version"),
        (lambda d: d.clear(), "version"),
    ],
)
def test_a_collector_of_something_else_gets_nothing(out: Path, change, told: str) -> None:
    settings = spec().as_dict()
    change(settings)
    asked: list[str] = []

    def hostile(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        return httpx.Response(200, json=settings)

    with pytest.raises(ProtocolMismatch, match=told) as error:
        pushed(out, hostile)
    assert "Nothing was sent" in str(error.value)
    assert "\x1b" not in str(error.value)
    assert asked == ["GET"]
    with pytest.raises(ProtocolMismatch, match=told):
        check_collector(
            user(CUT),
            "public",
            bits=8,
            server=SERVER,
            transport=httpx.MockTransport(hostile),
            retry=AT_ONCE,
        )


def test_other_randomized_labels_are_refused_by_their_budget(tmp_path: Path) -> None:
    release_corpus(user(CUT), texts(4), tmp_path / "out", label_mechanism=RANDOMIZED)
    other = spec(RandomizedResponse(2.0, 3)).as_dict()
    with pytest.raises(ProtocolMismatch, match="labels: epsilon 2"):
        pushed(tmp_path / "out", lambda request: httpx.Response(200, json=other))


def test_an_incomplete_release_is_never_pushed(out: Path, served: Answer) -> None:
    (out / MANIFEST).rename(out / "aside")
    with pytest.raises(InvalidInput, match="manifest"):
        pushed(out, served)
    (out / "aside").rename(out / MANIFEST)
    pushed(out, served)  # the control


def test_a_release_that_no_ledger_knows_is_never_pushed(
    out: Path, served: Answer, collection: Collection, tmp_path: Path
) -> None:
    Ledger.create(tmp_path / "other.ledger", cap=Cap.pure(9.0)).close()
    with pytest.raises(InvalidInput, match="charged"):
        pushed(out, served, ledger=tmp_path / "other.ledger")
    shutil.rmtree(private_folder(out))
    with pytest.raises(InvalidInput, match="of your own"):
        pushed(out, served)
    assert len(collection) == 0


def test_another_corpus_in_the_place_of_the_charged_one_is_never_pushed(
    out: Path, served: Answer, collection: Collection, tmp_path: Path
) -> None:
    release_corpus(user(CUT), texts(RECORDS, seed=5), tmp_path / "second")
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "second", out)
    with pytest.raises(InvalidInput, match="charged"):
        pushed(out, served)
    assert len(collection) == 0


@pytest.mark.parametrize("server", ["http://collector.example:80", "ftp://127.0.0.1", "nowhere"])
def test_off_this_machine_it_speaks_tls(out: Path, server: str) -> None:
    with pytest.raises(InvalidInput, match="server"):
        pushed(out, lambda request: pytest.fail("sent"), server=server)


@pytest.mark.parametrize(
    "answer",
    [
        {"stored": 99, "known": 0},
        {"stored": -1, "known": 23},
        {"stored": 22},
        [],
        "ok",
        {"stored": 22, "known": 0, "x": 1},
    ],
)
def test_an_answer_that_does_not_add_up_is_refused(out: Path, answer: Any) -> None:
    def lying(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=spec().as_dict() if request.method == "GET" else answer)

    with pytest.raises(ServerRefused, match="makes no sense"):
        pushed(out, lying)
    assert json.loads((private_folder(out) / "push.json").read_text())["servers"][SERVER]["records"] == 0


def test_a_server_that_is_away_costs_nothing(out: Path) -> None:
    def away(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503)

    with pytest.raises(ServerUnavailable, match="Nothing was sent"):
        pushed(out, away, retry=RetryPolicy(attempts=2, first=0.0))


# --- the secret ---------------------------------------------------------------------------------------------


def test_ids_are_the_same_for_ever_and_tell_nothing(
    out: Path, served: Answer, collection: Collection
) -> None:
    pushed(out, served)
    place = private_folder(out)
    secret = (place / "push.secret").read_bytes()
    assert {row[0] for row in stored(collection)} == {record_id(secret, i) for i in range(RECORDS)}
    assert record_id(bytes(32), 258).hex() == "c0561f38ce39443d4a06ecfbf769f265", "as openssl computes it"
    for name in ("push.secret", "push.json"):
        assert stat.S_IMODE((place / name).stat().st_mode) == 0o600
    noted = json.loads((place / "push.json").read_text())
    assert noted["servers"] == {SERVER: {"records": RECORDS, "least": None}}
    assert not any("push" in path.name for path in out.iterdir()), "what is handed over holds no secret"


def test_without_its_secret_nothing_is_sent_a_second_time(
    out: Path, served: Answer, collection: Collection
) -> None:
    pushed(out, served)
    secret = private_folder(out) / "push.secret"
    kept = secret.read_bytes()
    secret.unlink()
    with pytest.raises(InvalidInput, match="Bring it back"):
        pushed(out, served, again=True)
    secret.write_bytes(kept)
    secret.chmod(0o644)
    with pytest.raises(InvalidInput, match="owner"):
        pushed(out, served)
    assert len(collection) == RECORDS


def test_damaged_notes_cost_a_round_and_nothing_else(
    out: Path, served: Answer, collection: Collection
) -> None:
    pushed(out, served)
    notes = private_folder(out) / "push.json"
    for text in ("", "{", "[]", '{"format": 1, "corpus": "another", "servers": {}}'):
        notes.write_text(text)
        found = pushed(out, served)
        assert (found.known, found.elsewhere) == (RECORDS, True), "nobody knows any more where they went"
    assert len(collection) == RECORDS


def test_a_batch_is_as_small_as_it_ever_was_when_records_were_sent(out: Path, served: Answer) -> None:
    def shuffling(least: int | None) -> Answer:
        def answer(request: httpx.Request) -> httpx.Response:
            told = spec().as_dict() if least is None else replace(spec(), shuffler_least=least).as_dict()
            return httpx.Response(200, json=told) if request.method == "GET" else served(request)

        return answer

    assert [pushed(out, shuffling(least)).least for least in (40, 5000, 10, 90)] == [40, 40, 10, 10]
    assert pushed(out, shuffling(None)).least is None
    assert pushed(out, shuffling(5000)).least is None, "they went past it once"


def test_records_that_went_to_another_server_are_known_to_be_elsewhere(
    out: Path, served: Answer, tmp_path: Path
) -> None:
    assert not pushed(out, served).elsewhere
    assert not pushed(out, served).elsewhere

    def dies(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=spec().as_dict())
        raise KeyboardInterrupt  # sent, perhaps; and no answer was noted

    with pytest.raises(KeyboardInterrupt):
        pushed(out, dies, server="http://127.0.0.1:1")
    assert pushed(out, served).elsewhere
