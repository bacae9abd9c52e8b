"""The vector file is what the code says, and a server takes the worked example of the wire page."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from dp_forward.privacy import NoiseSpec, PrivUnit
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.client.question import check_answer
from dp_forward.service.protocol.frame import parse_frame
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server import request_limits
from dp_forward.service.server.app import make_app
from dp_forward.service.server.settings import ServerSettings
from dp_forward.split.artifacts import ProviderSide
from dp_forward.split.halves import AnswerBack

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "wire-format.md").read_text(encoding="utf-8")
OF_THE_LOCAL_PAGE = {"key", "host", "origin"}
"""Refusals of the user's own web page, which is no part of the wire."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vectors", DOCS / "_build" / "vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fence(kind: str) -> str:
    """The only block of a kind on the page."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_vector_file_is_what_the_code_makes_today(script: ModuleType) -> None:
    stored = script.FILE.read_text(encoding="utf-8")
    assert stored == script.text(), "write it anew: python docs/_build/vectors.py"
    assert len(stored) < 200_000


def test_every_kind_of_refusal_of_a_frame_has_a_vector(script: ModuleType) -> None:
    stored = json.loads(script.FILE.read_text(encoding="utf-8"))
    of_a_frame = {case["code"] for case in stored["frames"]}
    assert of_a_frame >= {"length", "magic", "version", "dtype", "mechanism", "reserved", "shape", "step"}
    assert of_a_frame >= {"budget", "cut", "time", None}
    by_a_server = {case["code"] for case in stored["receiver"]["frames"]}
    assert by_a_server >= {"dtype", "shape", "mechanism", "cut", "front", "budget", "step", None}
    assert by_a_server >= {"no_noise", "too_much_noise"}


def test_the_nominal_epsilon_is_within_the_tolerance_of_what_is_proved(script: ModuleType) -> None:
    """So a client may send its choice as it is; twice the tolerance is refused (see the file)."""
    usual = [noise for noise in (NoiseSpec(**choice) for choice in script.noises()) if noise.delta <= 1e-3]
    assert len(usual) > 30
    for noise in usual:
        offer = script.manifest_of(noise).offers[0]
        assert offer.epsilon == pytest.approx(noise.epsilon, rel=1e-10)
        assert offer.delta == noise.delta


# The worked example


def example() -> tuple[Manifest, bytes, dict[str, Any]]:
    return (
        Manifest.from_dict(json.loads(fence("manifest"))),
        bytes.fromhex(re.sub(r"#.*", "", fence("bytes"))),
        json.loads(fence("answer")),
    )


def test_the_numbers_of_the_worked_example_are_those_of_its_noise() -> None:
    manifest, data, _ = example()
    mechanism, header = manifest.mechanism(), parse_frame(data).header
    assert isinstance(mechanism, PrivUnit)
    assert manifest.offer_for(header, refusal="the page").epsilon == manifest.epsilon
    shown = dict(re.findall(r"^(t\*|m|step|p) += ([0-9.e-]+)", fence("numbers"), flags=re.MULTILINE))
    wanted = {
        "t*": mechanism.threshold,
        "m": mechanism.scale,
        "p": mechanism.cap_probability,
        "step": manifest.step,
    }
    assert {name: float(value) for name, value in shown.items()} == pytest.approx(wanted, rel=1e-9)


def test_a_server_takes_the_worked_example_and_answers_as_the_page_says() -> None:
    """The back of the example answers with the softmax of the row that it gets."""
    manifest, data, answer = example()
    labels, release = manifest.release.labels, manifest.release
    back = AnswerBack.of(torch.eye(len(labels)).exp())
    noise, rows = release.required_noise(), release.rows
    provider = ProviderSide(back, ReleaseSpec.of(back, noise=noise, rows=rows, labels=labels), "cd" * 32)
    settings = ServerSettings(oldest_s=1 << 40, also_epsilons=manifest.epsilons)
    app = make_app(provider, front_digest=str(release.front), settings=settings)
    head = dict(re.findall(r"^([A-Za-z-]+): (.*)$", fence("http"), flags=re.MULTILINE))
    assert head["Content-Length"] == str(len(data))
    with TestClient(app) as client:
        assert client.get("/v1/manifest").json() == json.loads(fence("manifest"))
        kind = {"content-type": head["Content-Type"]}
        found = client.post("/v1/answer", content=data, headers=kind).json()
    assert (found["label"], found["request"]) == (answer["label"], answer["request"])
    assert found["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-6)
    check_answer(answer, labels, parse_frame(data).header.request)


# What the page says about refusals


def listed() -> dict[str, int]:
    """Code -> status, from the page's table of refusals."""
    part = PAGE.partition("## Refusals")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d{3}) \| ([^|]*) \|", part, flags=re.MULTILINE)
    return {code: int(status) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}


def test_every_refusal_is_on_the_page_with_its_status() -> None:
    known = {code: status for code, status in request_limits._STATUS.items() if code not in OF_THE_LOCAL_PAGE}
    assert {code: listed().get(code) for code in known} == known


def test_what_the_page_lists_as_malformed_has_no_other_status() -> None:
    malformed = {code for code, status in listed().items() if status == 400}
    assert malformed
    assert not malformed & request_limits._STATUS.keys()
