r"""Flower: many users, each with texts, a ledger and a register of their own, and one server that learns.

    server                                         node, one for each user
    ── release: what is collected ───────────────► the same as this node's own front says, or refused
    ◄── folded releases of its records ──────────── charged and drawn once (`corpus.writer`)
    shuffle in memory, fit in closed form
    ── evaluate: the refined front, epsilon ─────► no less noise than the node allows, or refused
    ◄── one noisy bit for each held-out record ──── charged and drawn once
    how often it is right, with an interval

`federated_node.answer` is all that a node does, `learn` all that a server does. Neither needs Flower:
`client_app` and `ask_nodes` carry requests and replies over its Message API, as strings, numbers and bytes.

Who sees what. The server that shuffles in memory, and Flower's SuperLink, see which node sent what: against
them there is the local promise alone. The central epsilon is for whoever sees only what came out of the
shuffle: RUN, which holds the releases in an order of its own and no name of a node.

Guarantees:
    What leaves a node is what `federated_node` promises, whatever this server does. Nothing is unpickled.
Edges:
    The central epsilon counts other nodes as honest: nodes that the server runs itself hide nobody. It is of
    one RUN: a node sends every server and every RUN the same bytes, so whoever has two RUNs of different
    nodes can subtract one from the other, and is left with the local promise.
    A reply that is not sound leaves its node out. A server that was killed asks again, at no cost; one whose
    RUN is complete gives its report again, whoever else has joined.
Paper: not in it; it asks for a frozen front or secure aggregation where many users train (Section 3.3).
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from safetensors.numpy import save

from dp_forward.integrations.federated_node import Fields, Node, answer, collection_of
from dp_forward.optional_packages import name_extra
from dp_forward.privacy import RECORD, Deployment, RandomizedResponse
from dp_forward.service.collector.corpus_export import shuffle_bodies
from dp_forward.service.protocol.collection import CollectionSpec
from dp_forward.split.artifacts import load_user_side
from dp_forward.split.halves import ReadoutFront
from dp_forward.storage.json_files import write_json
from dp_forward.train.evaluation import wilson
from dp_forward.train.plan import ReleasesPlan
from dp_forward.train.provider_training import finetune_from_releases

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

__all__ = ["Node", "answer", "ask_nodes", "client_app", "learn"]

_NAME: Final = "dp-forward"

Ask = Callable[[Fields], Mapping[int, Mapping[str, Any]]]
"""Sends one request to every node; the replies by node, of those that replied."""


def learn(
    ask: Ask, projection: Path, out: Path, *, epsilon: float | None = None, delta: float | None = None
) -> dict[str, Any]:
    """Ask all nodes for releases, learn from them, and evaluate what was learnt on the nodes.

    Args:
        ask: how nodes are reached; see `ask_nodes`.
        projection: the front that all nodes have, and what is known beforehand (`dpf split --fold`).
        out: RUN, which gets both halves, the shuffled releases, the report and what is returned.
        epsilon: of the evaluation; by default that of the release.
        delta: of the central promise.

    Returns:
        ``nodes`` that took part, ``refused`` by reason, ``records``, ``report``, ``observers`` (a sentence
        for each) and ``evaluation`` (None where no node took part in it).
    """
    side = load_user_side(projection / "front")
    spec, noise = collection_of(side), float(epsilon or side.spec.required_noise().epsilon)
    replies = ask({"ask": "release", "collection": json.dumps(spec.as_dict())})
    sent = {str(node): reply.get("records") for node, reply in replies.items()}
    bodies = {node: data for node, data in sent.items() if data and isinstance(data, bytes)}
    report, left_out = _learn_from(bodies, spec, projection, out, delta)
    nodes = len(bodies) - left_out.total()
    left_out.update(str(reply["refused"])[:20] for reply in replies.values() if "refused" in reply)
    learnt = load_user_side(out / "front").front
    assert isinstance(learnt, ReadoutFront)
    assert learnt.decide is not None
    parts = {"weights": learnt.decide.weight, "biases": learnt.decide.bias}
    scores = save({name: value.detach().numpy() for name, value in parts.items()})
    found = {
        "nodes": nodes,
        "refused": dict(left_out),
        "records": report["records"],
        "observers": _observers(spec, report),
        "evaluation": _measure(ask({"ask": "evaluate", "scores": scores, "epsilon": noise}), noise),
    }
    write_json(out / "federation.json", found)
    return {**found, "report": report}


def _measure(replies: Mapping[int, Mapping[str, Any]], epsilon: float) -> dict[str, Any] | None:
    """How often the front is right, from noisy bits; a node that sends anything else takes no part."""
    given = [one.get("right") for one in replies.values()]
    sound = [one for one in given if isinstance(one, bytes) and not one.strip(b"\0\1")]
    bits = np.frombuffer(b"".join(sound), dtype=np.uint8)
    if not len(bits):
        return None
    keep = RandomizedResponse(epsilon, 2).keep
    agree = float(bits.mean())  # of a rate a, a keep + (1 - a) (1 - keep): Wilson's interval, mapped back
    rates = [(rate - (1 - keep)) / (2 * keep - 1) for rate in (agree, *wilson(agree, len(bits)))]
    named = zip(("accuracy", "accuracy_low", "accuracy_high"), np.clip(rates, 0, 1).tolist(), strict=True)
    return {**dict(named), "records": len(bits), "guarantee": f"{epsilon}-LDP per {RECORD}"}


def _learn_from(
    bodies: Mapping[str, bytes], spec: CollectionSpec, projection: Path, out: Path, delta: float | None
) -> tuple[dict[str, Any], Counter[str]]:
    """Forget who sent what, and fit both halves; the report, and why nodes were left out."""
    mixed = out.with_name(f"{out.name}.shuffled")
    shutil.rmtree(mixed, ignore_errors=True)  # of a server that was killed
    try:
        refused = shuffle_bodies(bodies, spec, mixed)
        named: dict[str, Any] = {} if delta is None else {"central_delta": delta}
        plan = ReleasesPlan.from_dict({"releases": str(mixed), "model": str(projection), **named})
        return finetune_from_releases(plan, folder=out, exported=mixed, resume=out.exists()), refused
    finally:
        shutil.rmtree(mixed, ignore_errors=True)


def _observers(spec: CollectionSpec, report: Mapping[str, Any]) -> dict[str, str]:
    """What is promised about a released record, against whom: this server is the shuffler."""
    deployment = Deployment(spec.manifest.mechanism(), shuffled=report["records"])
    said = deployment.statements(report["central"]["delta"])
    said = {who: re.sub("(the|this) shuffler", "this server", sentence) for who, sentence in said.items()}
    return {
        "this server and the SuperLink, which see what each node sends": said["the shuffler"],
        "whoever sees RUN alone": said["the provider"],
        "the network": said["the network"],
    }


def client_app(node_of: Callable[[Context], Node]) -> ClientApp:
    """The Flower ``ClientApp`` of a node: every query is answered by `answer`.

    Args:
        node_of: the node that a Flower ``Context`` stands for, by its ``node_config``.
    """
    with name_extra("A node in Flower"):
        from flwr.app import ConfigRecord, Message, RecordDict
        from flwr.clientapp import ClientApp

    def query(message: Message, context: Context) -> Message:
        reply = answer(node_of(context), dict(message.content.config_records[_NAME]))
        return Message(RecordDict({_NAME: ConfigRecord(reply)}), reply_to=message)

    app = ClientApp()
    app.query()(query)
    return app


def ask_nodes(grid: Grid, *, seconds: float = 600.0, attempts: int = 3) -> Ask:
    """How `learn` reaches the nodes of a Flower ``Grid``; who did not answer is asked again.

    Args:
        grid: of a ``ServerApp``.
        seconds: to wait for replies, each time.
        attempts: how often a node is asked that gave no reply; it costs the node nothing.
    """
    with name_extra("A server in Flower"):
        from flwr.app import ConfigRecord, Message, MessageType, RecordDict

    def ask(request: Fields) -> dict[int, Mapping[str, Any]]:
        replies: dict[int, Mapping[str, Any]] = {}
        for attempt in range(attempts):
            silent = [node for node in grid.get_node_ids() if "refused" in replies.get(node, {"refused": ""})]
            content = RecordDict({_NAME: ConfigRecord(request)})
            messages = [Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in silent]
            if attempt and messages:
                time.sleep(min(10.0, seconds / 10))  # a node that still works on the first request is busy
            for reply in grid.send_and_receive(messages, timeout=seconds) if messages else ():
                if not reply.has_error():
                    found = reply.content.config_records.get(_NAME, {})
                    replies[reply.metadata.src_node_id] = dict(found)
        return replies

    return ask
