"""The header of a GGUF file, checked before anything is built from it.

GGUF is a magic word, counts, metadata (a key, a type, a value), then a name, a shape, a number format and an
offset for each tensor. A header decides how much memory is asked for, so everything is bounded first.

Guarantees:
    After `check_gguf`, every string, list and tensor of the file lies inside it; the model is a decoder of
    `ARCHITECTURES`; its blocks are as many as it has tensors for, and its vocabulary, width, heads (also the
    rotary ones) and feed-forward width are those of its tensors. Until then nothing is allocated but single
    short strings.
Edges:
    An error names the rule, and never a string of the file.
"""

import math
import os
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

from dp_forward.errors import InvalidInput, refuse_if

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
"""Decoders with rotary positions: they have no table whose size the metadata alone decides."""
_LARGEST: Final = 8 * 2**30  # bytes of the file
_MOST_NUMBERS: Final = 2**32  # of all tensors; 16 GiB in float32
_MOST_TENSORS, _MOST_KEYS, _LONGEST_KEY = 10_000, 1_000, 256
_MOST_ITEMS: Final = 2**20  # of all lists: the library that reads them next needs near 1 KiB for each
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
_BLOCKS: Final = {
    **{0: (1, 4), 1: (1, 2), 30: (1, 2)},  # F32, F16, BF16
    **{2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34)},  # Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)},  # Q2_K to Q6_K
}
"""Number formats -> how many numbers stand in how many bytes."""


def check_gguf(path: Path) -> None:
    """Refuse a ``path`` that holds no GGUF file of a decoder, or one that is not what its header says."""
    try:
        size = os.path.getsize(path)
        _require(size <= _LARGEST, f"have at most {_LARGEST} bytes", size)
        with path.open("rb") as file:
            facts, tensors = _Header(file, size).read()
    except OSError:
        raise InvalidInput("model", "be a file that can be read", path.name, "Check the path.") from None
    _check_model(facts, tensors)


class _Header:
    """Reads a header of a ``file`` of ``size`` bytes; every length is checked before it is used."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.left, self.items = file, size, 0

    def read(self) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
        """The metadata and the shapes by name; see `_value`."""
        size = self.left
        _require(self._take(4) == b"GGUF", "begin with GGUF", "something else")
        version, tensors, keys = self._number("I"), self._number("Q"), self._number("Q")
        _require(version in (2, 3), "be GGUF of version 2 or 3", version)
        _require(0 < tensors <= _MOST_TENSORS, f"have 1 to {_MOST_TENSORS} tensors", tensors)
        _require(keys <= _MOST_KEYS, f"have at most {_MOST_KEYS} keys", keys)
        facts: dict[str, Any] = {}
        for _ in range(keys):
            name = self._name()
            _require(name not in facts, "name every key once", "one key twice")
            facts[name] = self._value(self._number("I"))
        shapes, ends, numbers = dict[str, tuple[int, ...]](), [0], 0
        step = facts.get("general.alignment", 32)
        for _ in range(tensors):
            name, rank = self._name(), self._number("I")
            _require(name not in shapes, "name every tensor once", "one tensor twice")
            _require(1 <= rank <= 4, "have tensors of 1 to 4 dimensions", rank)
            shape = tuple(self._number("Q") for _ in range(rank))
            kind, offset, entries = self._number("I"), self._number("Q"), math.prod(shape)
            numbers += entries
            _require(entries > 0, "have tensors that hold something", "an empty one")
            _require(numbers <= _MOST_NUMBERS, f"hold at most {_MOST_NUMBERS} numbers", "more")
            _require(kind in _BLOCKS, f"use number formats {', '.join(map(str, _BLOCKS))}", kind)
            per, taken = _BLOCKS[kind]
            _require(shape[0] % per == 0, "have rows of whole blocks", "others")
            shapes[name] = shape
            ends.append(offset + entries // per * taken)
        _require(step in range(1, 2**16), "align its tensors by 1 to 65535", "something else")
        data = size - -(-(size - self.left) // step) * step
        _require(max(ends) <= data, "hold the tensors that it names", "a shorter file")
        return facts, shapes

    def _take(self, size: int) -> bytes:
        self._pass(size)
        return self.file.read(size)

    def _pass(self, size: int) -> None:
        _require(size <= self.left, "hold what its header names", "a shorter file")
        self.left -= size

    def _number(self, kind: str) -> Any:
        (found,) = struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))
        return found

    def _name(self) -> str:
        size = self._number("Q")
        _require(size <= _LONGEST_KEY, f"have names of at most {_LONGEST_KEY} bytes", size)
        return self._take(size).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        """A number as it is, a short string too; None for a longer one; the numbers of a list's items."""
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        _require(kind == _LIST, "have metadata of known types", kind)
        inner, items = self._number("I"), self._number("Q")
        self.items += items
        _require(self.items <= _MOST_ITEMS, f"have lists of at most {_MOST_ITEMS} items in all", self.items)
        _require(inner == _STRING or inner in _SCALARS, "have lists of numbers or strings", inner)
        if inner == _STRING:
            for _ in range(items):
                self._text()
        else:
            self._skip(items * struct.calcsize(f"<{_SCALARS[inner]}"))
        return range(items)

    def _text(self) -> str | None:
        size = int(self._number("Q"))
        if size <= _LONGEST_KEY:
            return self._take(size).decode("utf-8", "replace")
        self._skip(size)
        return None

    def _skip(self, size: int) -> None:
        self._pass(size)
        self.file.seek(size, os.SEEK_CUR)


def _check_model(facts: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """What decides how large a model is built must be there in the tensors."""
    kind = facts.get("general.architecture")
    _require(kind in ARCHITECTURES, f"be of {', '.join(ARCHITECTURES)}", "another architecture")
    blocks = {found[1] for name in shapes if (found := re.match(r"blk\.([0-9]{1,4})\.", name))}
    _require(facts.get(f"{kind}.block_count") == len(blocks) > 0, "name as many blocks as it has", "others")
    tokens: Any = facts.get("tokenizer.ggml.tokens")
    words: Any = getattr(tokens, "stop", None)
    names = ("embedding_length", "feed_forward_length", "attention.head_count")
    width, wide, heads = (facts.get(f"{kind}.{name}", 0) for name in names)
    vocabulary = facts.get(f"{kind}.vocab_size", words)
    given = (width, wide, heads, words, vocabulary)
    _require(all(isinstance(one, int) and one > 0 for one in given), "name all its sizes", "not all")
    column, few = facts.get(f"{kind}.attention.key_length", width // heads), range(1, heads + 1)
    _require(column in range(1, width + 1), "have heads of at most its width", "others")
    # Transformers takes this as the width of a Llama's heads, and makes a table of that many frequencies.
    _require(facts.get(f"{kind}.rope.dimension_count", column) == column, "turn whole heads", "others")
    _require(facts.get(f"{kind}.attention.head_count_kv", heads) in few, "have so many heads", "others")
    _require(not facts.get(f"{kind}.expert_count"), "have no experts", "some")
    wanted = {"token_embd.weight": (width, vocabulary)}
    for block in blocks:
        wanted |= {f"blk.{block}.ffn_up.weight": (width, wide)}
        wanted |= {f"blk.{block}.attn_q.weight": (width, heads * column)}
    _require(words == vocabulary, "have a word for every row of its vocabulary", "others")
    held = all(shapes.get(name) == shape for name, shape in wanted.items())
    _require(held, "have tensors of the sizes that its settings name", "others")


def _require(held: bool, rule: str, found: object) -> None:
    refuse_if(not held, "model", rule, found, "Get the GGUF file again, from whoever made it.")
