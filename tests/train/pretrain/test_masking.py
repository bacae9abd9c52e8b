"""Which tokens of a block are masked."""

import math

import pytest
import torch
import transformers

from dp_forward.data.public_text import pack_blocks
from dp_forward.train.pretrain.masked_lm import IGNORED, MaskedBlocks, Masking
from tiny_corpus import WORDS, any_words


@pytest.mark.slow
def test_masking_hides_fifteen_in_a_hundred_by_the_rule_of_eighty_ten_ten(checkpoint: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    blocks = pack_blocks(any_words(), tokenizer, length=16)
    items = MaskedBlocks(blocks, Masking(tokenizer), seed=(3,), items=4 * len(blocks))
    pairs = [items[number] for number in range(len(items))]
    ids, labels = (torch.stack([pair[name] for pair in pairs]) for name in ("input_ids", "labels"))
    chosen = labels != IGNORED
    assert bool(chosen.any(dim=1).all())
    assert not torch.isin(labels[chosen], torch.tensor(tokenizer.all_special_ids)).any()
    ordinary = ~torch.isin(ids, torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id]))
    count = int(chosen.sum())
    # A block of 13 has none chosen with probability 0.12, and then gets one.
    assert count / int(ordinary.sum()) == pytest.approx(
        0.15 + 0.85**13 / 13, abs=4 * 0.36 / math.sqrt(ordinary.sum())
    )
    masked = int((ids[chosen] == tokenizer.mask_token_id).sum()) / count
    # One in eight of the tokens that are swapped is swapped for itself.
    kept = int((ids[chosen] == labels[chosen]).sum()) / count
    assert masked == pytest.approx(0.8, abs=4 * 0.4 / math.sqrt(count))
    assert kept == pytest.approx(0.1 + 0.1 / WORDS, abs=4 * 0.32 / math.sqrt(count))
    assert bool((ids[~chosen] != tokenizer.mask_token_id).all())
    assert torch.equal(items[7]["input_ids"], pairs[7]["input_ids"]), "an item does not depend on the past"
    assert (
        sorted(map(tuple, blocks.tolist()))
        == sorted(tuple(torch.where(c, y, x).tolist()) for c, x, y in zip(chosen, ids, labels, strict=True))[
            ::4
        ]
    ), "each pass sees every block once"
