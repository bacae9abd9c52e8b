"""Projection for users to come: what a provider hands out before there is any record.

    public text, label words ─► START/projection ─► front: users release folded records (`dpf release`)
                                                 └► the provider collects them (`dpf serve --collect`)

Guarantees:
    It depends on public text, on the labels and their descriptions, and on a guess of the number of records.
    A wrong guess costs accuracy (`closed_form.choose_width`), and no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

import torch

from dp_forward.data import FixedLength
from dp_forward.data.encoded_texts import encode_records
from dp_forward.data.own_data import task_from_labels
from dp_forward.data.public_text import has_labels, read_public_records
from dp_forward.data.tokens import check_vocabulary
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.privacy.checks import count
from dp_forward.progress import Progress, counter
from dp_forward.split import split_model
from dp_forward.split.halves import Front
from dp_forward.split.pretrained import default_pooling, load_model, load_tokenizer
from dp_forward.train.closed_form_training import ClosedForm, Projected

__all__ = ["prepare_projection"]


def prepare_projection(
    model: str,
    labels: Sequence[str],
    *,
    epsilon: float,
    records: int,
    described: Mapping[str, Sequence[str]],
    public: str | None = None,
    rows: int = 64,
    pooling: str | None = None,
    width: int | None = None,
    progress: Progress | None = None,
) -> Projected:
    """The projection in which users will release about ``records`` records of these labels.

    Args:
        public: public text, as `data.public_text` names it; with these labels it teaches them.
        pooling: what `output` reads of the model, and ``width``, d': by rule where they are left out.
    """
    if len(set(labels)) != len(labels) or len(labels) < 2:
        raise InvalidInput("fold", "name two labels or more, each once", len(labels), "Try good,bad.")
    task = task_from_labels(labels, fewest=1)
    count("records", records, remedy="About how many records will be released in all.")
    noise = NoiseSpec(mechanism="privunit", epsilon=epsilon, unit="record")
    whole = load_model(model, labels=len(labels)).to(torch.float32)  # type: ignore[arg-type]
    front = split_model(whole, "output", pooling=pooling or default_pooling(model)).front
    assert isinstance(front, Front)
    tokens = FixedLength(load_tokenizer(model), rows, causal=front.pads_left, most_positions=front.max_rows)
    check_vocabulary(tokens.tokenizer, front.settings.get("vocab_size"))
    texts = None
    if public is not None:
        known = task if has_labels(public, task) else None
        found = read_public_records(public, known, name="public")
        texts = encode_records(found, tokens, progress=counter(progress, "reading public texts"))
        texts.check_known(tokens.tokenizer)
    form = ClosedForm.of(
        front,
        tokens,
        task.labels,
        described=described,
        public=texts,
        source=PurePath(public or "").name,
        progress=progress,
    )
    return form.project(records=records, noise=noise, width=width)
