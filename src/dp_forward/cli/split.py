"""`dpf split`: cut a model in two and write both halves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dp_forward.cli import options, output
from dp_forward.cli.cuts import HeadLabels, Model

__all__ = ["split"]


def split(
    model: Model,
    cut: Annotated[str, typer.Option("--cut", help="Where to cut: see dpf cuts MODEL.")],
    out: Annotated[Path, typer.Option("--out", help="The folder for front/, back/ and split.json.")],
    width: Annotated[
        int | None, typer.Option("--width", help="d', the columns that cross, with maps M1 and M2.")
    ] = None,
    labels: HeadLabels = None,
    allow_vocabulary_head: Annotated[
        bool, typer.Option("--allow-vocabulary-head", help="Let a masked-LM head go to the provider.")
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
