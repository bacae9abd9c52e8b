"""`dpf ask`: the user asks a provider through the noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.bars import Bars
from dp_forward.errors import InvalidInput

__all__ = ["ask"]


def ask(
    front: Annotated[Path, typer.Argument(help="The user's folder of a run: RUN/front.")],
    texts: Annotated[list[str] | None, typer.Argument(help="What to ask about.")] = None,
    server: Annotated[
        str, typer.Option("--server", help="The provider's address.")
    ] = "http://127.0.0.1:8765",
    ledger: Annotated[
        Path, typer.Option("--ledger", help="What you have spent; made if there is none.")
    ] = Path("budget.ledger"),
    budget: Annotated[
        float | None, typer.Option("--budget", help="The cap of a new ledger: epsilon over all texts.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", "-e", help="More noise than the front says, if the server offers it."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Ask about every line of a file; answered ones are kept.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="The provider's token.")] = None,
    json: options.Json = False,
) -> None:
    """Ask about texts: front and noise run here, and only charged, noisy integers leave.

    The same text asked again resends the stored release and costs nothing; the provider can then see that it
    is the same.

    Example: dpf ask run/front "a quiet, generous film" --server http://127.0.0.1:8765 --budget 16
    """
    from dp_forward.serve.client import Client
    from dp_forward.serve.settings import read_token

    asked = list(texts or []) if file is None else _lines(file)
    if not asked or (texts and file is not None):
        raise InvalidInput("texts", "be given, or a --file, and not both", len(asked), "Say what to ask.")
    token = None if token_file is None else read_token(token_file)
    settings: dict[str, Any] = {
        "server": server,
        "ledger": ledger,
        "budget": budget,
        "token": token,
        "epsilon": epsilon,
    }
    with Client(front, **settings) as client, Bars() as bars:
        answers = [answer.as_dict() for answer in _answers(client, asked, bars, many=file is not None)]
    if json:
        output.print_json_list(answers)
        return
    for number, answer in enumerate(answers, start=1):
        _print(number, answer)


def _answers(client: Any, asked: list[str], bars: Bars, *, many: bool) -> Iterator[Any]:
    if many:
        yield from client.ask_many(asked, progress=lambda done: bars("asking", done, len(asked), {}))
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


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput("file", "be readable UTF-8", file, "Check the path.") from None
    return [line for line in lines if line.strip()]
