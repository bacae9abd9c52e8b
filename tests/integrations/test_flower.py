"""A node answers once, from its own ledger; a server learns from many. Flower itself only carries bytes."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

import tiny_task
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import ledger_of
from dp_forward.data import EncodedTexts
from dp_forward.data.own_data import encode_texts, task_from_labels
from dp_forward.integrations.flower import Node, answer, ask_nodes, client_app, learn
from dp_forward.ledger import Ledger
from dp_forward.privacy import RandomizedResponse
from dp_forward.split.artifacts import UserSide, half_digest, load_user_side
from dp_forward.train.closed_form_training import prepare_projection

EPSILON, RECORDS, HELD, NODES = 8.0, 60, 15, 5
LABELS = ("bad", "good")


@pytest.fixture(scope="module")
def projection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The front that a server and all nodes have."""
    root = tmp_path_factory.mktemp("flower")
    tiny_task.write_checkpoint(root / "model")
    (root / "public.txt").write_text("".join(f"{text}\n" for text, _ in tiny_task.sentences(200, seed=9)))
    described = {"bad": ["dull cold grim"], "good": ["lovely bright warm"]}
    named: dict[str, Any] = {"public": str(root / "public.txt"), "rows": 12, "epsilon": EPSILON}
    prepare_projection(str(root / "model"), LABELS, records=300, describe=described, **named).save(
        root / "projection"
    )
    return root / "projection"


@pytest.fixture(scope="module")
def user(projection: Path) -> UserSide:
    return load_user_side(projection / "front")


def encode(user: UserSide, count: int, *, seed: int) -> EncodedTexts:
    rows = tiny_task.sentences(count, seed=seed)
    words = [LABELS[label] for _, label in rows]
    task = task_from_labels(LABELS, fewest=1)
    return encode_texts([text for text, _ in rows], words, user.tokens, task=task)[1]


def node_at(folder: Path, user: UserSide, *, seed: int = 1, held: int = HELD, **more: Any) -> Node:
    parts = encode(user, RECORDS, seed=seed), encode(user, held, seed=1000 + seed)
    return Node(folder, user, *parts, **{"register": folder / "register", **more})


def release_of(node: Node) -> dict[str, Any]:
    return {"ask": "release", "collection": json.dumps(node.collection.as_dict())}


def evaluation_of(user: UserSide, *, seed: int = 0, epsilon: float = EPSILON) -> dict[str, Any]:
    """Of some refined front."""
    drawn = np.random.default_rng(seed).standard_normal((2, user.front.width)).astype(np.float32)
    scores = save({"weights": drawn, "biases": np.zeros(2, dtype=np.float32)})
    return {"ask": "evaluate", "scores": scores, "epsilon": epsilon}


def charged(node: Node) -> tuple[int, float]:
    """Rows and epsilon in its ledger."""
    if not ledger_of(node.releases).exists():
        return 0, 0.0
    with Ledger.open(ledger_of(node.releases)) as book:
        return book.releases, book.summary().charged["epsilon"]


def test_a_node_answers_once_and_resends_the_same_bytes(user: UserSide, tmp_path: Path) -> None:
    node, ask = node_at(tmp_path, user), evaluation_of(user)
    first = answer(node, release_of(node))["records"]
    assert len(first) == RECORDS * node.collection.record_bytes
    assert charged(node) == (1, EPSILON)
    bits = answer(node, ask)["right"]
    assert len(bits) == HELD
    assert charged(node) == (2, 2 * EPSILON)
    again = node_at(tmp_path, user)  # another process of the same node
    assert answer(again, release_of(again))["records"] == first
    assert answer(again, ask)["right"] == bits
    assert charged(node) == (2, 2 * EPSILON)
    other = node_at(tmp_path / "other", user)
    assert answer(other, release_of(other))["records"] != first, (
        "the control: another draw is another release"
    )


def test_beyond_its_budget_a_node_gives_nothing(user: UserSide, tmp_path: Path) -> None:
    node = node_at(tmp_path, user)
    assert "right" in answer(node, evaluation_of(user))
    assert answer(node, evaluation_of(user, epsilon=1.0, seed=1)).keys() == {"right"}
    assert answer(node, evaluation_of(user, seed=2)) == {"refused": "unavailable"}
    assert charged(node) == (2, EPSILON + 1.0)
    assert answer(node, release_of(node)) == {"refused": "unavailable"}
    assert charged(node) == (2, EPSILON + 1.0)


def _changed(**changes: Any) -> Callable[[Node, UserSide], dict[str, Any]]:
    def change(node: Node, user: UserSide) -> dict[str, Any]:
        asked = node.collection.as_dict()
        asked["manifest"]["noise"] |= {k: v for k, v in changes.items() if k in asked["manifest"]["noise"]}
        asked["manifest"] |= {k: v for k, v in changes.items() if k in asked["manifest"]}
        return {"ask": "release", "collection": json.dumps(asked)}

    return change


WRONG: dict[str, Callable[[Node, UserSide], dict[str, Any]]] = {
    "weaker noise": _changed(epsilon=2 * EPSILON),
    "another threshold": _changed(threshold_share=0.3),
    "another front": _changed(front="ab" * 32),
    "no JSON": lambda node, user: {"ask": "release", "collection": "{" * 9},
    "no collection": lambda node, user: {"ask": "release"},
    "another question": lambda node, user: {"ask": "texts"},
    "an evaluation with less noise": lambda node, user: evaluation_of(user, epsilon=EPSILON + 0.01),
    "an evaluation without noise": lambda node, user: evaluation_of(user, epsilon=math.inf),
    "no number": lambda node, user: evaluation_of(user, epsilon=math.nan),
    "no front": lambda node, user: {**evaluation_of(user), "scores": b"\x80\x04\x95"},
    "a front of another shape": lambda node, user: {
        **evaluation_of(user),
        "scores": save({"weights": np.zeros((3, 2), np.float32), "biases": np.zeros(3, np.float32)}),
    },
}


@pytest.mark.parametrize("case", WRONG)
def test_a_server_that_wants_something_else_is_refused_before_a_text_is_used(
    case: str, user: UserSide, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "node", user, None, None, register=tmp_path / "register")  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO):
        assert answer(node, WRONG[case](node, user)) == {"refused": "mismatch"}
    assert not list(tmp_path.iterdir())
    assert caplog.messages[-1].startswith("a request was refused: ")


def test_no_log_and_no_refusal_holds_a_text(
    user: UserSide, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_at(tmp_path, user)
    with caplog.at_level(logging.DEBUG):
        for request in (release_of(node), *(evaluation_of(user, seed=seed) for seed in (1, 2))):
            answer(node, request)
    words = {*tiny_task.GOOD, *tiny_task.BAD}
    assert not any(word in caplog.text for word in words)
    assert "refused" in caplog.text, "the control: something is logged"


def test_a_server_learns_shuffles_and_measures(projection: Path, user: UserSide, tmp_path: Path) -> None:
    nodes = {number: node_at(tmp_path / str(number), user, seed=number) for number in range(NODES)}
    nodes[9] = node_at(tmp_path / "9", user, seed=9, evaluation_epsilon=1.0)
    sent: list[bytes] = []

    def ask(request: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
        replies = {number: answer(node, request) for number, node in nodes.items()}
        sent[:] = [reply["records"] for reply in replies.values() if "records" in reply] or sent
        return {**replies, 50: {"records": b"x" * 7}, 51: {"refused": "unavailable"}}

    found = learn(ask, projection, tmp_path / "run")
    total = (NODES + 1) * RECORDS
    assert (found["nodes"], found["records"]) == (NODES + 1, total)
    assert found["refused"] == {"length": 1, "unavailable": 1}
    measured = found["evaluation"]
    assert measured["records"] == NODES * HELD, "one node allows no such evaluation"
    assert measured["accuracy_low"] < measured["accuracy"] < measured["accuracy_high"]
    assert measured["accuracy"] > 0.7
    own, others = found["observers"].values().__iter__(), found["report"]["central"]
    assert next(own).startswith("8.0-LDP per record")
    assert f"epsilon {others['epsilon_upper']:.4g}" in next(own)
    corpus = ReleasedCorpus.open(tmp_path / "run" / "releases", raw=True)
    stored = [corpus[number]["values"].numpy().tobytes() for number in range(total)]
    size = nodes[0].collection.record_bytes
    came = [body[at + 128 : at + size - 4] for body in sent for at in range(0, len(body), size)]
    assert sorted(stored) == sorted(came)
    assert stored != came, "in an order of its own"
    assert learn(ask, projection, tmp_path / "run") == found, "asked again, all is the same and costs nothing"
    assert {charged(node) for node in nodes.values()} == {(2, 2 * EPSILON), (1, EPSILON)}
    folder = nodes[0].keep_front()
    assert half_digest(folder) == half_digest(tmp_path / "run" / "front"), "the front that was learnt"


def test_what_leaves_of_an_evaluation_is_randomized_response(user: UserSide, tmp_path: Path) -> None:
    count = 4000

    def share_of_right(epsilon: float) -> float:
        """How often a bit that is always 1 leaves as 1."""
        node = node_at(tmp_path / str(epsilon), user, held=count)
        scores = {
            "weights": np.zeros((2, user.front.width), np.float32),
            "biases": np.array([1, 0], np.float32),
        }
        assert node.held_out is not None
        ones = node.held_out.with_labels(np.zeros(count, dtype=np.int64))  # the front always says 0
        node = Node(node.folder, user, node.records, ones, register=node.register)
        reply = answer(node, {"ask": "evaluate", "scores": save(scores), "epsilon": epsilon})
        return float(np.frombuffer(reply["right"], dtype=np.uint8).mean())

    def fits(share: float, epsilon: float) -> bool:
        keep = RandomizedResponse(epsilon, 2).keep
        return abs(share - keep) < 5 * math.sqrt(keep * (1 - keep) / count)

    share = share_of_right(1.0)
    assert fits(share, 1.0)
    assert not fits(share, 1.5), "the control: another epsilon is noticed"
    assert not fits(1.0, 1.0), "the control: no noise is noticed"


@pytest.mark.slow
def test_kills_charge_and_draw_nothing_twice(tmp_path: Path) -> None:
    from benchmarks.flower_kills import kill_nodes

    found = kill_nodes(tmp_path, 8, records=3)
    assert (found["wrong"], found["kills"]) == (0, 8)
    assert found["records"] == found["draws"] == found["texts_charged"] == 3 * found["nodes"]
    assert found["rows"] == found["releases"] == found["evaluations"] == found["nodes"]


@pytest.mark.slow
def test_a_node_that_forgets_is_seen(tmp_path: Path) -> None:
    from benchmarks.flower_kills import kill_nodes

    assert kill_nodes(tmp_path, 2, records=2, careless=True)["wrong"] > 0


def test_flower_carries_requests_and_replies(projection: Path, user: UserSide, tmp_path: Path) -> None:
    flwr = pytest.importorskip("flwr", reason="needs the extra flower")
    from flwr.app import Context, Message, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # else a run of Flower says it
    assert flwr.__version__.startswith("1.")
    nodes = {number: node_at(tmp_path / str(number), user, seed=number) for number in range(3)}
    app = client_app(lambda context: nodes[int(context.node_config["partition-id"])])
    asked: list[int] = []

    class Loop(Grid):
        """Every message goes to the ClientApp at once; the first to node 2 is lost; node 3 is a stranger."""

        def get_node_ids(self) -> Iterable[int]:
            return [101, 102, 103, 104]

        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            for message in messages:
                number = message.metadata.dst_node_id - 101
                asked.append(number)
                if asked.count(2) == 1 and number == 2:
                    continue
                if number == 3:
                    yield Message(RecordDict(), reply_to=message)
                    continue
                context = Context(
                    run_id=1,
                    node_id=number,
                    node_config={"partition-id": number},
                    state=RecordDict(),
                    run_config={},
                )
                yield app(message, context)

        run = set_run = create_message = push_messages = pull_messages = None  # type: ignore[assignment]

    found = learn(ask_nodes(Loop(), seconds=1.0), projection, tmp_path / "run")
    assert (found["nodes"], found["records"], found["evaluation"]["records"]) == (3, 3 * RECORDS, 3 * HELD)
    assert asked == [0, 1, 2, 3, 2, 0, 1, 2, 3]
