"""`dpf ledger`: what has been spent, and is the file sound."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.errors import InvalidInput, LedgerCorrupt
from dp_forward.ledger import LARGEST_CAP, Ledger, Summary
from dp_forward.ledger.text_register import TextRegister
from dp_forward.privacy.units import parse_unit

app = typer.Typer(help="What has been spent, and is the file sound.", no_args_is_help=True)

File = Annotated[Path, Argument(metavar="FILE", help="The ledger.", show_default=False)]


@app.command()
def show(file: File, json: options.Json = False) -> None:
    """What has been spent; the chain of charges is checked first.

    Example: dpf ledger show budget.ledger
    """
    with Ledger.open(file) as ledger:
        _print(ledger.summary(), json=json)


@app.command()
def verify(file: File, json: options.Json = False) -> None:
    """Check every row, sum, payload and page; exit code 1 if the file is not sound.

    Example: dpf ledger verify budget.ledger --json
    """
    try:
        with Ledger.open(file) as ledger:
            ledger.verify()
            summary = ledger.summary()
    except LedgerCorrupt as error:
        if not json:
            raise
        # Nothing in a damaged file is repeated: every number is null.
        unknown = dict.fromkeys(Summary.__dataclass_fields__)
        output.print_json({**unknown, "sound": False, "reason": str(error)})
        raise typer.Exit(error.exit_code) from None
    _print(summary, json=json)


@app.command()
def create(
    file: File,
    epsilon: Annotated[
        float | None,
        Option("--epsilon", "-e", help="The cap; never passed. With --per-day alone, the largest there is."),
    ] = None,
    delta: Annotated[float, Option("--delta", "-d", help="0 for pure releases only.")] = 1e-5,
    per_day: Annotated[float | None, Option(help="A second cap, for each day of UTC.")] = None,
    unit: Annotated[
        str | None,
        Option(help="What each epsilon protects: text, token, phrase:5, label, record [the first charge's]."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Make a new ledger with a cap; an existing file is left alone.

    A ledger adds up the epsilons of one unit. Charges of another one are refused.

    Example: dpf ledger create budget.ledger --epsilon 8 --delta 1e-5
    """
    if epsilon is None and per_day is None:
        raise InvalidInput("epsilon", "be given, or --per-day", "none", "Say what may be spent, such as 8.")
    cap = LARGEST_CAP if epsilon is None else epsilon
    protected = None if unit is None else parse_unit(unit)
    with Ledger.create(file, cap_epsilon=cap, delta=delta, per_day=per_day, unit=protected) as ledger:
        _print(ledger.summary(), json=json)


@app.command()
def register(json: options.Json = False) -> None:
    """How many texts you have released, shown to a model raw, or declared public, by your register.

    It lies in $DPF_HOME or ~/.local/share/dp-forward, holds keyed digests, and is never handed over.

    Example: dpf ledger register --json
    """
    with TextRegister() as known:
        found = known.summary()
    shown = {name: _count(value) if isinstance(value, dict) else value for name, value in found.items()}
    output.print_result(found if json else shown, json=json, title="Register of texts")


def _count(entries: dict[str, int]) -> str:
    return f"{entries['texts']} texts in {entries['entries']} entries"


def _print(summary: Summary, *, json: bool) -> None:
    sentence = (
        f"Sound: {summary.releases} releases cost epsilon {summary.spent} of {summary.cap} "
        f"at delta {summary.delta}{'' if summary.unit is None else f' per {summary.unit}'}."
    )
    if summary.unit is None and summary.releases:
        sentence += " What they protect was not said, or is not one unit: the sum speaks of none."
    if summary.per_day is not None:
        sentence += f" Of {summary.per_day} a day, {summary.spent_today} are spent today (UTC)."
    result = asdict(summary)
    if json:
        output.print_json({**result, "sound": True})
        return
    # Digits are not cut: spent must not look smaller than it is.
    output.print_fields("Ledger", {name: repr(value) for name, value in result.items()}, [sentence])
