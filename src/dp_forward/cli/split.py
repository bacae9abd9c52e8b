"""`dpf cuts` and `dpf split`: where a model can be cut; cut it in two and write both halves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dp_forward.cli import options, output

_Model = Annotated[
    str, Argument(metavar="MODEL", help="A folder, a Hugging Face name, or minilm (the demo extra).")
]
_Labels = Annotated[int | None, Option(help="Give it a classification head with so many labels.")]


def cuts(
    model: _Model,
    labels: _Labels = None,
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
                row["problems"] = list(check_split(pair, whole).problems)
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


def split(
    model: _Model,
    cut: Annotated[str, Option(help="Where to cut: see dpf cuts MODEL.")],
    out: Annotated[Path, Option(help="The folder for front/, back/ and split.json.")],
    width: Annotated[int | None, Option(help="d', the columns that cross, with maps M1 and M2.")] = None,
    labels: _Labels = None,
    allow_vocabulary_head: Annotated[
        bool, Option("--allow-vocabulary-head", help="Let a masked-LM head go to the provider.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Cut a model in two: the front for the user, the back for the provider, checked for leaks.

    Example: dpf split minilm --cut encoder.3 --out halves
    """
    from dp_forward.split import split_model
    from dp_forward.split.artifacts import save_split
    from dp_forward.split.check import check_split
    from dp_forward.split.pretrained import load_model

    with output.working("loading the model"):
        whole = load_model(model, labels=labels)
    with output.working("cutting and checking"):
        pair = split_model(whole, cut, width=width, allow_vocabulary_head=allow_vocabulary_head)
        report = check_split(pair, whole)
        report.refuse()
        digests = save_split(pair, out)
    result = {
        "cut": str(pair.cut),
        "width": pair.front.width,
        "digest_front": digests["front"],
        "digest_back": digests["back"],
        "max_abs_difference": report.max_abs_difference,
        "back_inputs": report.back_inputs,
        "out": str(out),
    }
    same = (
        "Without noise the halves give the whole model's output exactly."
        if report.max_abs_difference == 0.0
        else "A residual is dropped, or maps lie in between: the halves are not the whole model; train them."
    )
    output.print_result(result, json=json, title=f"Cut at {pair.cut}", sentences=[same])
