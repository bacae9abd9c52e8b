"""Command-line options made from the fields of a plan, and what the training verbs share."""

import functools
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.train.plan_base import PlanBase, kind_of, read_settings, setting_of

Data = Annotated[list[str] | None, Option(metavar="TASK=PATH", help="Where files of a task are; repeatable.")]
RecordBudget = Annotated[float | None, Option(help="What a record may spend in all releases [one release].")]
RecordLedger = Annotated[
    Path | None,
    Option(help="Charge this ledger, and do not add up other releases of the same texts [your register]."),
]
Out = Annotated[Path, Option(help="The folder of the run.")]
Resume = Annotated[bool, Option("--resume", help="Continue where a killed run stopped.")]

OWN_LEDGER = "Charged in a ledger of its own: it does not bound what other releases of these records spend."

_PANELS = {"usual": "Options", "data": "Data", "advanced": "Advanced"}
_PLAN_FILE = Annotated[Path | None, Option("--plan", metavar="FILE", help="Settings in TOML; flags win.")]
_DATA = (
    "A CSV, TSV, JSONL, JSON or Parquet file (or .gz), a folder of them, hf:NAME[:CONFIG], or sst2, imdb, "
    "qqp, rotten-tomatoes."
)
DataArgument = Annotated[str | None, Argument(metavar="[DATA]", help=_DATA)]
_METAVARS = {"data": "TASK=PATH", "describe": "LABEL=PHRASE"}
_SET = Annotated[list[str] | None, Option("--set", metavar="NAME=VALUE", help="Another setting; repeatable.")]
_TYPES = {"bool": bool, "int": int, "float": float, "Mapping": list[str], "tuple[str": list[str]}


def plan_options(plan: type[PlanBase]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a verb whose first parameter, ``settings``, is to hold what its plan file and flags say.

    The verb declares only what is no part of the plan. It gets ``--plan`` (a TOML file), an option for every
    setting that has a group, ``--set`` for the others, and where the plan has a task an argument DATA.
    """
    flags = {item.name: _option(item) for item in fields(plan) if setting_of(item).group is not None}
    kinds = {item.name: kind_of(item) for item in fields(plan)}

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def command(plan_file: Path | None, more: list[str] | None, **given: Any) -> None:
            settings, source = _settings(more), given.pop("source", None)
            for name in flags:
                value = given.pop(name)
                if kinds[name] == "Mapping":
                    value = descriptions(value) if name == "describe" else data_paths(value)
                elif kinds[name] == "tuple":
                    value = numbers(name.replace("_", "-"), value)
                if value is not None:
                    settings[name] = value
            if source is not None:
                name_data(settings, source)
            verb(read_settings(plan_file, settings), **given)

        data = {"source": DataArgument} if "task" in flags else {}
        added = {**data, "plan_file": _PLAN_FILE, **flags, "more": _SET}
        options.declare(command, verb, {name: (kind, None) for name, kind in added.items()})
        return command

    return decorate


def name_data(settings: dict[str, Any], source: str) -> None:
    """DATA is the task, or the data of the task that is named."""
    from dp_forward.data.own_data import name_task
    from dp_forward.data.sources import absolute_source
    from dp_forward.data.tasks import task_name

    task = settings.get("task")
    if task is not None:
        settings.setdefault("data", {})[task_name(task)] = absolute_source(source)
    else:
        name_task(source)  # refuses what is no data, before anything else is looked at
        settings["task"] = source


def _option(item: Field[Any]) -> Any:
    """The annotation of an option; None means that it was not given."""
    about = setting_of(item)
    names = [about.switch or f"--{item.name.replace('_', '-')}", *([about.short] if about.short else [])]
    text, known = about.help, item.default
    if isinstance(known, str | int | float):
        if isinstance(known, bool) and about.switch is not None:
            known = about.switch.split("/")[0 if known else 1]
        text += f" [{known}]"
    kind = _TYPES.get(kind_of(item), str)
    panel, metavar = _PANELS[about.group or "usual"], _METAVARS.get(item.name)
    return Annotated[kind | None, Option(*names, help=text, metavar=metavar, rich_help_panel=panel)]


def _settings(given: Sequence[str] | None) -> dict[str, Any]:
    """``["public_batch=64"]`` to ``{"public_batch": 64}``; values as in TOML, words without quotes too."""
    found: dict[str, Any] = {}
    for option in given or ():
        name, equals, value = option.partition("=")
        remedy = "For example --set public_batch=64."
        refuse_if(not equals or not name.strip(), "set", "look like NAME=VALUE", repr(option), remedy)
        try:
            found[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value.strip()
    return found


def descriptions(given: Sequence[str] | None) -> dict[str, list[str]] | None:
    """``["bad=a dull film", "bad=awful"]`` to ``{"bad": ["a dull film", "awful"]}``."""
    found: dict[str, list[str]] = {}
    for option in given or ():
        label, equals, phrase = option.partition("=")
        if not equals or not label.strip() or not phrase.strip():
            remedy = 'For example --describe refund="I want my money back".'
            raise InvalidInput("describe", "look like LABEL=PHRASE", repr(option[:80]), remedy)
        found.setdefault(label.strip(), []).append(phrase.strip())
    return found or None


def data_paths(given: Sequence[str] | None) -> dict[str, str] | None:
    """``["sst2=PATH"]`` to ``{"sst2": "PATH"}``."""
    if not given:
        return None
    from dp_forward.data import parse_data_option

    return {task: str(path) for task, path in (parse_data_option(option, own=True) for option in given)}


def numbers(name: str, text: str | None, *, remedy: str = "Try 0.5,0.5.") -> list[float] | None:
    """``"0.5,0.5"`` to a list."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(name, "be numbers with commas between", repr(text), remedy) from None


@contextmanager
def warn_if_finished(out: Path, mark: str) -> Iterator[None]:
    """Say afterwards, on stderr, that ``out`` was finished before; ``mark`` is the file that it ends with."""
    finished = (out / mark).is_file()
    yield
    if finished:
        output.warn(f"{out} was finished before: nothing was trained, released or charged now.")


@contextmanager
def carry_out(plan: PlanBase, out: Path) -> Iterator[output.Bars]:
    """Bars for a run in ``out``; the effective plan is on stderr before anything runs."""
    output.say("The plan:")
    for name, value in plan.as_dict().items():
        if value is not None and value != {}:
            output.say(f"  {name} = {value}")
    with warn_if_finished(out, "report.json"), output.Bars() as bars:
        yield bars
