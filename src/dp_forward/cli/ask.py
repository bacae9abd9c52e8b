"""`dpf ask`: the user asks a provider through the noise."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.errors import BudgetExhausted, InvalidInput, refuse_if
from dp_forward.privacy import KaryResponse
from dp_forward.privacy.rounding import brief, percent_down, shown_down, shown_up
from dp_forward.progress import counter

_STILL_FREE = (
    "A text that was asked before is still free. More noise costs less (--epsilon), where the server "
    "offers it."
)


def ask(
    front: options.UserFront,
    texts: Annotated[list[str] | None, Argument(help="Texts to ask about; with --pair, two by two.")] = None,
    server: options.Server = "http://127.0.0.1:8765",
    ledger: options.LedgerFile = Path("budget.ledger"),
    budget: options.Budget = None,
    budget_per_day: Annotated[
        float | None, Option(help="A second cap, for a day (UTC); for pure noise it may be the only one.")
    ] = None,
    epsilon: Annotated[
        float | None,
        Option("--epsilon", "-e", help="More noise than the front says, if the server offers it."),
    ] = None,
    file: Annotated[Path | None, Option(help="Ask about every line; answers are kept if it stops.")] = None,
    pair: Annotated[bool, Option("--pair", help="Ask about pairs; in a file, with a tab between.")] = False,
    resend: Annotated[
        bool,
        Option("--resend", help="Send a stored release again, free, to a changed back; it sees the repeat."),
    ] = False,
    token_file: options.ProviderToken = None,
    ca: options.Ca = None,
    proxy: options.Proxy = None,
    json: options.Json = False,
) -> None:
    """Ask a provider about your texts; only noisy numbers leave.

    Front and noise run here, and each release is charged to your ledger before it leaves. The same text asked
    again is answered from what is stored here: nothing is sent, and it costs nothing. A new ledger is for the
    kind of noise that the front has: pure releases, or Gaussian ones at its delta. With --budget-per-day
    alone, whoever sees the releases of k days learns up to k times as much as in one.

    Example: dpf ask run/front "a quiet, generous film" --server http://127.0.0.1:8765 --budget 16
    """
    from dp_forward.service.client.client import Client

    given = _read(texts, file)
    asked = _pairs(given, lines=file is not None) if pair else given
    how, new = options.connection(token_file, ca, proxy), not ledger.exists()
    budgets: dict[str, Any] = {"ledger": ledger, "budget": budget, "budget_per_day": budget_per_day}
    answers, kept = list[dict[str, Any]](), None
    try:
        with Client(front, server=server, epsilon=epsilon, **how, **budgets) as client, output.Bars() as bars:
            if new:
                typer.echo(f"New ledger: {client.summary().promise}", err=True)
            noise = client.policy.terms().mechanism
            kept = noise.keep if isinstance(noise, KaryResponse) else None
            counted = counter(bars, "asking", len(asked))
            one_by_one = (client.ask(text, resend=resend) for text in asked)
            many = client.ask_many(asked, progress=counted, resend=resend)
            for answer in one_by_one if file is None else many:
                answers.append(answer.as_dict())
    except BudgetExhausted as refused:
        raise BudgetExhausted(f"{refused} {_STILL_FREE}") from None
    finally:  # what was paid for is shown, whatever ended it
        if 0 < len(answers) < len(asked):
            typer.echo(f"Only {len(answers)} of {len(asked)} texts were answered.", err=True)
        if answers and json:
            output.print_json(answers)
        else:
            print_answers(answers, kept)


def _read(texts: list[str] | None, file: Path | None) -> list[str]:
    """What to ask about: the words of the command, or the lines of a file."""
    given = list(texts or [])
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise InvalidInput("file", "be readable UTF-8", file, "Check the path.") from None
        given = [line for line in lines if line.strip()]
    if not given or (texts and file is not None):
        raise InvalidInput("texts", "be given, or a --file, and not both", len(given), "Say what to ask.")
    return given


def print_answers(answers: Sequence[Mapping[str, Any]], kept: float | None) -> None:
    """One line for each of `Answer.as_dict`; with its ``text`` where that is public, and was added.

    K-ary response says how often a decision is ``kept``, which is not how sure a model is.
    """
    for number, answer in enumerate(answers, start=1):
        sure = max(answer["probabilities"].values())
        flags = {
            "stored": "stored answer, nothing was sent",
            "resent": "sent again, seen to be the same text",
            "truncated": "cut to the front's length",
        }
        spent = f"charged mu {shown_up(answer['charged']['mu'])}"
        if answer["spent"] is not None:  # only in a pure ledger is the sum an epsilon
            spent = f"spent {brief(shown_up(answer['spent']))}"
        given = {**answer, "resent": answer["resent"] and not answer["stored"]}
        notes = [note for flag, note in flags.items() if given[flag]]
        if kept is not None:
            notes.insert(0, f"kept by the noise in {percent_down(kept)}")
        shown = (f" {sure:.3f}" if kept is None else "") + (f" ({'; '.join(notes)})" if notes else "")
        typer.echo(
            f"{number}. {answer['label']}{shown}; charge {brief(shown_up(answer['charge']))}, {spent}, "
            f"remaining {brief(shown_down(answer['remaining']))}"
            f"{'; ' + answer['text'] if 'text' in answer else ''}"
        )
        if answer.get("reply"):
            typer.echo(textwrap.indent(answer["reply"], "   "))


def _pairs(given: list[str], *, lines: bool) -> list[tuple[str, str]]:
    """Two by two, or the two halves of each line; no message repeats a text."""
    if not lines:
        refuse_if(len(given) % 2, "texts", "come two by two under --pair", len(given), "Give FIRST SECOND.")
        return list(zip(given[::2], given[1::2], strict=True))
    halves = [line.split("\t") for line in given]
    for number, parts in enumerate(halves, start=1):
        if len(parts) != 2:
            found = f"{len(parts) - 1} tabs in text {number}"
            raise InvalidInput("file", "have one tab in each line under --pair", found, "FIRST, tab, SECOND.")
    return [(first, second) for first, second in halves]
