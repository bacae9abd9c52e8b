"""What the attack verbs share: the front under attack, texts for it, and how a result is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dp_forward.cli import output
from dp_forward.cli.plan_options import data_paths
from dp_forward.cli.progress_bars import Bars
from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    from dp_forward.attacks.attack_result import AttackResult
    from dp_forward.attacks.observations import AnyFront
    from dp_forward.data import EncodedTexts, FixedLength, Record
    from dp_forward.data.tasks import Task
    from dp_forward.privacy import Mechanism
    from dp_forward.release_spec import ReleaseSpec

__all__ = [
    "Figure",
    "RunFolder",
    "Seed",
    "Target",
    "check_figure_early",
    "device_name",
    "stored_plan",
    "tell",
    "told",
]

_REFUTED: Final = 1

RunFolder = Annotated[Path, typer.Argument(help="The folder of a run.")]
Figure = Annotated[Path | None, typer.Option("--figure", help="Draw it into this file (.png, .svg or .pdf).")]
Seed = Annotated[int, typer.Option("--seed", help="For draws of texts and weights; never for noise.")]


@dataclass(frozen=True, eq=False)
class Target:
    """A front as an attacker has it, the noise that it is used with, and what its run says of texts."""

    folder: Path
    front: AnyFront
    tokens: FixedLength
    spec: ReleaseSpec
    plan: Mapping[str, Any]
    data: Mapping[str, str]

    @classmethod
    def load(cls, run: Path, data: Sequence[str] | None) -> Target:
        """The front of a run; its back is not needed here.

        Edges:
            A folder without plan.json (of `dpf split`, or a user's own) has no task of its own.
        """
        from dp_forward.split.artifacts import load_user_side

        if not (run / "front").is_dir():
            raise InvalidInput(
                "run", "hold a front", "none", "A back alone reads no text: name a folder of dpf finetune."
            )
        with output.working("loading the front"):
            user = load_user_side(run / "front")
        plan = stored_plan(run)
        where = {**dict(plan.get("data") or {}), **(data_paths(data) or {})}
        return cls(run, user.front, user.tokens, user.spec, plan, where)

    @property
    def mechanism(self) -> Mechanism | None:
        """The noise, calibrated now; None for an undefended model."""
        return None if self.spec.noise is None else self.spec.mechanism()

    @property
    def split(self) -> str:
        """The split that the run was measured on."""
        return str(self.plan.get("evaluation_split") or "validation")

    def task(self, name: str | None) -> Task:
        """The task asked for, or the run's own."""
        from dp_forward.data.tasks import find_task

        known = self.plan.get("task") if name is None else name
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

    def encoded(self, records: Sequence[Record], bars: Bars) -> EncodedTexts:
        """Their tokens, as the front reads them."""
        from dp_forward.data import EncodedTexts

        return EncodedTexts.from_records(
            records, self.tokens, progress=lambda done: bars("reading", done, len(records), {})
        )

    def facts(self) -> dict[str, Any]:
        """What stands in every result."""
        made = self.mechanism
        return {
            "run": str(self.folder),
            "cut": str(self.front.cut),
            "mechanism": "none" if made is None else made.name,
            "promise": "none" if made is None else made.promise(),
        }


def stored_plan(run: Path) -> Mapping[str, Any]:
    """The plan of a run; nothing where there is none."""
    path = run / "plan.json"
    if not path.is_file():
        return {}
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))["plan"]
    except (ValueError, KeyError, TypeError):
        plan = None
    if not isinstance(plan, dict):
        raise InvalidInput("run", "hold a readable plan.json", run, "Get it again.")
    return plan


def device_name(wanted: str | None) -> str:
    """The device to compute on, refused where it is not there."""
    from dp_forward.split.device import pick_device

    return str(pick_device(wanted))


def told(bars: Bars, stage: str) -> Callable[[int, int], None]:
    """Progress of an attack as a bar."""
    return lambda done, total: bars(stage, done, total, {})


def check_figure_early(figure: Path | None) -> None:
    """Before anything takes its time."""
    if figure is not None:
        from dp_forward.attacks.attack_figure import check_figure

        check_figure(figure)


def _draw(figure: Path | None, title: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    """The figure, where one was asked for."""
    if figure is not None:
        from dp_forward.attacks.attack_figure import Bar, draw_attacks

        draw_attacks({title: [Bar.of(name, found) for name, found in results.items()]}, figure)


def tell(
    result: AttackResult,
    target: Target,
    facts: Mapping[str, Any],
    *,
    json: bool,
    figure: Path | None,
    more: Mapping[str, Mapping[str, Any]] | None = None,
    comparable: bool = True,
) -> None:
    """Print the result, draw it, and end with 1 where the promise is broken.

    ``more`` are further attacks on the same target; ``comparable=False`` says that a success above the
    ceiling would have another reason.
    """
    first = result.as_dict()
    rows = {result.attack: first, **(more or {})}
    above = [name for name, found in rows.items() if not found["within_ceiling"]]
    refuted = comparable and bool(above)
    _draw(figure, f"{target.front.cut}, {target.facts()['promise']}", rows)
    if json:
        output.print_json({**first, **target.facts(), **facts, "refuted": refuted})
    else:
        _print(target, rows, facts)
        if above:
            reason = "The promise is BROKEN" if refuted else "Not a fair comparison, so nothing is refuted"
            typer.echo(f"{reason}: above the ceiling: {', '.join(above)}.")
    if refuted:
        raise typer.Exit(_REFUTED)


def _print(target: Target, rows: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    told = target.facts()
    output.print_table(
        f"{target.folder}: {told['cut']}, {told['promise']}",
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
    plain = {name: value for name, value in facts.items() if not isinstance(value, Mapping)}
    output.print_fields("", plain)
