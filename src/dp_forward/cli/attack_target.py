"""Target of an attack (a run's front, its noise, texts for it), and what every attack verb shares."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer
from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.cli.plan_options import Data, data_paths
from dp_forward.cli.progress_bars import Bars
from dp_forward.errors import InvalidInput
from dp_forward.progress import counter
from dp_forward.storage.json_files import read_json

if TYPE_CHECKING:
    from dp_forward.attacks.attack_result import AttackResult
    from dp_forward.attacks.observations import AnyFront
    from dp_forward.data import EncodedTexts, FixedLength, Record
    from dp_forward.data.tasks import Task
    from dp_forward.privacy import Mechanism
    from dp_forward.release_spec import ReleaseSpec

_BROKEN: Final = 1
_SHARED: Final[Mapping[str, Any]] = {
    "run": Annotated[Path, Argument(help="The folder of a run.")],
    "task": Annotated[str | None, Option(help="Whose texts [the run's task].")],
    "data": Data,
    "seed": Annotated[int, Option(help="For draws of texts and weights; never for noise.")],
    "device": options.Device,
    "figure": Annotated[Path | None, Option(help="Draw it into this file (.png, .svg or .pdf).")],
    "json": options.Json,
}
"""The options of every attack verb."""
_DEFAULTS: Final[Mapping[str, Any]] = {"run": inspect.Parameter.empty, "seed": 0, "json": False}


@dataclass(frozen=True, eq=False, kw_only=True)
class Target:
    """A front as an attacker has it, the noise that it is used with, and what its run says of texts."""

    folder: Path
    front: AnyFront
    tokens: FixedLength
    spec: ReleaseSpec
    plan: Mapping[str, Any]
    data: Mapping[str, str]
    task_name: str | None
    seed: int
    device: str
    bars: Bars

    @property
    def mechanism(self) -> Mechanism | None:
        """The noise, calibrated now; None for an undefended model."""
        return None if self.spec.noise is None else self.spec.mechanism()

    @property
    def split(self) -> str:
        """The split that the run was measured on."""
        return str(self.plan.get("evaluation_split") or "validation")

    def task(self, name: str | None = None) -> Task:
        """The task of this name, else the one asked for, else the run's own."""
        from dp_forward.data.tasks import find_task

        known = name or self.task_name or self.plan.get("task")
        if known is None:
            raise InvalidInput("task", "be given for a run that has none", "nothing", "Such as --task sst2.")
        return find_task(str(known))

    def records(self, task: Task, split: str, limit: int | None = None) -> list[Record]:
        """The texts of a split, or a sample of them."""
        from dp_forward.data import read_records, sample_records
        from dp_forward.privacy.checks import count

        records = read_records(task, split, source=self.data.get(task.name))
        if limit is None:
            return list(records)
        return sample_records(records, count("limit", limit, remedy="Leave it out for the default."))

    def encoded(self, records: Sequence[Record]) -> EncodedTexts:
        """Their tokens, as the front reads them."""
        from dp_forward.data import EncodedTexts

        progress = counter(self.bars, "reading", len(records))
        return EncodedTexts.from_records(records, self.tokens, progress=progress)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a verb found: its main result, further attacks on the same target, and facts to print.

    ``comparable=False`` says that a success above the ceiling would have another reason than the noise.
    """

    result: AttackResult
    facts: Mapping[str, Any]
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    comparable: bool = True


def attack_verb(verb: Callable[..., Outcome]) -> Callable[..., None]:
    """Make a command of a function that attacks a `Target`: adds the shared options, shows the outcome.

    The function declares only its own options, after the target. The command ends with 1 where the success is
    above what the promise allows.
    """
    own = list(inspect.signature(verb).parameters.values())[1:]
    hints = get_type_hints(verb, include_extras=True)

    @functools.wraps(verb)
    def command(*, figure: Path | None, json: bool, **given: Any) -> None:
        if figure is not None:
            from dp_forward.attacks.attack_figure import check_figure

            check_figure(figure)  # before anything takes its time
        shared = {name: given.pop(name) for name in ("run", "task", "data", "seed", "device")}
        with Bars() as bars:
            target = _load(bars=bars, **shared)
            outcome = verb(target, **given)
        _show(target, outcome, json=json, figure=figure)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [item.replace(kind=keyword, annotation=hints[item.name]) for item in own]
    parameters += [
        inspect.Parameter(name, keyword, default=_DEFAULTS.get(name), annotation=kind)
        for name, kind in _SHARED.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


def _load(
    *, run: Path, task: str | None, data: list[str] | None, seed: int, device: str | None, bars: Bars
) -> Target:
    """The front of a run; its back is not needed here.

    Edges:
        A folder without plan.json (of `dpf split`, or a user's own) has no task of its own.
    """
    from dp_forward.split.artifacts import load_user_side
    from dp_forward.split.device import pick_device

    place = str(pick_device(device))
    if not (run / "front").is_dir():
        raise InvalidInput(
            "run", "hold a front", "none", "A back alone reads no text: name a folder of dpf finetune."
        )
    user = load_user_side(run / "front")
    plan: Any = {}
    if (run / "plan.json").is_file():
        plan = read_json(run / "plan.json", name="run", remedy="Get it again.").get("plan")
        if not isinstance(plan, dict):
            raise InvalidInput("run", "hold a readable plan.json", "no plan in it", "Get it again.")
    return Target(
        folder=run,
        front=user.front,
        tokens=user.tokens,
        spec=user.spec,
        plan=plan,
        data={**dict(plan.get("data") or {}), **(data_paths(data) or {})},
        task_name=task,
        seed=seed,
        device=place,
        bars=bars,
    )


def _show(target: Target, outcome: Outcome, *, json: bool, figure: Path | None) -> None:
    """Print the outcome, draw it, and end with 1 where the promise is broken."""
    first, made, cut = outcome.result.as_dict(), target.mechanism, str(target.front.cut)
    promise = "none" if made is None else made.promise()
    rows = {outcome.result.attack: first, **outcome.more}
    above = [name for name, found in rows.items() if not found["within_ceiling"]]
    refuted = outcome.comparable and bool(above)
    if not outcome.comparable:
        output.warn(
            "members and others are not drawn alike: a success may tell how they differ, not who trained."
        )
    if figure is not None:
        from dp_forward.attacks.attack_figure import draw_attacks

        draw_attacks({f"{cut}, {promise}": rows}, figure)
    if json:
        noise = {"mechanism": "none" if made is None else made.name, "promise": promise}
        facts = {"run": str(target.folder), "cut": cut, **noise, **outcome.facts}
        output.print_json({**first, **facts, "refuted": refuted})
    else:
        _print(f"{target.folder}: {cut}, {promise}", rows)
        shown = {name: value for name, value in outcome.facts.items() if not isinstance(value, Mapping)}
        output.print_fields("", shown)
        if above:
            reason = "The promise is BROKEN" if refuted else "Not a fair comparison, so nothing is refuted"
            typer.echo(f"{reason}: above the ceiling: {', '.join(above)}.")
    if refuted:
        raise typer.Exit(_BROKEN)


def _print(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    output.print_table(
        title,
        ("attack", "success", "95 %", "chance", "ceiling", "trials"),
        [
            (
                name,
                f"{found['success']:.3f}",
                f"{found['low']:.3f} to {found['high']:.3f}",
                f"{found['chance']:.3f}",
                "nothing promised" if found["ceiling"] is None else f"{found['ceiling']:.4f}",
                str(found["trials"]),
            )
            for name, found in rows.items()
        ],
    )
