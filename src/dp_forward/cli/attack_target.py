"""Target of an attack (a run's front, its noise, texts for it), and what every attack verb shares."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.cli.evaluate import task_of_run
from dp_forward.cli.plan_options import Data, data_paths
from dp_forward.cli.progress_bars import Bars
from dp_forward.errors import InvalidInput
from dp_forward.privacy.rounding import shown_up
from dp_forward.progress import counter
from dp_forward.storage.json_files import read_json

if TYPE_CHECKING:
    from dp_forward.attacks.attack_result import AttackResult
    from dp_forward.data import EncodedTexts, Record
    from dp_forward.data.tasks import Task
from dp_forward.privacy import Mechanism

_SHARED: Final[Mapping[str, tuple[Any, Any]]] = {
    "run": (Annotated[Path, Argument(help="The folder of a run.")], inspect.Parameter.empty),
    "task": (Annotated[str | None, Option(help="Whose texts [the run's task].")], None),
    "data": (Data, None),
    "seed": (Annotated[int, Option(help="For draws of texts and weights; never for noise.")], 0),
    "device": (options.Device, None),
    "figure": (Annotated[Path | None, Option(help="Draw it into this file (.png, .svg or .pdf).")], None),
    "json": (options.Json, False),
}
"""The options of every attack verb, with their defaults."""

_COLUMNS: Final[Mapping[str, Callable[[Any], str]]] = {
    "attack": lambda row: row["attack"],
    "success": lambda row: f"{row['success']:.3f}",
    "95 %": lambda row: f"{row['low']:.3f} to {row['high']:.3f}",
    "chance": lambda row: f"{row['chance']:.3f}",
    "ceiling": lambda row: "nothing promised" if row["ceiling"] is None else shown_up(row["ceiling"], 4),
    "trials": lambda row: str(row["trials"]),
}


class Outcome(NamedTuple):
    """What a verb found: its main result, and facts to print.

    Of the facts, ``scores`` are further attacks on the target. Where ``drawn_alike`` is False, a success
    above the ceiling would have another reason than the noise.
    """

    result: AttackResult
    facts: Mapping[str, Any]


class Target:
    """A front as an attacker has it, the noise that it is used with, and what its run says of texts.

    Edges:
        A folder without plan.json (of `dpf split`, or a user's own) has no task of its own.
    """

    def __init__(
        self,
        run: Path,
        bars: Bars,
        *,
        task: str | None,
        data: list[str] | None,
        seed: int,
        device: str | None,
    ) -> None:
        from dp_forward.split.artifacts import load_user_side
        from dp_forward.split.device import pick_device

        self.bars, self.folder, self.task_name, self.seed = bars, run, task, seed
        self.device = str(pick_device(device))
        if not (run / "front").is_dir():
            remedy = "A back alone reads no text: name a folder of dpf finetune."
            raise InvalidInput("run", "hold a front", "none", remedy)
        user = load_user_side(run / "front")
        self.front, self.tokens, self.spec = user.front, user.tokens, user.spec
        self.plan: Any = {}
        if (run / "plan.json").is_file():
            self.plan = read_json(run / "plan.json", name="run", remedy="Get it again.").get("plan")
            if not isinstance(self.plan, dict):
                raise InvalidInput("run", "hold a readable plan.json", "no plan in it", "Get it again.")
        self.data = data_paths(data) or {}

    @property
    def mechanism(self) -> Mechanism | None:
        """The noise, calibrated now; None for an undefended model."""
        return None if self.spec.noise is None else self.spec.mechanism()

    def split(self, given: str | None) -> str:
        """The split that is given, else the one that the run was measured on."""
        return str(self.plan.get("evaluation_split") or "validation") if given is None else given

    def task(self, name: str | None = None) -> Task:
        """The task of this name, else the one asked for, else the run's own."""
        return task_of_run(self.plan, name or self.task_name, self.data)

    def encoded(self, records: Iterable[Record], limit: int | None = None) -> EncodedTexts:
        """The tokens of records, or of a sample of them, as the front reads them."""
        from dp_forward.data.encoded_texts import encode_records

        return encode_records(records, self.tokens, limit=limit, progress=counter(self.bars, "reading"))


def attack_verb(verb: Callable[..., Outcome]) -> Callable[..., None]:
    """Make a command of a function that attacks a `Target`: adds the shared options, shows the outcome.

    The function declares only its own options, after the target.
    """

    @functools.wraps(verb)
    def command(*, run: Path, figure: Path | None, json: bool, **given: Any) -> None:
        if figure is not None:
            from dp_forward.attacks.attack_figure import check_figure

            check_figure(figure)  # before anything takes its time
        shared = {name: given.pop(name) for name in ("task", "data", "seed", "device")}
        with Bars() as bars:
            target = Target(run, bars, **shared)
            found, facts = verb(target, **given)
        _show(target, found.as_dict(), facts, json=json, figure=figure)

    options.declare(command, verb, _SHARED)
    return command


def _show(
    target: Target, first: Mapping[str, Any], facts: Mapping[str, Any], *, json: bool, figure: Path | None
) -> None:
    """Print the outcome, draw it, and end with 1 where the promise is broken."""
    made, cut = target.mechanism, str(target.front.cut)
    promise = "none" if made is None else made.promise()
    rows = {first["attack"]: first, **facts.get("scores", {})}
    above = [name for name, found in rows.items() if not found["within_ceiling"]]
    comparable = facts.get("drawn_alike", True)
    refuted = comparable and bool(above)
    if not comparable:
        output.warn(
            "members and others are not drawn alike: a success may tell how they differ, not who trained."
        )
    if figure is not None:
        from dp_forward.attacks.attack_figure import draw_attacks

        draw_attacks({f"{cut}, {promise}": rows}, figure)
    if json:
        noise = {"mechanism": "none" if made is None else made.name, "promise": promise}
        where = {"run": str(target.folder), "cut": cut, **noise}
        output.print_json({**first, **where, **facts, "refuted": refuted})
    else:
        output.print_rows(f"{target.folder}: {cut}, {promise}", rows.values(), _COLUMNS)
        output.print_fields("", {name: value for name, value in facts.items() if name != "scores"})
        if above:
            reason = "The promise is BROKEN" if refuted else "Not a fair comparison, so nothing is refuted"
            typer.echo(f"{reason}: above the ceiling: {', '.join(above)}.")
    if refuted:
        raise typer.Exit(1)
