"""The server: asks every node, shuffles in memory, learns, and evaluates on the nodes."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dp_forward.integrations.flower import ask_nodes, learn

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One round: that is all there is to learn from."""
    folder = Path(str(context.run_config["folder"]))
    found = learn(ask_nodes(grid), folder / "projection", folder / "run")
    refused = found["refused"] or "none"
    print(f"{found['nodes']} nodes took part with {found['records']} records; refused: {refused}")
    for observer, promise in found["observers"].items():
        print(f"- {observer}: {promise}")
    measured = (
        "right on {accuracy:.3f} ({accuracy_low:.3f} to {accuracy_high:.3f}) of {records} held-out records"
    )
    if found["evaluation"]:
        print(f"{measured}, each {{guarantee}}".format(**found["evaluation"]))
    print(f"both halves are in {folder / 'run'}")
