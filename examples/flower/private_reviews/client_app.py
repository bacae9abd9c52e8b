"""One user's machine. Where its files are and what it allows is said here and in its own node config."""

from functools import cache
from pathlib import Path

from flwr.app import Context

from dp_forward.integrations.flower import Node, client_app
from dp_forward.split.artifacts import load_user_side

load_front = cache(load_user_side)  # workers of a simulation answer for many nodes


def node_of(context: Context) -> Node:
    """This node: in a simulation one of many folders, else the one that its owner named."""
    own = context.node_config.get("folder")
    everyone = Path(str(context.run_config["folder"]))
    place = Path(str(own)) if own else everyone / "nodes" / str(context.node_config["partition-id"])
    front = load_front(place / "front" if own else everyone / "projection" / "front")
    files = {"records": place / "records.csv", "held_out": place / "held_out.csv"}
    return Node.read(place / "private", front, register=place / "register", budget=8.0, **files)


app = client_app(node_of)
