"""`dpf cuts`: where a model can be cut."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dp_forward.cli import options, output

__all__ = ["cuts"]

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A folder, a Hugging Face name, or minilm (the demo extra).")
]
HeadLabels = Annotated[
    int | None, typer.Option("--labels", help="Give it a classification head with so many labels.")
]


def cuts(
    model: Model,
    labels: HeadLabels = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Cut at every one of them and run the leak check.")
    ] = True,
    json: options.Json = False,
) -> None:
    """The legal cuts of a model, what would cross, and which residuals are dropped.

    Example: dpf cuts minilm --no-check
    """
    from dp_forward.split import legal_cuts, split_model
    from dp_forward.split.check import check_split
    from dp_forward.split.pretrained import load_model

    with output.working("loading the model"):
        whole = load_model(model, labels=labels)
    rows: list[dict[str, Any]] = []
    for info in legal_cuts(whole):
        row = {
            "cut": str(info.cut),
            "shape": info.shape,
            "residual_dropped": info.cut.drops_residual,
            "row_local": info.cut.row_local,
        }
        if check:
            with output.working(f"checking {info.cut}"):
                pair = split_model(whole, info.cut, allow_vocabulary_head=True)
                report = check_split(pair, whole)
            row["problems"] = list(report.problems)
        rows.append(row)
    if json:
        output.print_json_list(rows)
        return
    output.print_table(
        f"Cuts of {model}",
        ("cut", "what crosses", "residual dropped", "each row from its own token", "leak check"),
        [
            (
                str(row["cut"]),
                str(row["shape"]),
                "yes" if row["residual_dropped"] else "no",
                "yes" if row["row_local"] else "no",
                ", ".join(map(str, row.get("problems", []))) or ("passed" if check else "not run"),
            )
            for row in rows
        ],
    )
