"""A vocabulary of eight words, texts of them, and a tiny masked LM that knows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

WORDS = 8


def one_word_each(count: int = 300) -> list[str]:
    """Texts in which every word tells every other."""
    return [" ".join([f"w{word}"] * 27) for word in np.random.default_rng(0).integers(0, WORDS, count)]


def any_words(count: int = 600) -> list[str]:
    """Texts of the same words in which no word tells anything."""
    return [
        " ".join(f"w{word}" for word in row)
        for row in np.random.default_rng(0).integers(0, WORDS, (count, 13))
    ]


def make_checkpoint(folder: Path) -> str:
    """A random BERT of two blocks without dropout, with its tokenizer."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{word}" for word in range(WORDS))]
    torch.manual_seed(0)
    shape = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    transformers.BertForMaskedLM(shape).save_pretrained(folder)
    names = {word: number for number, word in enumerate(vocabulary)}
    transformers.BertTokenizer(vocab=names).save_pretrained(folder)
    return str(folder)
