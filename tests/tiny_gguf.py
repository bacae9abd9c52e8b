"""A tiny random Llama as a GGUF file, written by the library that defines the format."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GGUF = find_spec("gguf") is not None and find_spec("accelerate") is not None
needs_gguf = pytest.mark.skipif(not GGUF, reason="needs gguf and accelerate (extra llm)")
WIDTH, WIDE, HEADS, BLOCKS = 32, 64, 4, 3
LETTERS = [*"Ġabcdefghijklmnopqrstuvwxyz,.", "<s>", "</s>"]
PAIRS = ("Ġ b", "a d", "Ġb ad", "g o", "o d", "Ġ go", "Ġgo od")
TOKENS = [*LETTERS, *("".join(pair.split()) for pair in PAIRS)]


def write_gguf(path: Path, *, seed: int = 0, **changes: Any) -> Path:
    """The file; ``changes`` are other values of its metadata, which then lie."""
    from gguf import GGUFWriter

    rng, writer = np.random.default_rng(seed), GGUFWriter(path, "llama")
    numbers = {
        "llama.block_count": BLOCKS,
        "llama.context_length": 64,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": 2,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.bos_token_id": TOKENS.index("<s>"),
        "tokenizer.ggml.eos_token_id": TOKENS.index("</s>"),
    }
    for name, value in (numbers | changes).items():
        writer.add_uint32(name, value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", TOKENS)
    writer.add_array("tokenizer.ggml.token_type", [3 if "<" in token else 1 for token in TOKENS])
    writer.add_array("tokenizer.ggml.merges", list(PAIRS))
    half = WIDTH // 2
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for block in range(BLOCKS):
        parts = {"attn_q": (WIDTH, WIDTH), "attn_k": (half, WIDTH), "attn_v": (half, WIDTH)}
        parts |= {"attn_output": (WIDTH, WIDTH), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
        parts |= {"ffn_up": (WIDE, WIDTH), "ffn_gate": (WIDE, WIDTH), "ffn_down": (WIDTH, WIDE)}
        shapes |= {f"blk.{block}.{name}": shape for name, shape in parts.items()}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32) * (0.3 if len(shape) > 1 else 0.1)
        writer.add_tensor(f"{name}.weight", values + (len(shape) == 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
