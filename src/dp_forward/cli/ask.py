"""`dpf ask`: the user asks a provider through the noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.progress_bars import Bars
from dp_forward.cli.service_options import (
    Budget,
    LedgerFile,
    ProviderToken,
    Server,
    UserFront,
    optional_token,
)
from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.progress import counter

__all__ = ["ask"]

_STILL_FREE = (
    "A text that was asked before is still free. More noise costs less (--epsilon), where the server "
    "offers it."
)


_Texts = Annotated[list[str] | None, typer.Argument(help="What to ask about; with --pair, two by two.")]
_PerDay = Annotated[
    float | None,
    typer.Option(
        "--budget-per-day",
        help="A second cap, for each day of UTC; alone, the first is the largest there is.",
    ),
]
_Epsilon = Annotated[
    float | None,
    typer.Option("--epsilon", "-e", help="More noise than the front says, if the server offers it."),
]
_File = Annotated[
    Path | None, typer.Option("--file", help="Ask about every line of a file; answered ones are kept.")
]
_Pair = Annotated[
    bool, typer.Option("--pair", help="Ask about pairs of texts; in a file, with a tab between the two.")
]


def ask(
    front: UserFront,
    texts: _Texts = None,
    server: Server = "http://127.0.0.1:8765",
    ledger: LedgerFile = Path("budget.ledger"),
    budget: Budget = None,
    budget_per_day: _PerDay = None,
    epsilon: _Epsilon = None,
    file: _File = None,
    pair: _Pair = False,
    token_file: ProviderToken = None,
    json: options.Json = False,
) -> None:
    """Ask about texts: front and noise run here, and only charged, noisy integers leave.

    The same text asked again resends the stored release and costs nothing; the provider can then see that it
    is the same. A budget per day holds from midnight to midnight UTC.

    Example: dpf ask run/front "a quiet, generous film" --server http://127.0.0.1:8765 --budget 16
    """
    from dp_forward.service.client.client import Client

    given = list(texts or []) if file is None else _lines(file)
    if not given or (texts and file is not None):
        raise InvalidInput("texts", "be given, or a --file, and not both", len(given), "Say what to ask.")
    asked = _pairs(given, lines=file is not None) if pair else given
    token, new = optional_token(token_file), not ledger.exists()
    budgets: dict[str, Any] = {"ledger": ledger, "budget": budget, "budget_per_day": budget_per_day}
    answers: list[dict[str, Any]] = []
    try:
        with Client(front, server=server, token=token, epsilon=epsilon, **budgets) as client, Bars() as bars:
            if new and budget is None and budget_per_day is not None:
                cap = client.summary().cap
                said = f"epsilon {budget_per_day} a day and, as no --budget was given, {cap} in all."
                typer.echo(f"New ledger: {said}", err=True)
            for answer in _answers(client, asked, bars, many=file is not None):
                answers.append(answer.as_dict())
    except BudgetExhausted as refused:
        raise BudgetExhausted(f"{refused} {_STILL_FREE}") from None
    finally:  # what was paid for is shown, whatever ended it
        _print_all(answers, asked=len(asked), json=json)


def _print_all(answers: list[dict[str, Any]], *, asked: int, json: bool) -> None:
    if not answers:
        return
    if len(answers) < asked:
        typer.echo(f"Only {len(answers)} of {asked} texts were answered.", err=True)
    if json:
        output.print_json_list(answers)
        return
    for number, answer in enumerate(answers, start=1):
        _print(number, answer)


def _answers(client: Any, asked: Sequence[Any], bars: Bars, *, many: bool) -> Iterator[Any]:
    if many:
        yield from client.ask_many(asked, progress=counter(bars, "asking", len(asked)))
        return
    for text in asked:
        yield client.ask(text)


def _print(number: int, answer: dict[str, Any]) -> None:
    sure = max(answer["probabilities"].values())
    notes = [
        word
        for word, said in (
            ("sent before", answer["resent"]),
            ("cut to the front's length", answer["truncated"]),
        )
        if said
    ]
    more = f" ({', '.join(notes)})" if notes else ""
    typer.echo(
        f"{number}. {answer['label']} {sure:.3f}{more}; charge {answer['charge']:g}, "
        f"spent {answer['spent']:g}, remaining {answer['remaining']:g}"
    )


def _pairs(given: list[str], *, lines: bool) -> list[tuple[str, str]]:
    """Two by two, or the two halves of each line; no message repeats a text."""
    if not lines:
        if len(given) % 2:
            raise InvalidInput("texts", "come two by two under --pair", len(given), "Give FIRST SECOND.")
        return list(zip(given[::2], given[1::2], strict=True))
    halves = [line.split("\t") for line in given]
    for number, parts in enumerate(halves, start=1):
        if len(parts) != 2:
            found = f"{len(parts) - 1} tabs in text {number}"
            raise InvalidInput("file", "have one tab in each line under --pair", found, "FIRST, tab, SECOND.")
    return [(first, second) for first, second in halves]


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput("file", "be readable UTF-8", file, "Check the path.") from None
    return [line for line in lines if line.strip()]
