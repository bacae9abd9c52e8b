"""Kills of Flower nodes at random moments: no record is charged twice, drawn twice or lost.

python -m benchmarks.flower_kills [--kills 100] [--records 1] [--json]

A child process is a node: it answers a request for releases and one for an evaluation, again and again, over
a real ledger, register and draw log (`integrations.flower.answer`, which is all that the ClientApp of a node
calls). It is killed (SIGKILL) at a random moment and started anew; after two kills it may finish, and the
next node begins. All that ever left a node, killed or not, is compared with what lies on its disk:

* ``releases`` = ``rows`` of ledgers for them = nodes, and what was sent of each, however often, is the same;
* distinct ``draws`` = ``records`` = texts that the registers have charged;
* each ledger has charged one release and one evaluation, no more.

``hit`` counts in which state of the ledger the kills came. The exit code is 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from dp_forward.corpus.writer import ledger_of
from dp_forward.data.own_data import encode_texts
from dp_forward.integrations.flower import Node, answer
from dp_forward.ledger import Ledger
from dp_forward.ledger.text_register import TextRegister
from dp_forward.split.artifacts import UserSide, load_user_side
from dp_forward.train.closed_form_training import prepare_projection

EPSILON, EACH, HELD = 8.0, 2, 2
Request = dict[str, Any]


def make_front(root: Path) -> UserSide:
    """The front of a tiny random model, which all nodes have."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import tiny_task

    tiny_task.write_checkpoint(root / "model")
    public = "".join(f"{text}\n" for text, _ in tiny_task.sentences(200, seed=9))
    (root / "public.txt").write_text(public)
    named: dict[str, Any] = {"public": str(root / "public.txt"), "rows": 12, "epsilon": EPSILON}
    prepare_projection(str(root / "model"), ["bad", "good"], records=400, **named).save(root / "projection")
    return load_user_side(root / "projection" / "front")


def make_node(folder: Path, user: UserSide, records: int) -> Node:
    """A node with texts that no other has."""
    words = f"film {folder.name} scene plot".split()
    texts = [" ".join([*words, str(number)]) for number in range(records + HELD)]
    labels = [("bad", "good")[number % 2] for number in range(len(texts))]
    _, encoded = encode_texts(texts, labels, user.tokens, task=_task())
    held = encoded.subset(range(records, records + HELD))
    return Node(folder, user, encoded.subset(range(records)), held, register=folder / "register")


def _task() -> Any:
    from dp_forward.data.own_data import task_from_labels

    return task_from_labels(["bad", "good"], fewest=1)


def requests_of(node: Node) -> list[Request]:
    """What a server asks this node: for releases, and for an evaluation."""
    import numpy as np
    from safetensors.numpy import save

    width = node.user.front.project.out_features  # type: ignore[union-attr, operator]
    weights = np.random.default_rng(1).standard_normal((2, int(width))).astype(np.float32)
    scores = save({"weights": weights, "biases": np.zeros(2, dtype=np.float32)})
    return [
        {"ask": "release", "collection": json.dumps(node.collection.as_dict())},
        {"ask": "evaluate", "scores": scores, "epsilon": EPSILON},
    ]


def start(node: Node, wire: Path, *, times: int, careless: bool) -> int:
    """A child that answers both requests, and puts what leaves into ``wire``."""
    if child := os.fork():
        return child
    try:
        with wire.open("ab", buffering=0) as out:
            for _ in range(times):
                for number, request in enumerate(requests_of(node)):
                    if careless:  # the control: it forgets what it did
                        shutil.rmtree(node.folder, ignore_errors=True)
                    reply = answer(node, request)
                    data = reply.get("records") or reply.get("right") or b"!" + str(reply).encode()
                    out.write(bytes([number]) + len(data).to_bytes(4, "big") + data)
        os._exit(0)
    finally:
        os._exit(1)


def left(wire: Path) -> list[tuple[int, bytes]]:
    """All whole replies that left a node."""
    data, found = wire.read_bytes() if wire.exists() else b"", []
    while len(data) >= 5 and len(data) >= (end := 5 + int.from_bytes(data[1:5], "big")):
        found.append((data[0], data[5:end]))
        data = data[end:]
    return found


def state_of(node: Node) -> str:
    """How far the ledger of a node says that it came."""
    path = ledger_of(node.releases)
    if not path.exists():
        return "nothing charged"
    with Ledger.open(path) as book:
        found = [str(release.state.name).lower() for release in reversed(book.latest())]
    return " + ".join(found) or "nothing charged"


def first_answers(node: Node, wire: Path) -> float:
    """How long a node takes that nobody disturbs: kills come within that time."""
    began = time.monotonic()
    os.waitpid(start(node, wire, times=1, careless=False), 0)
    return time.monotonic() - began


def kill_nodes(root: Path, kills: int, *, records: int = 4, careless: bool = False) -> dict[str, Any]:
    """Kill so many children; what became of the nodes."""
    torch.set_num_threads(1)
    user, hit, done = make_front(root), Counter[str](), 0
    nodes: list[Node] = []
    longest = first_answers(make_node(root / "undisturbed", user, records), root / "wire")
    while done < kills:
        nodes.append(node := make_node(root / f"node-{len(nodes)}", user, records))
        wire = root / f"wire-{len(nodes) - 1}"
        for _ in range(min(EACH, kills - done)):
            child = start(node, wire, times=1000, careless=careless)
            time.sleep(longest * random.random() ** 2)  # more often early, where most is left to do
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "it ended by itself"
            hit[state_of(node)] += 1
            done += 1
        child = start(node, wire, times=2, careless=careless)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a node fails after a kill"
    return {"kills": done, "nodes": len(nodes), **outcome(root, nodes, records), "hit": dict(hit)}


def outcome(root: Path, nodes: list[Node], records: int) -> dict[str, Any]:
    """Counts over all nodes, and what is wrong in them."""
    found, draws = Counter[str](), set[bytes]()
    for number, node in enumerate(nodes):
        sent = left(root / f"wire-{number}")
        kinds = [{data for kind, data in sent if kind == which} for which in (0, 1)]
        found["replies"] += len(sent)
        found["wrong"] += sum(len(kind) != 1 or any(data[:1] == b"!" for data in kind) for kind in kinds)
        found["releases"] += len(kinds[0])
        found["evaluations"] += len(kinds[1])
        size = node.collection.record_bytes
        for body in kinds[0]:
            draws |= {body[at + 128 : at + size] for at in range(0, len(body), size)}
        with Ledger.open(ledger_of(node.releases)) as book, TextRegister(node.register) as register:
            rows = [one.mechanism.partition(":")[0] for one in book.latest()]
            found["rows"] += rows.count("corpus")
            found["evaluation_rows"] += rows.count("evaluation")
            found["wrong"] += book.summary().charged["epsilon"] != 2 * EPSILON or len(rows) != 2
            charged = register.summary()["released"]
            found["register_texts"] += charged["texts"]
            found["wrong"] += charged["entries"] != 2
    expected = len(nodes) * records
    texts = found.pop("register_texts") - len(nodes) * HELD
    found["wrong"] += len(draws) != expected or texts != expected
    return {"records": expected, "draws": len(draws), "texts_charged": texts, **found}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--records", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dpf-kills-") as folder:
        os.environ["DPF_HOME"] = folder
        found = kill_nodes(Path(folder), given.kills, records=given.records)
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
