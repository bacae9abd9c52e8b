"""The JavaScript client agrees with the vectors, draws as the package does, and is answered by a server."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch

from dp_forward.noise import release
from dp_forward.noise.released.coins import chance_floor
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.protocol.frame import HEADER_BYTES, Frame, parse_frame
from dp_forward.service.server.app import make_app
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import run_server
from dp_forward.split import split_model
from dp_forward.split.artifacts import ProviderSide
from tiny_models import tiny

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "javascript"
NODE = shutil.which("node")
ROWS, WIDTH, LABELS, FRONT = 4, 32, ("bad", "so so", "good"), "ab" * 32
TOKEN = "a-token-of-enough-letters"
pytestmark = pytest.mark.skipif(
    NODE is None, reason="node is not installed: the JavaScript client is not run"
)


def node(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(NODE), *words], input=given, capture_output=True, text=True, timeout=60, check=False
    )


# The vectors


def test_the_client_agrees_with_the_vector_file() -> None:
    done = node(str(FOLDER / "check.mjs"))
    assert (done.returncode, json.loads(done.stdout)["wrong"]) == (0, []), done.stderr
    assert min(json.loads(done.stdout)["checked"].values()) >= 2


def test_a_changed_vector_is_noticed(tmp_path: Path) -> None:
    vectors = json.loads((ROOT / "docs/vectors/wire-v1.json").read_text(encoding="utf-8"))
    vectors["noise"][0]["step"] *= 1 + 3e-9
    vectors["frames"][0]["code"] = "magic"
    vectors["front"]["digest"] = "00" * 32
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(vectors), encoding="utf-8")
    done = node(str(FOLDER / "check.mjs"), str(changed))
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in json.loads(done.stdout)["wrong"]] == [
        "noise",
        "frames",
        "front",
    ]


# The draw


def fixed_stream(seed: str) -> tuple[Callable[[int], bytes], bytes]:
    """Bytes that are known beforehand, for both implementations; for tests alone."""
    data = b"".join(hashlib.sha256(f"{seed} {i}".encode()).digest() for i in range(400))
    return io.BytesIO(data).read, data


DRAW = """
import { readFileSync } from "node:fs";
const { release } = await import(process.argv[1]);
const { hidden, noise, bits, stream } = JSON.parse(readFileSync(0, "utf8"));
let rest = Buffer.from(stream, "hex");
const fresh = (size) => { const part = rest.subarray(0, size); rest = rest.subarray(size); return part; };
console.log(JSON.stringify(release(hidden, noise, bits, fresh)));
"""


def drawn(hidden: np.ndarray[Any, Any], noise: NoiseSpec, bits: int, stream: bytes) -> list[int]:
    given = {"hidden": hidden.tolist(), "noise": noise.as_dict(), "bits": bits, "stream": stream.hex()}
    words = ("--input-type=module", "--eval", DRAW, (FOLDER / "release.mjs").as_uri())
    done = node(*words, given=json.dumps(given))
    assert done.returncode == 0, done.stderr
    return [int(value) for value in json.loads(done.stdout)]


CHOICES = [
    NoiseSpec(epsilon=8.0),
    NoiseSpec(epsilon=0.5, norm=3.0, threshold_share=0.5),
    NoiseSpec(epsilon=8.0, unit="token", rows=2),
    NoiseSpec(mechanism="gaussian", epsilon=8.0),
    NoiseSpec(mechanism="matrix-gaussian", epsilon=2.0, delta=1e-9, how="clip", norm=0.5),
    NoiseSpec(mechanism="k-ary-response", epsilon=1.0, columns=24),
]


@pytest.mark.parametrize(
    "noise", CHOICES, ids=lambda noise: f"{noise.mechanism} {noise.epsilon} {noise.unit}"
)
def test_the_same_entropy_gives_the_integers_of_the_package(noise: NoiseSpec) -> None:
    rows = 1 if noise.columns else 2
    hidden = np.random.default_rng(0).normal(size=(rows, 24))
    entropy, stream = fixed_stream("one")
    wanted = release(hidden, noise.build(), bits=16, entropy=entropy).values.ravel().tolist()
    assert drawn(hidden, noise, 16, stream) == wanted
    if not noise.columns:
        assert drawn(hidden, noise, 16, fixed_stream("two")[1]) != wanted


@pytest.mark.parametrize(
    "noise", CHOICES, ids=lambda noise: f"{noise.mechanism} {noise.epsilon} {noise.unit}"
)
def test_words_that_leave_a_cell_open_are_read_on_as_in_the_package(noise: NoiseSpec) -> None:
    """A word of zeros says nothing of its tail; a coin's word at the edge says neither yes nor no."""
    hidden = np.random.default_rng(0).normal(size=(1 if noise.columns else 2, 24))
    stream = fixed_stream("three")[1]
    if noise.columns:
        start = chance_floor(noise.epsilon, noise.columns - 1, 64).to_bytes(8, "little")
    else:
        start = stream[:8] + bytes(8) + stream[16:40] + bytes(8)
    stream = start + stream[len(start) :]
    entropy = io.BytesIO(stream)
    wanted = release(hidden, noise.build(), bits=16, entropy=entropy.read).values.ravel().tolist()
    assert entropy.tell() > 8 * (2 if noise.columns else hidden.size), "more digits were read"
    assert drawn(hidden, noise, 16, stream) == wanted


# The server


class Served(NamedTuple):
    address: str
    provider: ProviderSide


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    back = split_model(tiny("bert"), "encoder.2")[1]
    spec = ReleaseSpec.of(back, noise=NoiseSpec(epsilon=8.0), rows=ROWS, labels=LABELS)
    provider = ProviderSide(back, spec, "cd" * 32)
    settings = ServerSettings(port=0, token=TOKEN)
    app = make_app(provider, front_digest=FRONT, settings=settings)
    listening, found = threading.Event(), dict[str, Any]()

    def ready(server: Any) -> None:
        found["server"] = server
        listening.set()

    told = {"say": lambda line: found.update(json.loads(line)), "ready": ready}
    thread = threading.Thread(target=run_server, args=(app, settings), kwargs=told, daemon=True)
    thread.start()
    assert listening.wait(20)
    yield Served(found["address"], provider)
    found["server"].should_exit = True
    thread.join(20)


def asked(served: Served, texts: int, folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    token = folder / "token"
    token.write_text(changes.pop("token", TOKEN), encoding="ascii")
    settings = {"server": served.address, "front": FRONT, "epsilon": "8", "token-file": str(token)} | changes
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    hidden = np.random.default_rng(1).normal(size=(texts, ROWS, WIDTH))
    return node(str(FOLDER / "ask.mjs"), *words, given="".join(f"{json.dumps(m.tolist())}\n" for m in hidden))


def by_the_back(provider: ProviderSide, frame: Frame) -> list[float]:
    noisy = torch.from_numpy(frame.values.astype(np.float32) * np.float32(frame.header.step))
    with torch.inference_mode():
        return torch.softmax(provider.back(noisy[None]).logits.double(), dim=-1)[0].tolist()


def test_a_server_answers_a_frame_from_javascript_as_it_answers_python(
    served: Served, tmp_path: Path
) -> None:
    done = asked(served, 20, tmp_path)
    assert done.returncode == 0, done.stderr
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(replies) == 20
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/octet-stream"}
    with httpx.Client(base_url=served.address, headers=headers, trust_env=False) as python:
        for reply in replies:
            data = bytes.fromhex(reply["frame"])
            assert python.post("/v1/answer", content=data).json() == reply["answer"]
            frame = parse_frame(data)
            assert frame.header.pack() == data[:HEADER_BYTES]
            found = [reply["answer"]["probabilities"][label] for label in LABELS]
            assert found == pytest.approx(by_the_back(served.provider, frame), abs=1e-6)
    assert len({reply["frame"][2 * HEADER_BYTES :] for reply in replies}) == 20, "every release is drawn anew"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"front": "cd" * 32}, "another front"),
        ({"epsilon": "7.9"}, "less noise"),
        ({"token": "another-token-of-letters"}, "not taken: token"),
        ({"server": "http://192.0.2.1:8765"}, "https, or this machine"),
    ],
)
def test_the_client_draws_nothing_for_a_server_that_its_user_does_not_allow(
    served: Served, tmp_path: Path, change: dict[str, str], said: str
) -> None:
    done = asked(served, 1, tmp_path, **change)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert TOKEN not in done.stderr


def test_the_folder_has_no_dependency_and_no_other_randomness() -> None:
    for module in FOLDER.glob("*.mjs"):
        text = module.read_text(encoding="utf-8")
        sources = re.findall(r'from "([^"]+)"', text)
        assert all(source.startswith(("./", "node:")) for source in sources)
        assert "Math.random" not in text
