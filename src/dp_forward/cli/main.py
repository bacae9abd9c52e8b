"""The `dpf` command: results on stdout, progress and warnings on stderr, one-line errors.

Exit codes: 0 ok, 1 unsound or refuted, 2 usage, 3 budget exhausted, 4 protocol mismatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

import dp_forward
from dp_forward.cli import attack, baseline, ledger, output
from dp_forward.cli.account import account
from dp_forward.cli.ask import ask
from dp_forward.cli.audit import audit
from dp_forward.cli.calibrate import calibrate
from dp_forward.cli.demo import demo
from dp_forward.cli.estimate import estimate
from dp_forward.cli.evaluate import evaluate
from dp_forward.cli.explain import explain
from dp_forward.cli.finetune import finetune
from dp_forward.cli.plan_options import PlanCommand
from dp_forward.cli.pretrain import pretrain
from dp_forward.cli.release import release
from dp_forward.cli.serve import ServeCommand, serve
from dp_forward.cli.shuffle import shuffle
from dp_forward.cli.split import cuts, split
from dp_forward.cli.ui import ui

__all__ = ["app"]

app = typer.Typer(
    name="dpf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_VERBS: tuple[Callable[..., None], ...] = (
    *(calibrate, account, explain, cuts, split, finetune, evaluate, release, estimate, pretrain),
    *(serve, shuffle, ask, ui, audit, demo),
)
_OWN_CLASS = {finetune: PlanCommand, pretrain: PlanCommand, serve: ServeCommand}
for _verb in _VERBS:
    app.command(cls=_OWN_CLASS.get(_verb))(_verb)
app.add_typer(ledger.app, name="ledger")
app.add_typer(baseline.app, name="baseline")
app.add_typer(attack.app, name="attack")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dp-forward {dp_forward.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Use a language model run by someone you do not trust."""


def run(arguments: list[str] | None = None) -> None:
    """Run the command line; a refusal of ours is one line on stderr and its exit code."""
    output.run_app(app, arguments, name="dpf")


if __name__ == "__main__":
    run()
