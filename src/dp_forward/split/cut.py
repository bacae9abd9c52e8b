"""Where a model may be cut, as a word.

The grammar, with K counted from 1::

    embeddings                 the rows that the first block reads
    encoder.K                  the output of block K (the paper's "Encoder K")
    encoder.K.attention        what attention adds to the residual; the residual is dropped
    encoder.K.attention_norm   the rows that the feed-forward part of block K starts from
    encoder.K.ffn              what the feed-forward part adds to the residual; the residual is dropped
    encoder.K.ffn_norm         another name of encoder.K
    encoder.1.qkv              the concatenation [Q|K|V] of the first attention; the residual is dropped
    output                     the one row that the task head reads

A cut is legal only if one tensor crosses it. In a post-norm block (BERT)::

    a = norm1(x + attention(x));    out = norm2(a + ffn(a))

`attention_norm` is `a` and `ffn_norm` is `out`. In a pre-norm block (ModernBERT, ViT, GPT-2, Llama, Qwen)::

    a = x + attention(norm1(x));    out = a + ffn(norm2(a))

the value norm2(a) cannot cross alone, because `a` itself is needed after it. There `attention_norm` is `a`,
and norm2 lies in the back; so does the final norm of a pre-norm model, for every cut but `output`.

At `attention`, `ffn` and `qkv` the residual would cross as a second tensor, so both halves take it as zero.

Paper: the (sub-)layers of an encoder at which noise may be added, and the token-level designs of its
appendix (`embeddings`, `encoder.1.qkv`).
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dp_forward.errors import InvalidInput

__all__ = ["parse_cut"]

POINTS = ("attention", "attention_norm", "ffn", "ffn_norm", "qkv")
"""The places inside a block."""

_BLOCK = re.compile(r"encoder\.([1-9][0-9]*)(?:\.([a-z_]+))?")


@dataclass(frozen=True, slots=True)
class Cut:
    """One ``place`` in a model, or a ``point`` of a ``block``: `Cut("output")`, `Cut("encoder", 3, "ffn")`.

    Guarantees: `parse_cut(str(cut)) == cut`, and an object that exists follows the grammar.
    Edges: how many blocks a model has is not known here; `split_model` and `legal_cuts` check K.
    """

    place: str
    block: int | None = None
    point: str | None = None

    def __post_init__(self) -> None:
        if _syntax(str(self)) != (self.place, self.block, self.point):
            raise _unknown(str(self))

    def __str__(self) -> str:
        return ".".join(str(part) for part in (self.place, self.block, self.point) if part is not None)

    @property
    def drops_residual(self) -> bool:
        """Whether the residual around the cut is taken as zero."""
        return self.point in {"attention", "ffn", "qkv"}

    @property
    def row_local(self) -> bool:
        """Whether row i depends on token i alone, so that a bound per row is a bound per token."""
        return self.place == "embeddings" or self.point == "qkv"


def parse_cut(text: str | Cut, *, among: Iterable[str] = ()) -> Cut:
    """The cut that a ``text`` names.

    >>> parse_cut("encoder.3.ffn").block
    3

    Edges: anything outside the grammar is refused, with the nearest words of `among` or of the grammar.
    """
    if isinstance(text, Cut):
        return text
    parsed = _syntax(text) if isinstance(text, str) else None
    if parsed is None:
        raise _unknown(text, among)
    return Cut(*parsed)


def nearest(text: str, words: Iterable[str]) -> str:
    """A remedy that names the words closest to a wrong one."""
    known = list(words)
    close = difflib.get_close_matches(text, known, n=3, cutoff=0.4)
    return f"Did you mean {' or '.join(close)}?" if close else f"Try {', '.join(known[:2])} or {known[-1]}."


def _syntax(text: str) -> tuple[str, int | None, str | None] | None:
    if text in {"embeddings", "output"}:
        return text, None, None
    match = _BLOCK.fullmatch(text)
    if match is None:
        return None
    block, point = int(match[1]), match[2]
    if point is not None and point not in POINTS:
        return None
    # Later blocks mix the rows before they project, so a per-token bound says nothing there.
    if point == "qkv" and block != 1:
        return None
    return "encoder", block, point


def _unknown(text: object, among: Iterable[str] = ()) -> InvalidInput:
    inside = [f"encoder.{k}.{point}" for k in (1, 2, 3) for point in POINTS if point != "qkv" or k == 1]
    examples = ["embeddings", "output", *(f"encoder.{k}" for k in range(1, 13)), *inside]
    rule = "be embeddings, encoder.K, encoder.K.POINT, encoder.1.qkv or output, with K from 1"
    return InvalidInput("cut", rule, repr(text), nearest(str(text), list(among) or examples))
