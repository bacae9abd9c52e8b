"""Results on stdout: JSON for programs, small tables and sentences for people; on stderr, how far it is."""

import errno
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from io import StringIO
from json import dumps
from typing import Any

import typer
from rich import progress as rich
from rich.console import Console
from rich.table import Table

from dp_forward.errors import DpForwardError, LedgerRestated
from dp_forward.optional_packages import name_extra
from dp_forward.privacy.rounding import brief, shown_down, shown_up
from dp_forward.progress import is_first_process

__all__ = ["Bars", "print_fields", "print_json", "print_table", "run_app", "warn", "working"]

_Lines = Sequence[str]
_FIRST, _EVERY = 2.0, 5.0  # seconds to the first line of a stage, and between two, without a terminal


def print_json(result: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """One JSON object or list on stdout; what is not finite becomes null, as JSON has no word for it."""
    typer.echo(dumps(_plain(result), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | None, digits: int = 6) -> str:
    """A number for people that is no promise: an accuracy, seconds, a size."""
    return "none" if value is None else f"{value:.{digits}g}"


def _rounded(name: str, value: float) -> str:
    """A number on the safe side of what its name says it is: a promise or cost up, what is left down."""
    if any(word in name for word in ("lower", "remaining", "left")):
        return brief(shown_down(value))
    costs = ("epsilon", "delta", "guess", "sigma", "charge", "spent", "probability", "sensitivity", "upper")
    return brief(shown_up(value)) if name == "mu" or any(word in name for word in costs) else number(value)


def print_fields(title: str, fields: Mapping[str, object], sentences: _Lines = ()) -> None:
    """A titled list of fields, then the sentences."""
    typer.echo(title)
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        shown = _rounded(name, value) if isinstance(value, float) else value
        typer.echo(f"  {name:<{width}}  {'none' if shown is None else shown}")
    for sentence in sentences:
        typer.echo(f"\n{sentence}")


def print_result(
    result: Mapping[str, Any], *, json: bool, title: str, sentences: _Lines = (), only_json: _Lines = ()
) -> None:
    """A result as one JSON object, or as fields and sentences without what is ``only_json``."""
    if json:
        print_json(result)
    else:
        print_fields(title, {k: v for k, v in result.items() if k not in only_json}, sentences)


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in head:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    # A pipe or a file has no width of its own; 80 columns would fold every heading. A cell may hold a user's
    # own words, such as a label: brackets and colons in it are no markup.
    width = None if sys.stdout.isatty() else 130
    Console(file=sys.stdout, width=width, markup=False, emoji=False).print(table)


def print_rows(title: str, rows: Iterable[Any], columns: Mapping[str, Callable[[Any], str]]) -> None:
    """A small table of ``rows``: for each column its heading and what it shows of a row."""
    print_table(title, list(columns), [[shown(row) for shown in columns.values()] for row in rows])


def warn(message: str, *, name: str = "dpf") -> None:
    """One line on stderr; ``name`` is the command that says it."""
    typer.echo(f"{name}: warning: {message}", err=True)


def say(message: str) -> None:
    """A sentence for people, on stderr, while something runs."""
    if is_first_process():
        typer.echo(message, err=True)


def run_app(app: typer.Typer, arguments: list[str] | None, *, name: str) -> None:
    """Run a command line; a refusal of ours is one line on stderr and its exit code, a warning one line."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, LedgerRestated):
            warn(str(message), name=name)
        else:
            shown(message, category, *where, **more)

    try:
        warnings.showwarning = show
        with name_extra(), nullcontext() if is_first_process() else redirect_stdout(StringIO()):
            app(arguments)
    except DpForwardError as error:
        typer.echo(f"{name}: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # a folder that cannot be written, a full disk
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        what = f"`{error.filename}` cannot be used" if error.filename else "its output cannot be written"
        typer.echo(f"{name}: {what}: {error.strerror}.", err=True)
        sys.exit(1)
    finally:
        warnings.showwarning = shown


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner with the elapsed time on stderr; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (rich.SpinnerColumn(), what, rich.TimeElapsedColumn())
    with rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        shown.add_task(what, total=None)
        yield


class Bars(rich.Progress):
    """A `dp_forward.progress.Progress` for the terminal; a bar for each stage.

    Edges:
        Shows counts, times, losses and accuracies; never a text. A total of 0 means that it is not known.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        stage = ("{task.description}", rich.BarColumn(), rich.MofNCompleteColumn())
        times = (rich.TimeElapsedColumn(), "elapsed", rich.TimeRemainingColumn(), "left")
        silent = not (console.is_terminal and is_first_process())
        super().__init__(*stage, *times, "{task.fields[more]}", console=console, disable=silent)
        self._stages: dict[str, rich.TaskID] = {}
        self._begun: dict[str, tuple[float, int]] = {}
        self._due: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        measured = {name: value for name, value in numbers.items() if name not in ("step", "epoch")}
        more = " ".join(f"{name} {value:.4g}" for name, value in measured.items())
        if self.disable:
            self._say(stage, done, total, more)
            return
        if stage not in self._stages:
            self._stages[stage] = self.add_task(stage, total=total or None, more="")
        shown: dict[str, Any] = {"more": more} if more else {}  # the last numbers stay until there are others
        self.update(self._stages[stage], completed=done, total=total or None, **shown)

    def _say(self, stage: str, done: int, total: int, more: str) -> None:
        """A line where one is due, there are numbers, or the stage has ended."""
        now = time.monotonic()
        start, first = self._begun.setdefault(stage, (now, done))
        if now < self._due.setdefault(stage, now + _FIRST) and not more and not 0 < total == done:
            return
        self._due[stage], passed = now + _EVERY, now - start
        times = [f"{_spell(passed)} elapsed"] if passed >= _FIRST else []
        if times and first < done < total:
            times.append(f"about {_spell(passed * (total - done) / (done - first))} left")
        words = [f"{stage}: {done}{f' of {total}' if total else ''}", *times]
        say(f"{', '.join(words)} {more}".rstrip())


def _spell(seconds: float) -> str:
    """A time in whole units, rounded up: 40 s, 3 min, 2 h."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds > 2 * size:
            return f"{math.ceil(seconds / size)} {unit}"
    return f"{math.ceil(seconds)} s"
