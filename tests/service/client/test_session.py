"""A user asks with more noise than the front says, and looks at what leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import tiny_user
from dp_forward.errors import InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.noise.released.released_matrix import dequantise
from dp_forward.privacy import NoiseSpec
from dp_forward.service.client.client import Client
from dp_forward.service.protocol.frame import parse_frame
from dp_forward.service.protocol.policy import ProtocolMismatch
from dp_forward.service.server.app import make_app
from dp_forward.service.server.settings import ServerSettings
from dp_forward.split.artifacts import load_provider_side, load_user_side

TEXT = "a lovely warm film"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_user.write_user(tmp_path_factory.mktemp("run"), noise=NoiseSpec(epsilon=8.0))


@contextlib.contextmanager
def asking(run: Path, ledger: Path) -> Iterator[Client]:
    """A client of the run's own server."""
    digest = load_user_side(run / "front").digest
    app = make_app(load_provider_side(run / "back"), front_digest=digest, settings=ServerSettings())
    with TestClient(app) as network:

        def answered(request: httpx.Request) -> httpx.Response:
            path, body = request.url.path, request.content
            found = network.request(request.method, path, content=body, headers=dict(request.headers))
            return httpx.Response(found.status_code, content=found.content)

        place = {"server": tiny_user.SERVER, "ledger": ledger, "budget": 30.0}
        with Client(run / "front", transport=httpx.MockTransport(answered), **place) as made:
            yield made


@pytest.fixture
def client(run: Path, tmp_path: Path) -> Iterator[Client]:
    with asking(run, tmp_path / "ledger") as made:
        yield made


def test_each_epsilon_is_a_release_of_its_own_and_costs_itself(client: Client) -> None:
    assert client.offered_epsilons() == (8.0, 4.0, 2.0)
    assert [client.ask(TEXT, epsilon=e).charge for e in (2.0, 4.0, 8.0)] == [2.0, 4.0, 8.0]
    again = [client.ask(TEXT, epsilon=e) for e in (2.0, 4.0, None)]
    assert [(answer.charge, answer.resent) for answer in again] == [(0.0, True)] * 3
    assert client.summary().spent == 14.0


@pytest.mark.slow
@pytest.mark.parametrize("front_epsilon", [8, 8.0])
def test_a_whole_epsilon_is_one_release_however_it_is_written(front_epsilon: float, tmp_path: Path) -> None:
    run = tiny_user.write_user(tmp_path / "run", noise=NoiseSpec(epsilon=front_epsilon))
    charges = []
    for epsilon in (None, 8, 8.0, 4, 4.0):
        with asking(run, tmp_path / "ledger") as client:  # a new one, which remembers no terms
            charges.append(client.ask(TEXT, epsilon=epsilon).charge)
    assert charges == [8.0, 0.0, 0.0, 4.0, 0.0]


def test_noise_that_the_server_does_not_list_is_refused_before_a_charge(client: Client) -> None:
    with pytest.raises(ProtocolMismatch, match=r"answers epsilon .*, and not 3"):
        client.ask(TEXT, epsilon=3.0)
    with pytest.raises(InvalidInput, match="at most the front's"):
        client.ask(TEXT, epsilon=9.0)
    assert client.summary().releases == 0


def test_a_look_shows_what_was_sent_and_sends_nothing(client: Client, run: Path, tmp_path: Path) -> None:
    before = client.preview(TEXT)
    assert before.noisy is None
    assert client.summary().releases == 0
    client.ask(TEXT, epsilon=4.0)
    after = client.preview(TEXT, epsilon=4.0)
    user = load_user_side(run / "front")
    with torch.inference_mode():
        assert np.array_equal(after.hidden, user.front(**user.tokens.encode([TEXT]))[0])
    with Ledger.open(tmp_path / "ledger") as ledger:
        frame = parse_frame(ledger.payload(1))
    assert after.noisy is not None
    assert np.array_equal(after.noisy, dequantise(frame.values, NoiseSpec(epsilon=4.0).build(), 8))
    assert client.preview(TEXT).noisy is None  # at the front's own epsilon nothing was released
    assert client.summary().releases == 1
    assert TEXT not in repr(after)
