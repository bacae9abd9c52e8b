"""Hostile GGUF files: refused by their header, before anything is built from them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.split.gguf_header import check_gguf

pytest.importorskip("gguf", reason="needs gguf (extra dev)")
from tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    check_gguf(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"llama.block_count": 10**6}, "as many blocks"),
        ({"llama.embedding_length": 2**31}, "sizes that its settings name"),
        ({"llama.feed_forward_length": 2**30}, "sizes that its settings name"),
        ({"llama.vocab_size": 2**31}, "a word for every row"),
        ({"llama.attention.head_count": 2**31}, "at most its width"),
        ({"llama.attention.head_count_kv": 2**20}, "so many heads"),
        ({"llama.attention.key_length": 2**20}, "at most its width"),
        ({"llama.expert_count": 2**20}, "no experts"),
        ({"llama.rope.dimension_count": 2**31}, "turn whole heads"),
        ({"llama.rope.dimension_count": 0}, "turn whole heads"),
    ],
)
def test_a_size_that_no_tensor_has_is_refused(change: dict[str, int], rule: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=rule):
        check_gguf(write_gguf(tmp_path / "lying.gguf", **change))


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def test_counts_and_lengths_beyond_the_file_are_refused(sound: bytes, tmp_path: Path) -> None:
    head = sound[:8]  # magic and version
    name = _numbers(1) + b"a"
    hostile = {
        "begin with GGUF": b"PK\x03\x04" + sound[4:],
        "version 2 or 3": sound[:4] + struct.pack("<I", 9) + sound[8:],
        "tensors": head + _numbers(2**60, 0),
        "keys": head + _numbers(1, 2**60),
        "names of at most": head + _numbers(1, 1, 2**62),
        "lists of at most": head + _numbers(1, 1) + name + struct.pack("<II", 9, 8) + _numbers(2**60),
        "numbers or strings": head + _numbers(1, 1) + name + struct.pack("<II", 9, 9) + _numbers(1),
        "what its header names": head + _numbers(1, 1) + name + struct.pack("<I", 8) + _numbers(2**62),
        "known types": head + _numbers(1, 1) + name + struct.pack("<I", 77) + _numbers(0),
        "every key once": head + _numbers(1, 2) + 2 * (name + struct.pack("<IB", 0, 1)),
        "1 to 4 dimensions": head + _numbers(1, 0) + name + struct.pack("<I", 2**31),
        "at most 4294967296 numbers": head
        + _numbers(1, 0)
        + name
        + struct.pack("<I", 2)
        + _numbers(2**40, 2**40)
        + struct.pack("<IQ", 0, 0),
        "number formats": head + _numbers(1, 0) + name + struct.pack("<IQIQ", 1, 32, 99, 0),
        "the tensors that it names": sound[:-64],
    }
    path = tmp_path / "hostile.gguf"
    for rule, data in hostile.items():
        path.write_bytes(data)
        with pytest.raises(InvalidInput, match=rule):
            check_gguf(path)


def test_items_of_all_lists_are_counted_together(sound: bytes, tmp_path: Path) -> None:
    items = struct.pack("<II", 9, 0) + _numbers(2**19) + bytes(2**19)
    keys = [_numbers(1) + name + items for name in (b"a", b"b", b"c")]
    path = tmp_path / "lists.gguf"
    path.write_bytes(sound[:8] + _numbers(1, 3) + b"".join(keys))
    with pytest.raises(InvalidInput, match="items in all"):
        check_gguf(path)


def test_no_prefix_of_a_sound_file_is_taken(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for size in [*range(0, 2400, 97), len(sound) // 2, len(sound) - 1]:
        path.write_bytes(sound[:size])
        with pytest.raises(InvalidInput):
            check_gguf(path)


def test_an_error_shows_no_string_of_the_file(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "named.gguf"
    path.write_bytes(sound.replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\0\0\0\0\0\0\0x-y-z", 1))
    with pytest.raises(InvalidInput, match="llama, qwen2, qwen3") as refused:
        check_gguf(path)
    assert "x-y-z" not in str(refused.value)
