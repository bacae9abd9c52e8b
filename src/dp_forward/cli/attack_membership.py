"""`dpf attack membership`: which texts was a run trained on?

The ceiling is a theorem about a coin that decided which texts were trained on. That is so where members and
others are drawn from one split (a run with ``train_limit``: the rest of its training split). Between two
splits, or with words dropped, a success may tell how the texts differ, whoever was trained on them. The
ceiling is shown there too, but a success above it refutes nothing, and the exit code stays 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from typer import Option

from dp_forward.cli.attack_target import Outcome, Target, attack_verb
from dp_forward.errors import InvalidInput
from dp_forward.progress import counter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dp_forward.attacks.attack_result import AttackResult
    from dp_forward.attacks.observations import AnyFront
    from dp_forward.data import Record
    from dp_forward.split.halves import AnyBack
    from dp_forward.train.plan import Plan

_FEWEST: Final = 20
_EVALUATED: Final = 64


@attack_verb
def membership(
    target: Target,
    *,
    others: Annotated[
        str | None,
        Option(
            "--others",
            "--split",
            help="The split of texts that were not trained on [the rest of train, or the evaluation split].",
        ),
    ] = None,
    limit: Annotated[int, Option(help="Members, and others, at most so many each.")] = 2000,
    draws: Annotated[int, Option(help="Noisy queries of each text, averaged.")] = 1,
    noiseless: Annotated[
        bool, Option("--noiseless", help="The attacker holds the back and feeds it without noise.")
    ] = False,
    score: Annotated[
        Literal["entropy", "confidence", "modified-entropy"], Option(help="The one that is reported on top.")
    ] = "entropy",
    drop_words: Annotated[
        float | None, Option(help="The paper's others: members with this share of words left out.")
    ] = None,
    shadows: Annotated[int, Option(help="LiRA: train so many models like the run on random halves.")] = 0,
) -> Outcome:
    """Was this text in the training set? Guessed from the run's answers; 0.5 is a coin.

    Exit code 1 if the success is above what the promise about training texts allows.

    Example: dpf attack membership run --others validation --limit 500
    """
    from dp_forward.attacks.membership import SCORES

    if shadows and drop_words is not None:
        raise InvalidInput("shadows", "go without --drop-words", shadows, "Leave one of them out.")
    game = _Game(target, others=others, limit=limit, drop_words=drop_words)
    query = {"draws": draws, "noiseless": noiseless}
    answers = game.ask(target.front, game.back, "asking the run", query)
    found = {name: game.attack_by(name, answers) for name in SCORES}
    top = found.pop(score)
    more = {one.attack: one.as_dict() for one in found.values()}
    if shadows:
        more = {top.attack: top.as_dict(), **more}
        top = _lira(game, answers, shadows, query)
    right = answers.argmax(axis=1) == game.texts.labels
    facts = {
        "task": game.plan.task,
        "regime": str(game.plan.regime),
        "members": game.size,
        "others": len(game.texts) - game.size,
        "others_from": game.others_from,
        "drawn_alike": game.drawn_alike,
        **query,
        "shadows": shadows,
        "accuracy_on_members": float(right[: game.size].mean()),
        "accuracy_on_others": float(right[game.size :].mean()),
        "scores": more,
    }
    return Outcome(top, facts)


class _Game:
    """The run, and the texts to tell apart: first the members, then as many others."""

    def __init__(self, target: Target, *, others: str | None, limit: int, drop_words: float | None) -> None:
        from dp_forward.data.tasks import task_name
        from dp_forward.privacy import RECORD, TEXT
        from dp_forward.privacy.checks import count
        from dp_forward.train.plan import Plan
        from dp_forward.train.regimes import promises_of
        from dp_forward.train.run import Halves

        if "task" not in target.plan:  # where none was trained on texts, no texts are members
            rule, found = "say which texts it was trained on", "a run without a task"
            remedy = "A back from collected releases never saw them: attack a run of dpf finetune."
            raise InvalidInput("run", rule, found, remedy)
        self.target, self.back = target, Halves.load(target.folder).pair.back
        plan, asked = Plan.from_dict(target.plan), target.task_name
        self.plan = replace(plan, data={**plan.data, **target.data})
        if asked is not None and task_name(asked) != plan.task:
            rule = f"be the one that the run was trained on, {plan.task}"
            raise InvalidInput("task", rule, asked, "Drop it.")
        limit = count("limit", limit, remedy="Use 2000.")
        told_apart = _members_and_others(target, self.plan, others, drop_words)
        members, rest, self.others_from, self.drawn_alike = told_apart
        self.size = min(len(members), len(rest), limit)
        if self.size < _FEWEST:
            rule = f"be {_FEWEST} members and {_FEWEST} others or more"
            raise InvalidInput("texts", rule, self.size, "An interval needs more.")
        drawn: list[Record] = []
        for seed, records in enumerate((members, rest), start=target.seed):
            chosen = np.random.default_rng(seed).permutation(len(records))[: self.size]
            drawn += [records[number] for number in chosen]
        self.texts = target.encoded(drawn)
        if self.texts.labels is None:
            raise InvalidInput("others", "have labels", self.others_from, "Name another split.")
        said = promises_of(self.plan, target.spec).training
        # A promise per token or phrase says little about a whole text, and gives no ceiling.
        self.ceiling = said.guess_rate if said is not None and said.unit in (TEXT, RECORD) else None

    def ask(
        self, front: AnyFront, back: AnyBack, stage: str, query: Mapping[str, Any]
    ) -> NDArray[np.float64]:
        """What a model answers about every text."""
        from dp_forward.attacks.membership import answers

        target, progress = self.target, counter(self.target.bars, stage, len(self.texts))
        more = {"device": target.device, "progress": progress, **query}
        return answers(front, back, target.mechanism, self.texts, **more)

    def attack_by(self, name: str, answers: NDArray[np.float64]) -> AttackResult:
        """The result of one score."""
        from dp_forward.attacks.membership import SCORES, threshold_attack

        scores = SCORES[name](answers, self.texts.labels)
        members, others, seed = scores[: self.size], scores[self.size :], self.target.seed
        return threshold_attack(members, others, seed=seed, ceiling=self.ceiling, name=f"membership, {name}")


def _members_and_others(
    target: Target, plan: Plan, others: str | None, drop_words: float | None
) -> tuple[list[Record], list[Record], str, bool]:
    """Members, others, where the others come from, and whether a coin could have made them members."""
    from dp_forward.attacks.membership import drop_words as thin_out
    from dp_forward.data import read_records, sample_records
    from dp_forward.data.tasks import split_name

    task = target.task()
    everybody = list(read_records(task, "train"))
    members = everybody if plan.train_limit is None else sample_records(everybody, plan.train_limit)
    if drop_words is not None:
        if others is not None:
            raise InvalidInput("others", "go without --drop-words", others, "Leave one of them out.")
        thinned = list(thin_out(members, share=drop_words, seed=target.seed))
        return members, thinned, f"members without {drop_words:g} of their words", False
    known = {id(record) for record in members}
    rest = [record for record in everybody if id(record) not in known]
    wanted = None if others is None else split_name(others)
    if wanted == "train" or (wanted is None and len(rest) >= _FEWEST):
        return members, rest, "train, the rest", True
    part = wanted or plan.evaluation_split or "validation"
    return members, list(read_records(task, part)), part, False


def _lira(game: _Game, answers: NDArray[np.float64], shadows: int, query: Mapping[str, Any]) -> AttackResult:
    """Shadows: the run's own plan, carried out on random halves of the texts.

    They start from the weights that the run started from, and know its front where it is frozen.
    """
    from dp_forward.attacks.lira import lira, logit_confidence, score_shadows
    from dp_forward.train.finetune import finetune
    from dp_forward.train.inputs import cut_model, load_inputs

    labels, bars, seed = game.texts.labels, game.target.bars, game.target.seed
    assert labels is not None
    plan = replace(game.plan, evaluation_draws=1)
    inputs = load_inputs(plan, progress=bars)
    evaluation = inputs.evaluation
    if evaluation is not None and len(evaluation) > _EVALUATED:
        evaluation = evaluation.subset(range(_EVALUATED))  # what a shadow reaches is not asked for

    def train(members: NDArray[np.int64]) -> NDArray[np.float64]:
        pair, tokens, spec = cut_model(plan)
        chosen = game.texts.subset(members)
        own = replace(inputs, pair=pair, tokens=tokens, spec=spec, train=chosen, evaluation=evaluation)
        # A register of its own: what a shadow learns stays here, and is charged to nobody.
        with TemporaryDirectory() as folder:
            trained = finetune(plan, inputs=own, progress=bars, register=Path(folder) / "register").pair
        return logit_confidence(game.ask(trained.front, trained.back, "asking a shadow", query), labels)

    progress = counter(bars, "training shadows", shadows)
    scores, inside = score_shadows(len(game.texts), train, shadows=shadows, seed=seed, progress=progress)
    own_scores, members = logit_confidence(answers, labels), np.arange(len(game.texts)) < game.size
    return lira(own_scores, members, scores, inside, seed=seed, ceiling=game.ceiling)
