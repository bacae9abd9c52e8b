"""What a run works on: the model cut in two, and the records as token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dp_forward.data import EncodedTexts, FixedLength, read_texts
from dp_forward.data.tasks import Task, find_task
from dp_forward.errors import InvalidInput
from dp_forward.progress import Progress, counter
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import Split, split_model
from dp_forward.split.pretrained import load_model, load_tokenizer
from dp_forward.train.lineage import load_published
from dp_forward.train.plan import Plan

if TYPE_CHECKING:
    from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan

__all__ = ["Inputs", "check_public_task", "cut_model", "load_inputs"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Model and records of a run.

    Guarantees:
        Whoever makes it, the public texts are not the private ones, and every split has labels that fit.
    """

    task: Task
    pair: Split
    tokens: FixedLength
    spec: ReleaseSpec
    train: EncodedTexts
    evaluation: EncodedTexts
    public: EncodedTexts | None

    def __post_init__(self) -> None:
        self.spec.refuse_mixed_rows(row_local=self.pair.front.row_local)
        if self.public is not None:
            # A front that depends on fixed public texts does not depend on the private ones, also where a
            # short phrase is in both by accident. Where many are, the "public" texts are the private ones.
            known, own = set(_token_rows(self.public)), list(_token_rows(self.train))
            common = sum(row in known for row in own)
            if common > 0.1 * len(own):
                found = f"{common} of {len(own)} private texts in it"
                remedy = "They would train the front as they are: name other public data."
                raise InvalidInput("public_task", "have other texts than the task", found, remedy)
        for labels in (self.train.labels, self.evaluation.labels):
            if labels is None:
                rule = "have labels in the splits that are used"
                raise InvalidInput("task", rule, self.task.name, "Name another split.")
            if int(labels.max()) >= len(self.task.labels):
                raise InvalidInput("task", f"have {len(self.task.labels)} labels", "more", "Check the data.")


def load_inputs(plan: Plan, *, progress: Progress | None = None) -> Inputs:
    """Load and cut the model, read the splits; the same plan gives the same halves on every start."""
    task = find_task(plan.task)
    pair, tokens, spec = cut_model(plan)
    train, evaluation = read_splits(plan, tokens, progress=progress)
    public = None
    if plan.public_task is not None:
        public_task = find_task(plan.public_task)
        check_public_task(task, public_task)
        public = read_texts(
            public_task,
            "train",
            tokens,
            source=plan.data.get(public_task.name),
            limit=plan.public_limit,
            words=plan.public_words or 0,
            treebank=task.treebank,
            progress=counter(progress, f"reading {public_task.name} train"),
        )
    return Inputs(task, pair, tokens, spec, train, evaluation, public)


def read_splits(
    plan: Plan | DpSgdPlan, tokens: FixedLength, *, progress: Progress | None = None
) -> tuple[EncodedTexts, EncodedTexts]:
    """The texts of a plan's task: those to train on, and those to measure on."""
    task = find_task(plan.task)
    limits = [("train", plan.train_limit), (plan.evaluation_split, plan.evaluation_limit)]
    train, evaluation = (
        read_texts(
            task,
            split,
            tokens,
            source=plan.data.get(task.name),
            limit=limit,
            progress=counter(progress, f"reading {task.name} {split}"),
        )
        for split, limit in limits
    )
    return train, evaluation


def check_public_task(task: Task, public_task: Task) -> None:
    """Refuse a public task whose labels mean something else."""
    if public_task.labels != task.labels:
        rule = f"have the labels of {task.name}: {', '.join(task.labels)}"
        found = ", ".join(public_task.labels)
        raise InvalidInput("public_task", rule, found, "Its records train the same head.")


def _token_rows(texts: EncodedTexts) -> Iterator[bytes]:
    for start in range(0, len(texts), 1024):
        batch = texts.batch(range(start, min(start + 1024, len(texts))))
        yield from (row.tobytes() for row in batch["input_ids"].numpy())


def cut_model(plan: Plan) -> tuple[Split, FixedLength, ReleaseSpec]:
    """The model in two halves (or those of the run it starts from), its tokens and the spec of a release."""
    import transformers

    task = find_task(plan.task)
    # The head and the maps start from random weights: a run that is continued must meet the same ones.
    transformers.set_seed(plan.seed)
    assert plan.cut is not None
    assert plan.rows is not None
    published = load_published(plan, labels=len(task.labels))
    if published is not None:
        pair, tokenizer = published
    else:
        model = load_model(plan.model, labels=len(task.labels))
        # A checkpoint may be stored in half precision; weights that train are kept in float32.
        model.to(torch.float32)  # type: ignore[arg-type]
        pair, tokenizer = split_model(model, plan.cut, width=plan.width or None), load_tokenizer(plan.model)
    front = pair.front
    tokens = FixedLength(tokenizer, plan.rows, causal=front.pads_left, most_positions=front.max_rows)
    spec = ReleaseSpec.of(pair.front, noise=plan.noise, rows=plan.rows, labels=task.labels)
    return pair, tokens, spec
