"""Rows that a decoder's benchmark keeps are those of its texts and settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_gguf import needs_gguf, write_gguf

pytestmark = needs_gguf


def test_kept_rows_are_read_again_and_those_of_other_texts_or_settings_are_refused(tmp_path: Path) -> None:
    from benchmarks.decoder import make_front, read
    from dp_forward.split.pretrained import load_tokenizer

    model, place = str(write_gguf(tmp_path / "tiny.gguf")), tmp_path / "rows" / "train.npy"
    front, tokenizer = make_front(model, 2, "{text} good"), load_tokenizer(model)
    texts, settings = ["bad", "good", "a bad"], {"model": model, "prompt": "{text} good", "blocks": 2}
    rows = read(front, tokenizer, texts, 12, place, **settings)
    assert len(rows) == len(texts)
    assert np.array_equal(rows, read(front, tokenizer, texts, 12, place, **settings))
    for others, length, change in (
        (texts[:2], 12, {}),
        (texts[::-1], 12, {}),
        (texts, 11, {}),
        (texts, 12, {"blocks": 3}),
        (texts, 12, {"prompt": "{text} bad"}),
    ):
        with pytest.raises(SystemExit, match="other texts or settings"):
            read(front, tokenizer, others, length, place, **settings | change)
    place.with_suffix(".json").unlink()
    with pytest.raises(SystemExit, match="other texts or settings"):
        read(front, tokenizer, texts, 12, place, **settings)
