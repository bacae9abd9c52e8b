"""Writes `docs/vectors/wire-v1.json`: numbers and bytes that another implementation can test itself against.

    python docs/_build/vectors.py

Everything is computed by the package; nothing is typed twice. Calibrated numbers are rounded to 11 digits, since
machines may differ in the last ones; a receiver allows one part in 10^9.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dp_forward.noise.folded_record import FoldedCode
from dp_forward.noise.released.grid import Grid, held, largest_square, quantise
from dp_forward.noise.released.released_privunit import directions
from dp_forward.privacy import KaryResponse, NoiseSpec, PrivUnit, RandomizedResponse, ResponseWithPrior
from dp_forward.privacy.response import Prior
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.client.upload import record_id
from dp_forward.service.protocol.collection import CollectionSpec, pack_record, parse_record, record_digest
from dp_forward.service.protocol.frame import MOST_AHEAD_S, MOST_BEHIND_S, Header, WireError, parse_frame
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.noise_check import noise_check
from dp_forward.service.server.request_limits import Refused
from dp_forward.split.artifacts import half_digest

FILE: Final = Path(__file__).parents[1] / "vectors" / "wire-v1.json"

FRONT: Final = bytes(range(32))
REQUEST: Final = bytes(range(0xA0, 0xB0))
TIME: Final = 1_700_000_000
LABELS: Final = ("bad", "so so", "good")
CUT: Final = "encoder.2"


def rounded(value: float) -> float:
    """With the eleven digits that machines agree on."""
    return float(f"{value:.11g}")


def noises() -> Iterator[dict[str, Any]]:
    """Choices of noise, and all that follows from them."""
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0):
        yield {"mechanism": "privunit", "epsilon": epsilon}
    for share in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 4.0):
        yield {"mechanism": "privunit", "epsilon": 8.0, "threshold_share": share}
    yield {"mechanism": "privunit", "epsilon": 4.0, "norm": 2.5}
    yield {"mechanism": "privunit", "epsilon": 8.0, "unit": "token", "rows": 4}
    yield {"mechanism": "privunit", "epsilon": 8.0, "unit": "phrase:3", "rows": 4, "threshold_share": 0.5}
    yield {"mechanism": "privunit", "epsilon": 8.0, "unit": "phrase:9", "rows": 4}
    for epsilon in (0.1, 1.0, 2.0, 4.0, 8.0, 16.0, 100.0):
        for delta in (1e-5, 1e-9):
            yield {"mechanism": "gaussian", "epsilon": epsilon, "delta": delta}
    yield {"mechanism": "matrix-gaussian", "epsilon": 8.0, "delta": 1e-5}
    yield {"mechanism": "matrix-gaussian", "epsilon": 8.0, "delta": 0.6}
    yield {"mechanism": "gaussian", "epsilon": 8.0, "delta": 1e-5, "norm": 0.25, "how": "clip"}
    yield {"mechanism": "gaussian", "epsilon": 8.0, "delta": 1e-5, "unit": "token", "rows": 4}
    yield {"mechanism": "gaussian", "epsilon": 8.0, "delta": 1e-5, "unit": "phrase:3", "rows": 4}
    for labels in (2, 3, 10):
        for epsilon in (0.5, 4.0):
            yield {"mechanism": "k-ary-response", "epsilon": epsilon, "columns": labels}


def manifest_of(noise: NoiseSpec, *, rows: int = 4, width: int = 3, cut: str | None = None) -> Manifest:
    pooled = noise.mechanism == KaryResponse.name
    spec = ReleaseSpec(
        noise=noise,
        rows=rows,
        labels=LABELS,
        width=noise.columns if pooled and noise.columns else width,
        cut=cut or ("output" if pooled else "embeddings"),
        front=FRONT.hex(),
    )
    return Manifest(release=spec)


def calibrated(choice: dict[str, Any]) -> dict[str, Any]:
    """The numbers that follow from one choice of noise."""
    noise = NoiseSpec(**choice)
    mechanism, offer = noise.build(), manifest_of(noise).offers[0]
    numbers: dict[str, float] = {"step": offer.step, "epsilon": offer.epsilon, "delta": offer.delta}
    if isinstance(mechanism, PrivUnit):
        numbers |= {
            "threshold": mechanism.threshold,
            "cap_log_odds": mechanism.cap_log_odds,
            "cap_probability": mechanism.cap_probability,
            "scale": mechanism.scale,
        }
    elif isinstance(mechanism, KaryResponse):
        numbers |= {"keep_probability": mechanism.keep}
    else:
        sensitivity, sigma = mechanism.sensitivity.value, mechanism.sigma  # type: ignore[attr-defined]
        numbers |= {"sensitivity": sensitivity, "sigma": sigma}
    return {"noise": noise.as_dict(), **{name: rounded(value) for name, value in numbers.items()}}


def header(**changes: Any) -> Header:
    plain: dict[str, Any] = {
        "bits": 8,
        "mechanism": "matrix-gaussian",
        "rows": 2,
        "width": 3,
        "step": 0.125,
        "epsilon": 8.0,
        "delta": 2.0**-17,
        "cut": "encoder.6",
        "front": FRONT,
        "request": REQUEST,
        "time": TIME,
    }
    return Header(**(plain | changes))


def headers() -> list[dict[str, Any]]:
    """Fields of headers, and their 128 bytes."""
    pure: dict[str, Any] = {"delta": 0.0, "cut": "output", "rows": 1}
    made = [
        header(),
        header(bits=16, mechanism="privunit", step=0.04557146043, width=384, **pure),
        header(bits=16, mechanism="gaussian", cut="embeddings", rows=128, width=768),
        header(mechanism="k-ary-response", step=1.0, epsilon=4.0, **pure),
        header(cut="encoder.12.attention_norm", time=0),
        header(cut="encoder.1.qkv", step=2.0**-120, time=(1 << 40) - 1),
    ]
    return [{**_plain(one), "hex": one.pack().hex()} for one in made]


def _plain(made: Header) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(made).items()}


def frames() -> list[dict[str, Any]]:
    """Whole frames, read without a manifest: ``code`` is null for one that is sound."""
    good = header().pack() + bytes.fromhex("01ff02fe7f80")
    privunit = header(mechanism="privunit", delta=0.0).pack() + good[128:]

    def put(at: int, what: bytes, frame: bytes = good) -> bytes:
        return frame[:at] + what + frame[at + len(what) :]

    def number(value: float) -> bytes:
        return struct.pack("<d", value)

    cases = {
        "sound": good,
        "empty": b"",
        "header alone": good[:128],
        "one byte short": good[:-1],
        "one byte more": good + b"\0",
        "other magic": put(0, b"DPFX"),
        "other version": put(4, b"\2"),
        "7 bits": put(5, b"\7"),
        "16 bits, half the values": put(5, b"\x10"),
        "mechanism 0": put(6, b"\0"),
        "mechanism 5": put(6, b"\5"),
        "reserved byte": put(7, b"\1"),
        "reserved tail": put(127, b"\1"),
        "no rows": put(8, bytes(4)),
        "no columns": put(12, bytes(4)),
        "too many entries": put(8, struct.pack("<II", 1 << 13, 1 << 12)),
        "step 0": put(16, number(0.0)),
        "step too small": put(16, number(2.0**-121)),
        "step NaN": put(16, number(math.nan)),
        "step infinite": put(16, number(math.inf)),
        "epsilon 0": put(24, number(0.0)),
        "epsilon NaN": put(24, number(math.nan)),
        "epsilon infinite": put(24, number(math.inf)),
        "delta 1": put(32, number(1.0)),
        "delta -0": put(32, number(-0.0), privunit),
        "delta 0 with Gaussian noise": put(32, number(0.0)),
        "delta above 0 with PrivUnit": put(32, number(1e-5), privunit),
        "unknown cut": put(40, b"encoder.0"),
        "cut in capitals": put(40, b"ENCODER.6"),
        "cut spelt out": put(40, b"encoder.6.attention_norm"),
        "letters behind the cut": put(60, b"x"),
        "qkv of block 2": put(40, b"encoder.2.qkv"),
        "empty cut": put(40, bytes(24)),
        "time 2^40": put(112, struct.pack("<Q", 1 << 40)),
    }
    found = []
    for name, frame in cases.items():
        code = None
        try:
            parse_frame(frame)
        except WireError as error:
            code = error.code
        found.append({"name": name, "hex": frame.hex(), "code": code})
    return found


def receiver() -> dict[str, Any]:
    """Frames against a manifest: format, manifest and spread of the values, in a server's order."""
    rows, width = 4, 32
    wanted = manifest_of(NoiseSpec(epsilon=8.0), rows=rows, width=width, cut=CUT)
    wanted = replace(wanted, release=replace(wanted.release, bits=8), epsilons=(4.0, 2.0))
    fields = wanted.header(request=REQUEST, time=TIME)
    step = {offer.epsilon: rounded(offer.step) for offer in wanted.offers}
    own, half, quarter = (rounded(epsilon) for epsilon in step)
    steps = list(step.values())
    fields = replace(fields, step=steps[0], epsilon=own)
    # Any numbers of the right spread: V has a variance of about 1, and one unit of it is 8 steps.
    noisy = (np.sin(np.arange(rows * width) * 2.39996) * 8 * math.sqrt(2)).round().astype(np.int8)
    quiet = held(np.round(noisy / 20).astype(np.int64), bits=8)
    loud = held(noisy.astype(np.int64) * 3, bits=8)

    def framed(values: Any = noisy, **changes: Any) -> bytes:
        return replace(fields, **changes).pack() + values.tobytes()

    cases = {
        "sound": framed(),
        "sound, at its half": framed(epsilon=half, step=steps[1]),
        "sound, at its quarter": framed(epsilon=quarter, step=steps[2]),
        "epsilon within 1e-9": framed(epsilon=own * (1 + 9e-10)),
        "epsilon beyond 1e-9": framed(epsilon=own * (1 + 2e-9)),
        "step beyond 1e-9": framed(step=steps[0] * (1 + 2e-9)),
        "step of another epsilon": framed(step=steps[1]),
        "epsilon that is not offered": framed(epsilon=3.0, step=steps[1]),
        "more epsilon": framed(epsilon=16.0),
        "16 bits": framed(noisy.astype("<i2"), bits=16),
        "other rows": framed(rows=width, width=rows),
        "other mechanism": framed(mechanism="gaussian", delta=1e-5),
        "other cut": framed(cut="encoder.3"),
        "other front": framed(front=bytes(32)),
        "no spread": framed(np.zeros_like(noisy)),
        "too little spread": framed(quiet),
        "too much spread": framed(loud),
    }
    found = []
    for name, frame in cases.items():
        code = None
        try:
            read = parse_frame(frame)
            offer = wanted.offer_for(read.header, refusal="")
            noise_check(offer.mechanism, shape=(rows, width), step=offer.step, bits=8)(read.values)
        except (WireError, Refused) as error:
            code = error.code
        found.append({"name": name, "hex": frame.hex(), "code": code})
    clock = [
        {"server": TIME, "frame": TIME + shift, "taken": -MOST_BEHIND_S <= shift <= MOST_AHEAD_S}
        for shift in (-MOST_BEHIND_S - 1, -MOST_BEHIND_S, 0, MOST_AHEAD_S, MOST_AHEAD_S + 1)
    ]
    return {"manifest": wanted.as_dict(), "frames": found, "clock": clock}


def signals() -> list[dict[str, Any]]:
    """Hidden rows and what is released of them without noise; "nan", "inf" and "-inf" are numbers."""
    rows: list[list[Any]] = [
        [0.3, -1.2, 0.5],
        [0.0, 0.0, 0.0],
        ["nan", "inf", 1.0],
        ["nan", "nan", "-inf"],
        [1e300, -1e300, 1e-300],
        [5e-324, 0.0, -5e-324],
        [1e-3, 2e-3, -2e-3],
    ]
    choices = [
        {"mechanism": "privunit", "epsilon": 8.0},
        {"mechanism": "gaussian", "epsilon": 8.0, "delta": 1e-5},
        {"mechanism": "gaussian", "epsilon": 8.0, "delta": 1e-5, "how": "clip"},
        {"mechanism": "k-ary-response", "epsilon": 4.0, "columns": 3},
    ]
    found = []
    for choice in choices:
        noise = NoiseSpec(**choice)
        mechanism = noise.build()
        for row in rows:
            hidden = np.array([[float(number) for number in row]])
            case: dict[str, Any] = {"noise": noise.as_dict(), "hidden": row}
            if isinstance(mechanism, PrivUnit):
                case |= {"integers": directions(hidden)[0].tolist()}
            elif isinstance(mechanism, KaryResponse):
                case |= {"decision": int(mechanism.decide(hidden)[0])}
            else:
                sigma: float = mechanism.sigma  # type: ignore[attr-defined]
                fine = Grid.for_noise(sigma, norm=noise.norm).signal_step
                whole = quantise(hidden, bound=noise.bound, step=fine)[0].tolist()
                case |= {"signal_step": fine, "integers": whole}
                case |= {"largest_square": str(largest_square(noise.norm, fine))}
            found.append(case)
    return found


def front() -> dict[str, Any]:
    """A front of a few bytes and its digest: the files need not be a model that runs."""
    settings = {"cut": "output", "format": 1, "half": "front", "rows": 8, "tokenizer": {}}
    vocabulary = b'{"[PAD]": 0, "good": 1, "bad": 2}\n'
    settings["tokenizer"] = {"vocab.json": hashlib.sha256(vocabulary).hexdigest()}
    about = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    weights = struct.pack("<Q", len(about)) + about + struct.pack("<ff", 0.5, -2.0)
    files = {
        "half.json": (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode(),
        "model.safetensors": weights,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        digest = half_digest(folder)
    return {
        "files": {name: data.hex() for name, data in files.items()},
        "tokenizer_files": {"vocab.json": vocabulary.hex()},
        "digest": digest,
    }


def records() -> dict[str, Any]:
    """Training records, their digests and refusals; ids from a secret; what a collector says."""
    frame = header(time=0).pack() + bytes.fromhex("01ff02fe7f80")
    late = header().pack() + frame[128:]
    found = []
    for name, data, labels in (
        ("label 1 of 2", pack_record(frame, 1), 2),
        ("no label", pack_record(frame, None), None),
        ("a label where none is collected", pack_record(frame, 0), None),
        ("label beyond the last", pack_record(frame, 2), 2),
        ("none where labels are collected", pack_record(frame, None), 2),
        ("it tells the time", pack_record(late, 1), 2),
        ("without its label", frame, 2),
    ):
        case: dict[str, Any] = {"name": name, "labels": labels, "hex": data.hex(), "code": None}
        try:
            case["digest"] = parse_record(data, labels=labels).digest.hex()
        except WireError as error:
            case["code"] = error.code
        found.append(case)
    parts = {"request": REQUEST.hex(), "values": frame[128:].hex(), "label": None}
    parts["digest"] = record_digest(REQUEST, frame[128:], None).hex()
    secret = bytes(range(32))
    ids = {str(number): record_id(secret, number).hex() for number in (0, 1, 258)}
    manifest = manifest_of(NoiseSpec(epsilon=8.0))
    prior = ResponseWithPrior(1.0, Prior.public([0.5, 0.3, 0.2], where="a published class balance"))
    kinds = [RandomizedResponse(2.0, 3), prior]
    return {
        "records": found,
        "digest_of_parts": parts,
        "ids": {"secret": secret.hex(), "ids": ids},
        "collections": [CollectionSpec.of(manifest, kind, shuffler_least=500).as_dict() for kind in kinds],
        "label_noise": [
            {"epsilon": 2.0, "labels": 3, "prior": None, "kept": [0, 1, 2], "keep": rounded(kinds[0].keep)},
            {
                "epsilon": 1.0,
                "labels": 3,
                "prior": [0.5, 0.3, 0.2],
                "kept": prior.top.tolist(),
                "keep": rounded(prior.keep),
            },
        ],
    }


def folded() -> list[dict[str, Any]]:
    """Directions and labels folded into one vector."""
    found = []
    for labels, direction in ((2, [0.6, -0.8]), (3, [3.0, 0.0, 4.0]), (3, [0.0, 0.0, 0.0])):
        code = FoldedCode(labels, len(direction))
        for label in range(labels):
            row = code.fold(np.array([direction]), np.array([label]))[0]
            case = {"labels": labels, "label": label, "direction": direction}
            found.append({**case, "folded": [rounded(value) for value in row.tolist()]})
    return found


def vectors() -> dict[str, Any]:
    """All of it."""
    return {
        "about": "Test vectors of the wire format, version 1 (docs/wire-format.md). Calibrated numbers have 11 digits.",
        "version": 1,
        "noise": [calibrated(choice) for choice in noises()],
        "headers": headers(),
        "frames": frames(),
        "receiver": receiver(),
        "signals": signals(),
        "front": front(),
        "training": records(),
        "folded": folded(),
    }


def text() -> str:
    """The file: one case on a line."""
    return _written(vectors(), 0) + "\n"


def _written(value: Any, depth: int) -> str:
    """JSON with one entry per line down to the cases, each of which is a line."""
    flat = json.dumps(value)
    if depth == 3 or len(flat) < 100 or not isinstance(value, dict | list):
        return flat
    inner = " " * (depth + 1)
    if isinstance(value, list):
        lines = [_written(item, 3) for item in value]
        return "[\n" + ",\n".join(inner + line for line in lines) + "\n" + " " * depth + "]"
    lines = [f"{json.dumps(key)}: {_written(item, depth + 1)}" for key, item in value.items()]
    return "{\n" + ",\n".join(inner + line for line in lines) + "\n" + " " * depth + "}"


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
