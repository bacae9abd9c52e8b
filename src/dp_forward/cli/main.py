"""The `dpf` command: results on stdout, progress and warnings on stderr, one-line errors.

`EXIT_CODES` says how a command can end.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

import dp_forward
from dp_forward.cli import attack, baseline, ledger, options, output
from dp_forward.cli.account import account
from dp_forward.cli.ask import ask
from dp_forward.cli.audit import audit
from dp_forward.cli.calibrate import calibrate
from dp_forward.cli.demo import demo
from dp_forward.cli.doctor import doctor
from dp_forward.cli.estimate import estimate
from dp_forward.cli.evaluate import evaluate
from dp_forward.cli.explain import explain
from dp_forward.cli.finetune import finetune
from dp_forward.cli.pretrain import pretrain
from dp_forward.cli.release import release
from dp_forward.cli.route import route
from dp_forward.cli.serve import ServeCommand, serve
from dp_forward.cli.shuffle import shuffle
from dp_forward.cli.split import cuts, split
from dp_forward.cli.ui import ui

__all__ = ["app"]

EXIT_CODES: Final = {
    "0": "Done.",
    "1": "Not sound or refuted: a damaged ledger, a broken promise, a failed check; or a server or disk that "
    "does not answer.",
    "2": "Wrong usage: a value that breaks a rule, an unknown option, or a missing package.",
    "3": "The budget is exhausted; nothing was charged and nothing was sent.",
    "4": "Protocol: the server wants something that your front does not allow, or refuses.",
    "130": "Interrupted with Ctrl-C.",
}
"""How a command can end, in `dpf --help` and in docs/reference/errors.md."""
_PANELS: Final[dict[str, tuple[Callable[..., None] | options.App, ...]]] = {
    "Start here": (demo, doctor, finetune, serve, ask, ui),
    "Understand": (explain, calibrate, account, cuts),
    "Data and training": (split, route, release, shuffle, estimate, evaluate, pretrain, baseline.app),
    "Check": (audit, attack.app, ledger.app),
}


class _Dpf(options.PanelGroup):
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The exit codes, then the example."""
        with formatter.section("Exit codes"):
            formatter.write_dl(list(EXIT_CODES.items()))
        super().format_epilog(ctx, formatter)


app = options.App(name="dpf", cls=_Dpf)
for _panel, _verbs in _PANELS.items():
    for _verb in _verbs:
        if isinstance(_verb, options.App):
            app.add_typer(_verb, rich_help_panel=_panel)
        else:
            own = ServeCommand if _verb is serve else options.PanelCommand
            app.command(cls=own, rich_help_panel=_panel)(_verb)


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
    """Use a language model run by someone you do not trust.

    dpf VERB --help shows the options of a verb, the usual ones first.

    Example: dpf demo
    """


def run(arguments: list[str] | None = None) -> None:
    """Run the command line; a refusal of ours is one line on stderr and its exit code."""
    output.run_app(app, arguments, name="dpf")


if __name__ == "__main__":
    run()
