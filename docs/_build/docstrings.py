"""Docstrings as the site shows them: formulas as blocks that read without a script from elsewhere."""

from __future__ import annotations

import re
from typing import Any, Final

from griffe import Extension, Object

_MATH: Final = re.compile(r"^( *)\.\. math::[ \t]*(.*(?:\n\1[ \t]+\S.*)*)", flags=re.MULTILINE)
_HEADING: Final = re.compile(r"(?<!\n)\n( *)(Guarantees|Edges|Paper):", flags=re.MULTILINE)
_PAPER: Final = re.compile(r"^( *)Paper: (?=\S)", flags=re.MULTILINE)
_SPACES: Final = re.compile(r"\\[,;! ]|\\q?quad")


class Readable(Extension):
    """Turns ``.. math::`` into a fenced block, and sets our headings apart so that they are read as such."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _MATH.sub(_block, obj.docstring.value)
            text = _HEADING.sub(r"\n\n\1\2:", text)
            obj.docstring.value = _PAPER.sub(r"\1*Paper:* ", text)


def _block(match: re.Match[str]) -> str:
    indent, formula = match.groups()
    lines = [_SPACES.sub(" ", line).strip() for line in formula.splitlines()]
    return "\n".join(f"{indent}{line}" for line in ("```latex", *(line for line in lines if line), "```"))
