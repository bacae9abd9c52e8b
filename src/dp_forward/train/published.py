"""The halves of an earlier run as a published model.

A front that was trained on public data can be given to everybody: `--model RUN` starts from its halves, in
`release-once` with the front as it is. So one public step serves many private tasks and mechanisms.

Edges:
    Whether a front may be taken as public is not visible in its weights: a run in `end-to-end` saw private
    texts, and `release-once` on top of it protects only the texts of the new task. Its plan says what it was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from dp_forward.errors import InvalidInput
from dp_forward.handed import load_provider_side, load_user_side
from dp_forward.split.pair import Split

__all__ = ["Shape", "load_published", "published_shape"]


class Shape(NamedTuple):
    """What is fixed once a model is cut."""

    cut: str
    width: int
    """d', or 0 without maps."""
    rows: int


def published_shape(model: str) -> Shape | None:
    """The shape of a run's halves; None if ``model`` is not the folder of a run."""
    folder = Path(model)
    if not (folder / "split.json").is_file():
        return None
    try:
        half = json.loads((folder / "front" / "half.json").read_text(encoding="utf-8"))
        form = json.loads((folder / "front" / "release.json").read_text(encoding="utf-8"))
        return Shape(str(half["cut"]), int(half["width"] or 0), int(form["rows"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            "model", "be a whole run", model, "Finish it with dpf finetune --resume."
        ) from None


def load_published(model: str, *, cut: str, width: int, labels: int) -> tuple[Split, Any]:
    """The halves and the tokenizer; a plan that asks for another shape is refused."""
    shape = published_shape(model)
    assert shape is not None
    for name, wanted, found in (("cut", cut, shape.cut), ("width", width, shape.width)):
        if wanted != found:
            raise InvalidInput(name, f"be {found}, as in the run it starts from", wanted, "Leave it out.")
    user, provider = load_user_side(Path(model) / "front"), load_provider_side(Path(model) / "back")
    if len(user.form.labels) != labels:
        raise InvalidInput(
            "task", f"have {len(user.form.labels)} labels, as the head has", labels, "Name another."
        )
    return Split(user.front, provider.back), user.tokens.tokenizer
