"""`dpf cuts`: where a model can be cut."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from dp_forward.cli import options, output


def cuts(
    model: options.Model,
    labels: options.HeadLabels = None,
    check: Annotated[bool, Option(help="Cut at every one of them and run the leak check.")] = True,
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
        output.print_json(rows)
        return
    found = "passed" if check else "not run"
    columns = {
        "cut": lambda row: row["cut"],
        "what crosses": lambda row: str(row["shape"]),
        "residual dropped": lambda row: "yes" if row["residual_dropped"] else "no",
        "each row from its own token": lambda row: "yes" if row["row_local"] else "no",
        "leak check": lambda row: ", ".join(map(str, row.get("problems", []))) or found,
    }
    output.print_rows(f"Cuts of {model}", rows, columns)
