"""`dpf ledger`: what is promised, what has been charged, and is the file sound."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.errors import LedgerCorrupt, refuse_if
from dp_forward.ledger import Cap, Ledger, Summary
from dp_forward.ledger.text_register import TextRegister
from dp_forward.privacy import Budget, parse_unit

app = options.App(name="ledger", help="Show, check or create a budget ledger.")

File = Annotated[Path, Argument(metavar="FILE", help="The ledger file.", show_default=False)]


@app.command()
def show(file: File, json: options.Json = False) -> None:
    """Show what a ledger promises and what has been charged.

    The chain of charges is checked first.

    Example: dpf ledger show budget.ledger
    """
    with Ledger.open(file) as ledger:
        _print(ledger.summary(), json=json)


@app.command()
def verify(file: File, json: options.Json = False) -> None:
    """Check every row, sum and page of a ledger.

    The exit code is 1 if the file is not sound.

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
        float | None, Option("--epsilon", "-e", help="Cap of all releases; not needed with --per-day.")
    ] = None,
    delta: Annotated[float, Option("--delta", "-d", help="Above 0 for Gaussian releases, 0 for pure.")] = 0.0,
    pure_share: Annotated[float | None, Option(help="With --delta: how much is for pure ones.")] = None,
    per_day: Annotated[float | None, Option(help="A second cap, for every day (UTC).")] = None,
    unit: Annotated[
        str | None,
        Option(help="What epsilon protects: text, token, phrase:5, label, record [as the first charge]."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Create a ledger with a cap.

    An existing file is left alone.

    The cap is the promise, and fixes what the ledger can hold: pure releases, Gaussian ones, or both with
    their shares. Charges of another kind or another unit are refused.

    Example: dpf ledger create budget.ledger --epsilon 8 --delta 1e-5 --pure-share 2
    """
    remedy = "Say what may be spent, such as 8. Only a ledger for pure releases goes by the day alone."
    refuse_if(epsilon is None and (per_day is None or delta), "epsilon", "be given", "none", remedy)
    remedy = "Without --delta all of the cap is for pure releases."
    refuse_if(pure_share is not None and not delta, "pure-share", "go with --delta", pure_share, remedy)
    cap = None
    if epsilon is not None:
        cap = Cap.mixed(Budget(epsilon, delta), pure=pure_share or 0.0) if delta else Cap.pure(epsilon)
    protected = None if unit is None else parse_unit(unit)
    with Ledger.create(file, cap=cap, per_day=per_day, unit=protected) as ledger:
        _print(ledger.summary(), json=json)


@app.command()
def register(json: options.Json = False) -> None:
    """Count the texts in your register: released, seen raw, or public.

    It lies in $DPF_HOME or ~/.local/share/dp-forward, holds keyed digests, and is never handed over.

    Example: dpf ledger register --json
    """
    with TextRegister() as known:
        found = known.summary()
    for name, value in {} if json else found.items():
        if isinstance(value, dict):
            found[name] = "{texts} texts in {entries} entries".format_map(value)
    output.print_result(found, json=json, title="Register of texts")


def _print(summary: Summary, *, json: bool) -> None:
    result = asdict(summary)
    if json:
        output.print_json({**result, "sound": True})
        return
    sentences = [f"Sound. {summary.promise}", _charged(summary)]
    if summary.unit is None and summary.releases:
        sentences.append("What releases protect was not said, or is not one unit: the sum speaks of none.")
    # Digits are not cut: what was charged must not look smaller than it is.
    shown = {name: repr(value) for name, value in result.items() if name != "promise"}
    output.print_fields("Ledger", shown, sentences)


def _charged(summary: Summary) -> str:
    """What was charged; only where it is a valid epsilon is it called one."""
    said = f"{summary.releases} releases have charged"
    if summary.spent is not None:
        said += f" epsilon {summary.spent}, a valid epsilon at any time."
        return said if summary.per_day is None else f"{said[:-1]}; today (UTC) {summary.spent_today}."
    charged, shares = summary.charged, summary.shares or summary.charged
    parts = [f"{name} {charged[name]!r} of {shares[name]!r}" for name in charged if shares[name]]
    return f"{said} {' and '.join(parts)}. That is how full the shares are, and no promise: the cap is."
