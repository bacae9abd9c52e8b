"""Cache of encoded datasets: texts are read once and shared by all jobs, forked workers included."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dp_forward.data import EncodedTexts, FixedLength, find_task, read_texts
from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.split.pretrained import load_tokenizer, model_folder
from dp_forward.train.inputs import Inputs, check_public_task, cut_model
from dp_forward.train.plan import Plan

__all__ = ["DatasetCache", "shorten_texts"]

_Key = tuple[str, str, str, int, int | None, int, bool]


class DatasetCache:
    """Where tasks lie (``data``), and what was read from there.

    ``models`` says in which folder the weights of a name lie, where they are not found by it.
    """

    def __init__(self, data: Mapping[str, str], *, models: Mapping[str, str] | None = None) -> None:
        self.data = dict(data)
        self.models = dict(models or {})
        self._read: dict[_Key, EncodedTexts] = {}
        self._tokenizers: dict[str, Any] = {}
        self._fingerprints: dict[str, str] = {}

    def texts(
        self,
        task: str,
        split: str,
        *,
        model: str,
        rows: int,
        limit: int | None = None,
        words: int = 0,
        treebank: bool = False,
    ) -> EncodedTexts:
        """A split at so many rows; one that was read with more rows is cut, not read again."""
        key = (model, task, split, rows, limit, words, treebank)
        if key in self._read:
            return self._read[key]
        wider = min(
            (k for k in self._read if k[:3] == key[:3] and k[4:] == key[4:] and k[3] > rows),
            key=lambda k: k[3],
            default=None,
        )
        chosen = find_task(task)
        if wider is not None and len(chosen.text_fields) == 1 and not self._read[wider].pads_left:
            self._read[key] = shorten_texts(self._read[wider], rows)
        else:
            tokens = FixedLength(self._tokenizer(model), rows)
            self._read[key] = read_texts(
                chosen,
                split,
                tokens,
                source=self.data.get(chosen.name),
                limit=limit,
                words=words,
                treebank=treebank,
            )
        return self._read[key]

    def prepare(self, plan: Plan, model: str) -> None:
        """Read what a plan needs; ``model`` is the one whose tokenizer reads."""
        self._splits(plan, model)

    def inputs(self, plan: Plan, model: str) -> Inputs:
        """What `finetune` works on."""
        pair, tokens, form = cut_model(plan)
        train, evaluation, public = self._splits(plan, model)
        return Inputs(find_task(plan.task), pair, tokens, form, train, evaluation, public)

    def _splits(self, plan: Plan, model: str) -> tuple[EncodedTexts, EncodedTexts, EncodedTexts | None]:
        assert plan.rows is not None
        chosen: dict[str, Any] = {"model": model, "rows": plan.rows}
        train = self.texts(plan.task, "train", limit=plan.train_limit, **chosen)
        evaluation = self.texts(plan.task, plan.evaluation_split, limit=plan.evaluation_limit, **chosen)
        public = None
        if plan.public_task is not None:
            check_public_task(find_task(plan.task), find_task(plan.public_task))
            public = self.texts(
                plan.public_task,
                "train",
                limit=plan.public_limit,
                words=plan.public_words or 0,
                treebank=find_task(plan.task).treebank,
                **chosen,
            )
        return train, evaluation, public

    def weights_of(self, model: str) -> str:
        """A fingerprint of a model's settings and weights: a name or a folder alone does not say which."""
        if model not in self._fingerprints:
            folder = Path(model_folder(self.models.get(model, model)))
            found = hashlib.sha256()
            for file in sorted([*folder.glob("config.json"), *folder.glob("*.safetensors")]):
                found.update(file.read_bytes())
            self._fingerprints[model] = found.hexdigest()[:12] if folder.is_dir() else "unknown"
        return self._fingerprints[model]

    def _tokenizer(self, model: str) -> Any:
        if model not in self._tokenizers:
            self._tokenizers[model] = load_tokenizer(self.models.get(model, model))
        return self._tokenizers[model]


def shorten_texts(texts: EncodedTexts, rows: int) -> EncodedTexts:
    """The same single texts at fewer rows, as the tokenizer cuts them: the last row kept is the end mark.

    Edges:
        Only for texts that are padded on the right; a pair is cut elsewhere, so it is read anew.
    """
    rows = count("rows", rows, at_least=3, remedy="Use the rows of the plan.")
    columns, lengths = dict(texts.columns), texts.lengths
    paired = "types" in columns and bool(columns["types"].any())
    if texts.pads_left or paired or rows > texts.length:
        rule = f"cut single texts of {texts.length} rows, padded on the right"
        raise InvalidInput("rows", rule, rows, "Read them anew.")
    longer = np.flatnonzero(lengths > rows)
    ids = columns["ids"][:, :rows].copy()
    ids[longer, rows - 1] = columns["ids"][longer, lengths[longer] - 1]
    columns.update(ids=ids, lengths=np.minimum(lengths, rows))
    if "types" in columns:
        columns["types"] = columns["types"][:, :rows].copy()
    return EncodedTexts(columns, pads_left=False)
