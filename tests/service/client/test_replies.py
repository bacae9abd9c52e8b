"""What a server says to a label, beside its answer: shown only if it may be."""

from __future__ import annotations

from typing import Any

import pytest

from dp_forward.service.client.question import check_answer
from dp_forward.service.client.transport import ServerRefused

LABELS, REQUEST = ("a", "b"), bytes(16)


def answer(**more: Any) -> dict[str, Any]:
    return {"label": "a", "probabilities": {"a": 0.75, "b": 0.25}, "request": REQUEST.hex(), **more}


def test_a_reply_comes_with_the_answer() -> None:
    assert check_answer(answer(), LABELS, REQUEST).reply is None
    assert check_answer(answer(reply="Two\nlines."), LABELS, REQUEST).reply == "Two\nlines."


@pytest.mark.parametrize("reply", ["", 1, ["a"], "x" * 8001, "\x1b]0;title\x07", "\u202egnp.exe"])
def test_a_reply_that_a_terminal_should_not_see_is_refused(reply: object) -> None:
    with pytest.raises(ServerRefused, match="does not fit"):
        check_answer(answer(reply=reply), LABELS, REQUEST)
