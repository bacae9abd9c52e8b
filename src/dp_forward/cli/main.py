"""The `dpf` command: results on stdout, progress and warnings on stderr, one-line errors.

Exit codes: 0 ok, 1 unsound or refuted, 2 usage, 3 budget exhausted, 4 protocol mismatch.
"""

from __future__ import annotations

from typing import Annotated

import typer

import dp_forward
from dp_forward.cli import (
    account,
    ask,
    attack,
    audit,
    baseline,
    calibrate,
    demo,
    evaluate,
    explain,
    finetune,
    ledger,
    output,
    pretrain,
    release,
    serve,
    shuffle,
    split,
    ui,
)
from dp_forward.cli.plan_options import PlanCommand

__all__ = ["app"]

app = typer.Typer(
    name="dpf",
    help="Use a language model run by someone you do not trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("calibrate")(calibrate.calibrate)
app.command("account")(account.account)
app.command("explain")(explain.explain)
app.command("cuts")(split.cuts)
app.command("split")(split.split)
app.command("finetune", cls=PlanCommand)(finetune.finetune)
app.command("evaluate")(evaluate.evaluate)
app.command("release")(release.release)
app.command("pretrain", cls=PlanCommand)(pretrain.pretrain)
app.command("serve")(serve.serve)
app.command("shuffle")(shuffle.shuffle)
app.command("ask")(ask.ask)
app.command("ui")(ui.ui)
app.command("audit")(audit.audit)
app.command("demo")(demo.demo)
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
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Use a language model run by someone you do not trust."""


def run(arguments: list[str] | None = None) -> None:
    """Run the command line; a refusal of ours is one line on stderr and its exit code."""
    output.run_app(app, arguments, name="dpf")


if __name__ == "__main__":
    run()
