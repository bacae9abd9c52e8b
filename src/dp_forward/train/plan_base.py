"""Base of every plan: frozen settings whose help text, group and check are written once, in the field.

    @dataclass(frozen=True, kw_only=True)
    class MyPlan(PlanBase):
        epochs: float | None = setting(None, "Epochs on the task [by rule].", "usual", POSITIVE)

A plan is a TOML file, command-line flags, or both (flags win); `cli.plan_options` makes the flags from the
fields. An unknown key is an error. The module loads no torch, because `--help` needs the fields.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.storage.digests import settings_digest

if TYPE_CHECKING:  # loads torch, which `--help` does without
    from dp_forward.data import Task

__all__ = ["PlanBase", "TaskSettings", "kind_of", "read_settings", "setting_of"]

Check = Callable[[str, Any], object]  # takes the name and the value of a setting; raises `InvalidInput`
Group = Literal["usual", "data", "advanced"]
Kind = Literal["bool", "int", "float", "Mapping", "tuple[str", "tuple", "str"]

_LEFT_OUT: Final = "Leave it out for the default."
COUNT: Final[Check] = partial(checks.count, remedy=_LEFT_OUT)
COUNT_OR_ZERO: Final[Check] = partial(checks.count, at_least=0, remedy=_LEFT_OUT)
POSITIVE: Final[Check] = partial(checks.positive, remedy=_LEFT_OUT)
NONNEGATIVE: Final[Check] = partial(checks.nonnegative, remedy="Use 0 for none.")


def check_share(name: str, value: float) -> None:
    refuse_if(not 0 <= value < 1, name, "lie in [0, 1)", value, "Use 0 for none.")


def _check_half(name: str, value: float) -> None:
    refuse_if(not 0 <= value <= 0.5, name, "lie in 0 to 0.5", value, "Use 0.1.")


def choice_of(*names: str, remedy: str) -> Check:
    def check(name: str, value: object) -> None:
        refuse_if(value not in names, name, f"be {', '.join(names[:-1])} or {names[-1]}", repr(value), remedy)

    return check


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a field of a plan says about itself.

    Edges:
        Without a ``group`` there is no flag of its own: TOML and ``--set NAME=VALUE`` reach it.
        A ``check`` is not asked about None, which means: by rule, or not at all.
    """

    help: str
    group: Group | None = None
    check: Check | None = None
    short: str | None = None  # a second, short flag, such as -e
    switch: str | None = None  # the flag of a bool, in place of --NAME/--no-NAME, such as --bf16/--fp32
    decides: bool = True  # whether it decides the result, and so belongs to the digest
    missing: str = ""  # the remedy where a setting without a default is not given


def setting(
    default: Any = MISSING, help: str = "", group: Group | None = None, check: Any = None, **more: Any
) -> Any:
    """A field of a plan, as `Setting` describes it. A mutable default is a factory: ``dict``."""
    metadata = {"setting": Setting(help=help, group=group, check=check, **more)}
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def setting_of(item: Field[Any]) -> Setting:
    found: Setting = item.metadata["setting"]
    return found


def kind_of(item: Field[Any]) -> Kind:
    """The type of a field's values, None aside; anything else is text."""
    kinds: tuple[Kind, ...] = ("bool", "int", "float", "Mapping", "tuple[str", "tuple")
    return next((kind for kind in kinds if str(item.type).startswith(kind)), "str")


@dataclass(frozen=True, kw_only=True)
class PlanBase:
    """Settings that decide a run, checked when they are made."""

    retired: ClassVar[Mapping[str, Any]] = {}
    """Settings of earlier plans -> the one value that they may still have, which is what is done now."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, check = getattr(self, item.name), setting_of(item).check
            if check is not None and value is not None:
                check(item.name, value)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """From JSON, TOML or flags; an unknown key, a wrong type or a missing setting is an error."""
        known, old = {item.name: item for item in fields(cls)}, cls.retired
        settings = {k: v for k, v in settings.items() if k not in old or v not in (None, old[k])}
        for name, value in settings.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(sorted(known))}."
                raise InvalidInput("plan", "have only known keys", repr(name), hint)
            if value is not None:
                _check_type(known[name], value)
        for name, item in known.items():
            required = item.default is MISSING and item.default_factory is MISSING
            if required and settings.get(name) in (None, ""):
                raise InvalidInput(name, "be given", None, setting_of(item).missing)
        return cls(**dict(settings))

    def as_dict(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in asdict(self).items()}

    def deciding(self) -> dict[str, Any]:
        """The settings that decide the result, retired ones too; where files lie is none of them."""
        plain = self.as_dict()
        own = {item.name: plain[item.name] for item in fields(self) if setting_of(item).decides}
        return {**self.retired, **own}

    def filled(self, rule: Mapping[str, Any]) -> Self:
        """The plan with what it leaves open by a rule."""
        return replace(self, **{name: value for name, value in rule.items() if getattr(self, name) is None})

    def digest(self, **inputs: str) -> str:
        """SHA-256 of what decides the result; ``inputs`` are digests of what the plan names only by place."""
        return settings_digest({**self.deciding(), **inputs})


@dataclass(frozen=True, kw_only=True)
class TaskSettings(PlanBase):
    """Which records a plan is about.

    ``task`` is a name: a built-in one, or that of a user's own data, whose place ``data`` says. A file, a
    folder or ``hf:NAME`` in the place of the name stands for both. The columns, the labels and the share that
    is split off to measure on are found in the data where they are not given (`data.own_data`), and belong to
    the effective plan.
    """

    task: str = setting(
        help="sst2, imdb, qqp, rotten-tomatoes; or a name for DATA.", group="data", missing="Name your data."
    )
    text_column: tuple[str, ...] | None = setting(None, "The column of texts; two: pairs [found].", "data")
    label_column: str | None = setting(None, "The column of labels [found by its name].", "data")
    header: bool = setting(True, "Whether a CSV or TSV has a header.", "data", switch="--header/--no-header")
    labels: tuple[str, ...] | None = setting(None, "The labels, in order [those of the training part].")
    validation_share: float | None = setting(
        None, "Share to measure on, declared public [0.1 without a split].", "advanced", _check_half
    )
    evaluation_split: str = setting("validation", 'The split it is measured on; "" for none.', "advanced")
    seed: int = setting(0, "Seed of everything but released noise.", "advanced", COUNT_OR_ZERO)
    data: Mapping[str, str] = setting(dict, "Where files of a task are; repeatable.", "data", decides=False)

    def __post_init__(self) -> None:
        from dp_forward.data import TASKS
        from dp_forward.data.own_data import name_task
        from dp_forward.data.tasks import task_name

        # One spelling of a task: what a front has seen is noted, and compared, by name.
        name = task_name(self.task)
        if name not in TASKS and name not in self.data:
            name, source = name_task(self.task)
            if source is not None:
                object.__setattr__(self, "data", {**self.data, name: source})
        object.__setattr__(self, "task", name)
        for column in ("text_column", "labels"):
            value = getattr(self, column)
            if value is not None:
                object.__setattr__(self, column, (value,) if isinstance(value, str) else tuple(value))
        for other in self.data:
            # Places of other tasks may be there too; a misspelt one would have this task read from elsewhere.
            close = difflib.get_close_matches(other, [*TASKS, name], n=1)
            misspelt = close and other not in TASKS and other != name
            remedy = f"Did you mean {''.join(close)}?"
            refuse_if(misspelt, "data", "name a known task", repr(other[:40]), remedy)
        for column, idle in {"text_column": None, "label_column": None, "header": True}.items():
            given, rule = getattr(self, column), f"be left out for {name}"
            refuse_if(name in TASKS and given != idle, column, rule, given, "Its columns are known.")
        columns = 1 if self.text_column is None else len(self.text_column)
        refuse_if(not 1 <= columns <= 2, "text_column", "be one or two", columns, "Two make a pair.")
        super().__post_init__()

    def find_task(self) -> Task:
        """The task; what the plan leaves open is read from the data."""
        from dp_forward.data.own_data import task_of

        return task_of(self.as_dict())

    def with_data(self) -> Self:
        """The plan with everything that the data says; a built-in task says nothing new."""
        task = self.find_task()
        if not task.own:
            return self
        split = self.evaluation_split
        if "validation" not in task.splits and "test" in task.splits and not task.validation_share:
            split = "test" if split == "validation" else split
        found: Any = {"text_column": task.text_fields, "label_column": task.label_field}
        found |= {"labels": task.labels, "validation_share": task.validation_share}
        return replace(self, evaluation_split=split, **found)


def read_settings(path: str | os.PathLike[str] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a TOML file (or none), with the flags that were given on top."""
    settings: dict[str, Any] = {}
    if path is not None:
        try:
            settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError:
            raise InvalidInput("plan", "be a file that can be read", path, "Check the path.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput("plan", "be TOML", f"{path} ({error})", 'Lines are: key = "value".') from None
    given = {name: value for name, value in flags.items() if value is not None}
    if isinstance(settings.get("data"), dict) and "data" in given:
        given["data"] = {**settings["data"], **given["data"]}
    return {**settings, **given}


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    return dict(value) if isinstance(value, Mapping) else value


def _check_type(item: Field[Any], value: object) -> None:
    """TOML has types; say which one is wrong before some arithmetic does."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    right, expected = {
        "bool": (isinstance(value, bool), "true or false"),
        "int": (number and isinstance(value, int), "a whole number"),
        "float": (number, "a number"),
        "Mapping": (isinstance(value, Mapping), "a table"),
        "tuple[str": (isinstance(value, str | list | tuple), "a list of names"),
        "tuple": (isinstance(value, list | tuple), "a list of numbers"),
        "str": (isinstance(value, str), "text"),
    }[kind_of(item)]
    refuse_if(not right, item.name, f"be {expected}", type(value).__name__, "Check the plan.")
