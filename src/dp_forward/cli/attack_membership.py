"""`dpf attack membership`: which texts was a run trained on?

The ceiling is a theorem about a coin that decided which texts were trained on. That is so where members and
others are drawn from one split (a run with ``train_limit``: the rest of its training split). Between two
splits, or with words dropped, a success may tell how the texts differ, whoever was trained on them. The
ceiling is shown there too, but a success above it refutes nothing, and the exit code stays 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.attack_target import (
    Figure,
    RunFolder,
    Seed,
    Target,
    check_figure_early,
    device_name,
    tell,
    told,
)
from dp_forward.cli.plan_options import Data
from dp_forward.cli.progress_bars import Bars
from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dp_forward.attacks.attack_result import AttackResult
    from dp_forward.attacks.observations import AnyFront
    from dp_forward.data import EncodedTexts, Record
    from dp_forward.split.halves import Back, NarrowBack
    from dp_forward.train.plan import Plan

__all__ = ["membership"]

_ENOUGH = 20
_FEW = 64


class Score(StrEnum):
    """What an attacker looks at."""

    ENTROPY = "entropy"
    CONFIDENCE = "confidence"
    MODIFIED_ENTROPY = "modified-entropy"


def membership(
    run: RunFolder,
    task: Annotated[str | None, typer.Option("--task", help="The run's task, where it must be said.")] = None,
    data: Data = None,
    others: Annotated[
        str | None,
        typer.Option(
            "--others",
            "--split",
            help="The split of texts that were not trained on [the rest of train, or the evaluation split].",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Members, and others, at most so many each.")] = 2000,
    draws: Annotated[int, typer.Option("--draws", help="Noisy queries of each text, averaged.")] = 1,
    noiseless: Annotated[
        bool, typer.Option("--noiseless", help="The attacker holds the back and feeds it without noise.")
    ] = False,
    score: Annotated[Score, typer.Option("--score", help="The one that is reported on top.")] = Score.ENTROPY,
    drop_words: Annotated[
        float | None,
        typer.Option("--drop-words", help="The paper's others: members with this share of words left out."),
    ] = None,
    shadows: Annotated[
        int, typer.Option("--shadows", help="LiRA: train so many models like the run on random halves.")
    ] = 0,
    seed: Seed = 0,
    device: options.Device = None,
    figure: Figure = None,
    json: options.Json = False,
) -> None:
    """Was this text in the training set? Guessed from the run's answers; 0.5 is a coin.

    Exit code 1 if the success is above what the promise about training texts allows.

    Example: dpf attack membership run --others validation --limit 500
    """
    from dp_forward.data.tasks import find_task

    check_figure_early(figure)
    if shadows and drop_words is not None:
        raise InvalidInput("shadows", "go without --drop-words", shadows, "Leave one of them out.")
    place, target = device_name(device), Target.load(run, data)
    plan = _plan(target)
    if task is not None and find_task(task).name != plan.task:
        raise InvalidInput("task", f"be the one that the run was trained on, {plan.task}", task, "Drop it.")
    with Bars() as bars:
        game = _Game.gathered(
            target, plan, bars, others=others, limit=limit, drop_words=drop_words, seed=seed
        )
        asking: dict[str, Any] = {"draws": draws, "noiseless": noiseless, "device": place}
        said = game.asked(target.front, game.back, bars, "asking the run", asking)
        found = _threshold_attacks(game, said, seed=seed)
        top = found.pop(score.value)
        more = {one.attack: one.as_dict() for one in found.values()}
        if shadows:
            more = {top.attack: top.as_dict(), **more}
            top = _lira(game, said, bars, shadows=shadows, seed=seed, asking=asking)
    if not game.drawn_alike:
        output.warn(
            "members and others are not drawn alike: a success may tell how they differ, not who trained."
        )
    right, inside = said.argmax(axis=1) == game.texts.labels, game.inside
    facts = {
        "task": plan.task,
        "regime": str(plan.regime),
        "members": game.size,
        "others": len(game.texts) - game.size,
        "others_from": game.others_from,
        "drawn_alike": game.drawn_alike,
        "draws": draws,
        "noiseless": noiseless,
        "shadows": shadows,
        "accuracy_on_members": float(right[inside].mean()),
        "accuracy_on_others": float(right[~inside].mean()),
        "scores": more,
    }
    tell(top, target, facts, json=json, figure=figure, more=more, comparable=game.drawn_alike)


def _plan(target: Target) -> Plan:
    """The plan of the run; where none was trained on texts, no texts are members."""
    from dp_forward.train.plan import Plan

    if not (target.folder / "back").is_dir():
        raise InvalidInput("run", "hold a back", "none", "Membership is told by its answers.")
    if "task" not in target.plan:
        raise InvalidInput(
            "run",
            "say which texts it was trained on",
            "a run without a task",
            "A back from collected releases never saw them: attack a run of dpf finetune.",
        )
    plan = Plan.from_dict(target.plan)
    return replace(plan, data=dict(target.data))


@dataclass(frozen=True, eq=False)
class _Game:
    """The run, and the texts to tell apart: first the members, then as many others."""

    target: Target
    plan: Plan
    back: Back | NarrowBack
    texts: EncodedTexts
    size: int
    others_from: str
    drawn_alike: bool
    ceiling: float | None

    @classmethod
    def gathered(
        cls,
        target: Target,
        plan: Plan,
        bars: Bars,
        *,
        others: str | None,
        limit: int,
        drop_words: float | None,
        seed: int,
    ) -> _Game:
        """Read what is needed."""
        from dp_forward.privacy.checks import count
        from dp_forward.split.artifacts import load_provider_side

        provider = load_provider_side(target.folder / "back")
        if replace(provider.spec, front=target.spec.front) != target.spec:
            raise InvalidInput("run", "have one form of release", "two in its halves", "Get it again.")
        limit = count("limit", limit, remedy="Use 2000.")
        members, rest, told_from, alike = _told_apart(target, plan, others, drop_words, seed)
        size = min(len(members), len(rest), limit)
        if size < _ENOUGH:
            raise InvalidInput(
                "texts", f"be {_ENOUGH} members and {_ENOUGH} others or more", size, "An interval needs more."
            )
        records = [*_some(members, size, seed), *_some(rest, size, seed + 1)]
        texts = target.encoded(records, bars)
        if texts.labels is None:
            raise InvalidInput("others", "have labels", told_from, "Name another split.")
        return cls(target, plan, provider.back, texts, size, told_from, alike, _ceiling(target, plan))

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Who is a member."""
        import numpy as np

        return np.arange(len(self.texts)) < self.size

    def asked(
        self, front: AnyFront, back: Back | NarrowBack, bars: Bars, stage: str, asking: Mapping[str, Any]
    ) -> NDArray[np.float64]:
        """What a model says of every text."""
        from dp_forward.attacks.membership import answers

        return answers(front, back, self.target.mechanism, self.texts, progress=told(bars, stage), **asking)


def _told_apart(
    target: Target, plan: Plan, others: str | None, drop_words: float | None, seed: int
) -> tuple[list[Record], list[Record], str, bool]:
    """Members, others, where the others come from, and whether a coin could have made them members."""
    from dp_forward.attacks.membership import drop_words as dropped
    from dp_forward.data import sample_records
    from dp_forward.data.tasks import find_task, split_name

    task = find_task(plan.task)
    everybody = target.records(task, "train")
    members = everybody if plan.train_limit is None else sample_records(everybody, plan.train_limit)
    if drop_words is not None:
        if others is not None:
            raise InvalidInput("others", "go without --drop-words", others, "Leave one of them out.")
        thinned = list(dropped(members, share=drop_words, seed=seed))
        return members, thinned, f"members without {drop_words:g} of their words", False
    known = {id(record) for record in members}
    rest = [record for record in everybody if id(record) not in known]
    wanted = None if others is None else split_name(others)
    if wanted == "train" or (wanted is None and len(rest) >= _ENOUGH):
        return members, rest, "train, the rest", True
    part = wanted or plan.evaluation_split
    return members, target.records(task, part), part, False


def _some(records: list[Record], size: int, seed: int) -> list[Record]:
    import numpy as np

    chosen = np.random.default_rng(seed).permutation(len(records))[:size]
    return [records[number] for number in chosen]


def _ceiling(target: Target, plan: Plan) -> float | None:
    """The best guess that the promise about training texts allows; None where there is no such promise.

    A promise per token or phrase says little about a whole text, and gives none.
    """
    from dp_forward.privacy import RECORD, TEXT
    from dp_forward.train.regimes import promises_of

    said = promises_of(plan, target.spec).training
    return said.guess_rate if said is not None and said.unit in (TEXT, RECORD) else None


def _threshold_attacks(game: _Game, said: NDArray[np.float64], *, seed: int) -> dict[str, AttackResult]:
    """Each score's result."""
    from dp_forward.attacks.membership import SCORES, threshold_attack

    found = {}
    for name, score in SCORES.items():
        scores = score(said, game.texts.labels)
        found[name] = threshold_attack(
            scores[game.inside],
            scores[~game.inside],
            seed=seed,
            ceiling=game.ceiling,
            name=f"membership, {name}",
        )
    return found


def _lira(
    game: _Game,
    said: NDArray[np.float64],
    bars: Bars,
    *,
    shadows: int,
    seed: int,
    asking: Mapping[str, Any],
) -> AttackResult:
    """Shadows: the run's own plan, carried out on random halves of the texts.

    They start from the weights that the run started from, and know its front where it is frozen.
    """
    import numpy as np

    from dp_forward.attacks.lira import halves, lira, logit_confidence
    from dp_forward.privacy.checks import count
    from dp_forward.train.finetune import finetune
    from dp_forward.train.inputs import cut_model, load_inputs

    shadows = count("shadows", shadows, at_least=2, remedy="Use 16 or more.")
    labels = game.texts.labels
    assert labels is not None
    plan = replace(game.plan, evaluation_draws=1)
    inputs = load_inputs(plan, progress=bars)
    evaluation = inputs.evaluation
    if not plan.early_stopping and len(evaluation) > _FEW:
        evaluation = evaluation.subset(range(_FEW))  # what a shadow reaches is not asked for
    chosen = halves(len(game.texts), shadows, seed=seed)
    scores = []
    for number, members in enumerate(chosen):
        pair, tokens, form = cut_model(plan)
        own = replace(
            inputs,
            pair=pair,
            tokens=tokens,
            spec=form,
            train=game.texts.subset(np.flatnonzero(members)),
            evaluation=evaluation,
        )
        trained = finetune(plan, inputs=own, progress=bars).pair
        answered = game.asked(trained.front, trained.back, bars, "asking a shadow", asking)
        scores.append(logit_confidence(answered, labels))
        bars("training shadows", number + 1, shadows, {})
    return lira(
        logit_confidence(said, labels),
        game.inside,
        np.stack(scores),
        chosen,
        seed=seed,
        ceiling=game.ceiling,
    )
