"""A tiny user and a tiny provider on disk, and a network between them that can be made to fail."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import transformers

import tiny_models
import tiny_task
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.protocol.frame import parse_frame
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.protocol.policy import Policy
from dp_forward.split import split_model
from dp_forward.split.artifacts import save_sides

LABELS = ("bad", "good")
SERVER = "http://127.0.0.1:8765"


def write_user(
    folder: Path,
    *,
    noise: NoiseSpec | None,
    cut: str = "encoder.1",
    rows: int = 12,
    width: int | None = 4,
    seed: int = 0,
    labels: tuple[str, ...] = LABELS,
) -> Path:
    """RUN/front and RUN/back of a random model."""
    tokenizer = transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(tiny_task.WORDS)})
    words = {"vocab_size": len(tiny_task.WORDS), "pad_token_id": 0, "num_labels": len(labels)}
    pair = split_model(tiny_models.tiny("bert", blocks=2, seed=seed, **words), cut, width=width)
    save_sides(pair, ReleaseSpec.of(pair.front, noise=noise, rows=rows, labels=labels), tokenizer, folder)
    return folder


def manifest_of(policy: Policy) -> dict[str, Any]:
    """What an honest server says."""
    return Manifest(release=policy.release).as_dict()


def answer_to(body: bytes) -> dict[str, Any]:
    """Any fixed function of a frame."""
    frame = parse_frame(body)
    good = (int(frame.values.astype(int).sum()) % 997) / 997
    label = LABELS[good > 0.5]
    return {
        "label": label,
        "probabilities": {"bad": 1 - good, "good": good},
        "request": frame.header.request.hex(),
    }


@dataclass
class Network:
    """The wire and an honest server; what was posted is kept in a file, for other processes too."""

    log: Path
    manifest: Any
    weather: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
    """May answer itself, or raise, before the server sees the request."""
    storm: Callable[[httpx.Request], None] = lambda request: None
    """May raise after the server has answered."""
    seen: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if request.url.path == "/v1/manifest":
            found = self.weather(request)
            return found or _stream(
                self.manifest if isinstance(self.manifest, bytes) else json.dumps(self.manifest).encode()
            )
        with self.log.open("ab") as file:  # a frame in one write: processes do not mix theirs
            os.write(file.fileno(), len(request.content).to_bytes(4, "big") + request.content)
        found = self.weather(request)
        if found is None:
            found = _stream(json.dumps(answer_to(request.content)).encode())
            self.storm(request)
        return found

    @property
    def posted(self) -> list[bytes]:
        """The bodies of all frames so far."""
        data, found = self.log.read_bytes() if self.log.exists() else b"", []
        while data:
            size = int.from_bytes(data[:4], "big")
            found.append(data[4 : 4 + size])
            data = data[4 + size :]
        return found

    def transport(self) -> httpx.MockTransport:
        """For a client."""
        return httpx.MockTransport(self)


def _stream(body: bytes) -> httpx.Response:
    return httpx.Response(200, content=body)


def texts(count: int) -> list[str]:
    """As many different short texts."""
    words = (*tiny_task.GOOD, *tiny_task.BAD)
    return [f"{words[i % 8]} {words[i // 8 % 8]} {words[i // 64 % 8]} film" for i in range(count)]


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and provider.example, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dp-forward test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("provider.example")]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    cert = builder.sign(key, hashes.SHA256())
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files
