"""Release a corpus on Ray: kills of workers and of the driver, throughput, memory.

python -m benchmarks.ray_release kills|forks|speed|memory [--records N] [--kills 100] [--driver-kills 2]
    [--minutes 60] [--pause 0.3] [--workers 2] [--address HOST:PORT] [--store postgresql://...] [--json FILE]

* kills: while a driver releases a file of short texts, its Ray workers are killed (SIGKILL) one after another
  at random moments, nine times of ten one that is drawing, and the driver now and then too, which is then
  started again. Counted are the kills by what was hit, the records, the charges in the store, the releases in
  the ledger and the distinct releases in the corpus.
* forks: the code of an actor runs in forked processes, without Ray, so that a kill costs milliseconds. Each
  takes pieces at random, also such as were drawn; what was told of a piece must be one and the same draw. A
  control, which tells its own draw whatever is stored, must be caught.
* speed: the seconds of the engine `ray` with one and two workers, and those of the engine `local` over them:
  of the whole command, and of the part after the texts were read, which starts the workers and draws.
* memory: the resident memory of the driver and of the largest worker, at a tenth of the records and at all.

The front is a random BERT of two blocks. Without --address, a Ray head with a token and a folder of its own
runs while it measures. Only children of the raylet of this cluster are killed. The exit code is 1 where
something is lost or doubled, and where fewer workers were killed than --kills, or none of them while it drew:
then take more records, or shorter pauses.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import ROOT, provenance

TESTS = ROOT / "tests"
OURS, DRAWS = "Map", "(_Drawing)).submit"  # in the titles of processes that run our tasks, and that draw

PIECE = 16  # records of a forked process at a time


class Setting(NamedTuple):
    """Where a driver works."""

    folder: Path
    address: str | None
    store: str | None
    workers: int

    def start(self, engine: str = "ray", stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """A driver in a process of its own; it tells its progress in lines of JSON."""
        store, address = self.store or "", self.address or ""
        words = ["drive", engine, str(self.folder), address, store, str(self.workers)]
        command = [sys.executable, "-m", "benchmarks.ray_release", *words]
        return subprocess.Popen(command, cwd=ROOT, stdout=stdout, text=True)


@contextlib.contextmanager
def start_cluster(folder: Path) -> Iterator[str]:
    """A Ray head with a token of its own, its address; its files lie in ``folder``."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"  # nobody waits for its tasks
    import ray  # it reads the environment

    words = "start --head --block --port 0 --include-dashboard false --disable-usage-stats --temp-dir"
    command = [sys.executable, "-m", "ray.scripts.scripts", *words.split(), str(folder)]
    head, written = subprocess.Popen(command, stdout=subprocess.DEVNULL), folder / "ray_current_cluster"
    try:
        while not written.is_file():
            if head.poll() is not None:
                raise RuntimeError("Ray did not start")
            time.sleep(0.2)
        yield written.read_text()
    finally:
        ray.shutdown()
        head.terminate()
        head.wait()


def prepare_run(folder: Path, records: int) -> None:
    """A front and a JSONL file of so many texts, no two of which are one."""
    sys.path.insert(0, str(TESTS))
    from dp_forward.privacy import NoiseSpec
    from tiny_task import WORDS
    from tiny_user import write_user

    write_user(folder / "run", noise=NoiseSpec(epsilon=4.0), cut="output", rows=40, width=None)
    words, draw = list(WORDS[5:]), np.random.default_rng(0)
    chosen = draw.integers(0, len(words), (records, 8))
    with (folder / "texts.jsonl").open("w") as file:
        for number, row in enumerate(chosen):
            text = " ".join([words[word] for word in row] + [f"n{number}"])
            file.write(json.dumps({"text": text, "label": ("bad", "good")[number % 2]}) + "\n")


def drive(engine: str, folder: Path, address: str, store: str, workers: int) -> None:
    """Release the file, and say what happens."""
    from dp_forward.corpus.writer import release_corpus
    from dp_forward.data import read_texts
    from dp_forward.data.own_data import task_of
    from dp_forward.integrations import ray as on_ray
    from dp_forward.progress import counter
    from dp_forward.split.artifacts import load_user_side

    began = time.monotonic()

    def say(stage: str, done: int, total: int, numbers: Any) -> None:
        seconds = time.monotonic() - began
        print(json.dumps({"stage": stage, "done": done, "seconds": seconds}), flush=True)

    user, out = load_user_side(folder / "run" / "front"), folder / f"out-{engine}-{workers}"
    data = {"task": "texts", "data": {"texts": str(folder / "texts.jsonl")}, "labels": user.spec.labels}
    task = task_of({**data, "validation_share": 0.0, "text_column": ("text",), "label_column": "label"})
    settings: dict[str, Any] = {"resume": True, "register": folder / f"register-{engine}-{workers}"}
    if engine == "local":
        texts = read_texts(task, "train", user.tokens, progress=counter(say, "reading"))
        release_corpus(user, texts, out, progress=counter(say, "releasing"), **settings)
        say("end", len(texts), len(texts), None)
        return
    on_ray.connect(address or None)
    dataset, task = on_ray.read_task(task, "train")
    more: dict[str, Any] = {"store": store or None, "workers": workers, "progress": counter(say, "reading")}
    with on_ray.prepare(dataset, task, user, out, **more) as (texts, drawing):
        release_corpus(user, texts, out, engine=drawing, progress=counter(say, "releasing"), **settings)
        say("end", len(texts), len(texts), None)


def ray_workers(address: str | None) -> dict[int, str]:
    """Processes of the workers of this cluster, by their numbers."""
    import ray

    from dp_forward.integrations.ray import connect

    connect(address)
    sockets = [node["RayletSocketName"] for node in ray.nodes() if node["Alive"]]
    found: dict[int, tuple[int, str]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        found[int(place.name)] = parent, words
    raylets = {pid for pid, (_, words) in found.items() if any(f"name={one} " in words for one in sockets)}
    return {
        pid: words.strip()
        for pid, (parent, words) in found.items()
        if parent in raylets and words[:5] == "ray::"
    }


def measure_kills(
    setting: Setting, *, kills: int, driver_kills: int, minutes: float, pause: float
) -> dict[str, Any]:
    """Kill at random moments, at most for so many minutes, let the last driver end, and count."""
    killed, done, until = Counter[str](), 0, time.monotonic() + 60 * minutes
    driver_at = set(random.sample(range(1, kills), driver_kills))
    driver = setting.start(stdout=subprocess.DEVNULL)
    try:
        while done < kills and driver.poll() is None and time.monotonic() < until:
            time.sleep(random.uniform(0, pause))
            wanted, ours = DRAWS if random.random() < 9 / 10 else OURS, dict[int, str]()
            while not ours and driver.poll() is None:  # a piece is drawn in a fraction of a second
                time.sleep(0.05)
                ours = {pid: name for pid, name in ray_workers(setting.address).items() if wanted in name}
            if not ours:
                break
            pid = random.choice(list(ours))
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            done += 1
            killed[ours[pid].split()[0]] += 1
            print(f"kill {done}: {ours[pid]}", file=sys.stderr, flush=True)
            if done in driver_at:
                driver.kill()
                driver.wait()
                killed["driver"] += 1
                driver = setting.start(stdout=subprocess.DEVNULL)
        code = driver.wait()
    finally:
        driver.kill()
    hit = {"killed": dict(killed), "drawing_kills": sum(n for name, n in killed.items() if DRAWS in name)}
    return {"worker_kills": done, **hit, "exit_code": code, **counts(setting)}


def measure_forks(folder: Path, place: str, *, kills: int, records: int, careless: bool) -> dict[str, Any]:
    """Kill forked actors, draw what is left, and count what was told of the pieces, and what is stored."""
    from benchmarks.killed_children import Say, children, said
    from dp_forward.corpus.corpus_spec import CorpusSpec
    from dp_forward.corpus.draw_store import DrawStore
    from dp_forward.data import EncodedTexts
    from dp_forward.integrations.ray import _Drawing
    from dp_forward.split.artifacts import load_user_side

    user = load_user_side(folder / "run" / "front")
    spec = CorpusSpec(release=user.spec, labels="none", records=records, shard_records=records)
    ids = np.random.default_rng(0).integers(5, 20, (records, user.spec.rows), dtype=np.int32)
    actor = _Drawing(user, spec, (place, "forks"), "cpu")  # its store survives forks

    def draw(first: int) -> bytes:
        rows = slice(first, first + PIECE)
        piece = {"ids": ids[rows], "lengths": np.full(PIECE, user.spec.rows, np.int32)}
        if careless:
            texts = EncodedTexts(piece, pads_left=False)
            return actor._drawer.reading(texts).draw(range(PIECE))[0]
        actor({"record": np.arange(first, first + PIECE), **piece})
        stored = actor._store.read(range(first, first + PIECE))
        assert stored is not None
        return stored[0]

    def work(place: str, say: Say) -> None:
        while True:
            first = random.randrange(0, records, PIECE)
            say(b"a", first.to_bytes(16, "big"), hashlib.sha256(draw(first)).digest()[:16])

    with children(work, place, 3) as replace_one:
        for _ in range(kills):
            time.sleep(random.uniform(0.01, 0.3))
            replace_one()
    told: dict[bytes, set[bytes]] = {}
    for one in said:
        told.setdefault(one[1:17], set()).add(one[17:])
    noisy, size = b"".join(map(draw, range(0, records, PIECE))), user.spec.payload_bytes
    with DrawStore(place, "forks") as store:
        charges, draws = store.counts()
    return {
        "kills": kills,
        "told": len(said),
        "pieces": len(told),
        "doubled_pieces": sum(len(found) > 1 for found in told.values()),
        "records": records,
        "charges": charges,
        "draws": draws,
        "distinct_releases": len({noisy[at : at + size] for at in range(0, len(noisy), size)}),
    }


def counts(setting: Setting) -> dict[str, Any]:
    """What is in the corpus, the ledger and the store."""
    from dp_forward.corpus.draw_store import DrawStore
    from dp_forward.corpus.reader import ReleasedCorpus
    from dp_forward.corpus.writer import ledger_of, private_folder
    from dp_forward.ledger import Ledger

    out = setting.folder / f"out-ray-{setting.workers}"
    corpus = ReleasedCorpus.open(out, raw=True)
    values = corpus.__getitems__(range(len(corpus)))["values"].numpy().reshape(len(corpus), -1)
    with DrawStore(setting.store or private_folder(out), corpus.name) as store:
        charges, draws = store.counts()
    with Ledger.open(ledger_of(out)) as book:
        book.verify()
        spent = book.spent()
    return {
        "records": len(corpus),
        "charges": charges,
        "draws": draws,
        "distinct_releases": len(np.unique(values, axis=0)),
        "epsilon_in_ledger": spent,
        "epsilon_per_record": corpus.guarantee.epsilon,
    }


def measure_speed(setting: Setting, *, engine: str) -> dict[str, Any]:
    """Seconds of a release in all, and of it after the last text was read."""
    began = time.monotonic()
    driver = setting.start(engine)
    said = [json.loads(line) for line in driver.communicate()[0].splitlines() if line.startswith("{")]
    whole, end = time.monotonic() - began, said[-1]
    read = max(one["seconds"] for one in said if one["stage"] == "reading")
    after = end["seconds"] - read
    numbers = {"seconds": whole, "seconds_after_reading": after, "per_second": end["done"] / after}
    return {"records": end["done"], **{name: round(value, 1) for name, value in numbers.items()}}


def measure_memory(setting: Setting, *, records: int) -> dict[str, Any]:
    """The greatest memory in MiB, of the driver and of a worker, while a tenth was drawn and in all."""
    driver, greatest = setting.start(), {"driver": [0.0, 0.0], "worker": [0.0, 0.0]}
    tenth = False
    assert driver.stdout is not None
    for line in driver.stdout:
        said = json.loads(line) if line.startswith("{") else {}
        tenth = tenth or (said.get("stage") == "releasing" and said["done"] > records / 10)
        workers = [pid for pid, name in ray_workers(setting.address).items() if OURS in name]
        for kind, pids in (("driver", [driver.pid]), ("worker", workers)):
            found = greatest[kind]
            found[tenth] = max([found[tenth], *map(resident, pids)])
    return {
        "records": records,
        "exit_code": driver.wait(),
        **{f"{kind}_mib_{when}": round(found[at], 1) for kind, found in greatest.items()
           for at, when in enumerate(("to_a_tenth", "after"))},
    }  # fmt: skip


def resident(pid: int) -> float:
    """Memory of a process that is its own, without pages of files and of Ray's shared store."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def main() -> int:
    """Measure one thing."""
    if sys.argv[1:2] == ["drive"]:
        engine, folder, address, store, workers = sys.argv[2:]
        drive(engine, Path(folder), address, store, int(workers))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("kills", "forks", "speed", "memory"))
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--driver-kills", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=0.3, help="at most so many seconds between kills")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--address")
    parser.add_argument("--store")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpf-ray-")))
        prepare_run(folder, given.records)
        address = given.address
        if address is None and given.what != "forks":
            address = stack.enter_context(start_cluster(folder / "ray"))
        setting = Setting(folder, address, given.store, given.workers)
        if given.what == "kills":
            more = {"driver_kills": given.driver_kills, "minutes": given.minutes, "pause": given.pause}
            found = measure_kills(setting, kills=given.kills, **more)
        elif given.what == "forks":
            found = {}
            for name in ("forks", "control"):
                where = given.store if given.store and name == "forks" else str(folder / name)
                one = {"kills": given.kills, "records": given.records, "careless": name == "control"}
                found[name] = measure_forks(folder, where, **one)
        elif given.what == "memory":
            found = measure_memory(setting, records=given.records)
        else:
            found = {"local": measure_speed(setting, engine="local")}
            for workers in (1, 2):
                one = measure_speed(setting._replace(workers=workers), engine="ray")
                for name in ("seconds", "seconds_after_reading"):
                    one[f"local_over_this_{name}"] = round(found["local"][name] / one[name], 3)
                found[f"ray_{workers}"] = one
    result = {given.what: found, **provenance(("torch", "ray", "numpy"))}
    print(json.dumps(result, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    if given.what == "forks":
        return int(found["forks"]["doubled_pieces"] > 0 or not found["control"]["doubled_pieces"])
    return int(given.what == "kills" and not is_sound(found, given.records, given.kills))


def is_sound(found: dict[str, Any], records: int, kills: int) -> bool:
    """Whether all kills came, some of what draws, and each record and the release were charged once."""
    numbers = (found["records"], found["charges"], found["draws"], found["distinct_releases"])
    whole = found["exit_code"] == 0 and set(numbers) == {records}
    whole = whole and found["worker_kills"] == kills and found["drawing_kills"] > 0
    return whole and abs(found["epsilon_in_ledger"] - found["epsilon_per_record"]) < 1e-6


if __name__ == "__main__":
    sys.exit(main())
