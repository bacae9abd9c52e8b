"""`dpf estimate`: the share of every label among the records of a corpus or a collection."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.cli.finetune import exported_collection
from dp_forward.errors import InvalidInput, refuse_if

_CELLS: Final = 40
_KINDS: Final = (".png", ".svg", ".pdf")


def estimate(
    releases: Annotated[
        str,
        Argument(help="RUN/releases; or what dpf serve --collect collected (a folder or postgresql://...)."),
    ],
    figure: Annotated[Path | None, Option(help="Draw the shares into this file, such as shares.png.")] = None,
    json: options.Json = False,
) -> None:
    """Estimate how frequent each label is, from noisy releases.

    Each share has a 95 % interval. Folded records, randomized labels and K-ary answers are debiased; public
    labels are counted. It is post-processing of what was released, and costs nothing.

    Example: dpf estimate run/releases --figure shares.png
    """
    from dp_forward.corpus.label_shares import estimate_shares
    from dp_forward.corpus.reader import ReleasedCorpus
    from dp_forward.train.report import draw_bars

    if figure is not None:  # before anything takes its time
        rule = f"end in {', '.join(_KINDS)}"
        refuse_if(figure.suffix not in _KINDS, "figure", rule, figure.name, "Name it so.")
        if not figure.absolute().parent.is_dir():
            raise InvalidInput("figure", "lie in a folder that is there", figure, "Make the folder first.")
        remedy = "pip install 'dp-forward[train]'."
        refuse_if(find_spec("matplotlib") is None, "figure", "be drawn with matplotlib", "none here", remedy)
    with output.Bars() as bars, exported_collection(releases, bars) as exported:
        found = estimate_shares(ReleasedCorpus.open(releases if exported is None else exported))
    result = found.as_dict()
    title = f"Share of {found.of} among {found.records} records"
    if figure is not None:
        shown = [(name, row["share"], row["low"], row["high"]) for name, row in result["shares"].items()]
        draw_bars(shown, figure, title=title, measure="share, 95 % interval")
        result["figure"] = str(figure)
    if json:
        output.print_json(result)
        return
    columns = {
        "label": lambda row: row[0],
        "share": lambda row: f"{row[1]['share']:.4f}",
        "95 % interval": lambda row: f"{row[1]['low']:.4f} to {row[1]['high']:.4f}",
        f"0{'the interval is shaded':^{_CELLS - 2}}1": lambda row: _bar(row[1]["low"], row[1]["high"]),
    }
    output.print_rows(title, result["shares"].items(), columns)
    drawn = [] if figure is None else [f"Drawn in {figure}."]
    first, *rest = [*drawn, *found.notes, found.guarantee.statement]
    output.print_fields(first, {}, rest)


def _bar(low: float, high: float) -> str:
    """From 0 to 1: filled up to ``low``, shaded up to ``high``, at least one cell of it."""
    start = min(int(low * _CELLS), _CELLS - 1)
    stop = max(start + 1, round(high * _CELLS))
    return "█" * start + "▒" * (stop - start) + "·" * (_CELLS - stop)
