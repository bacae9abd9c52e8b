"""The table of families, and what is legal for a model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from dp_forward.errors import InvalidInput
from dp_forward.split import FAMILIES, legal_cuts, split_model
from dp_forward.split.families import head_of
from dp_forward.split.legal_cuts import blocks_of
from tiny_models import MASKED_LM, SETTINGS, WHOLE_BLOCKS, WIDTH, tiny, tiny_inputs


def _names(model: Any) -> list[str]:
    return [str(info.cut) for info in legal_cuts(model)]


def test_every_family_of_the_table_has_a_tiny_model() -> None:
    assert set(FAMILIES) == set(SETTINGS)
    assert {name for name, row in FAMILIES.items() if row.masked_lm} == set(MASKED_LM)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_path_of_a_row_names_a_module(family: str) -> None:
    narrow = {"word_embed_proj_dim": 16} if family == "opt" else {}  # or it has no projections
    row, model = FAMILIES[family], tiny(family, "bare", **narrow)
    for path in (row.blocks, *row.entry, *row.final):
        assert isinstance(model.get_submodule(path), torch.nn.Module)
    wiring = row.wiring
    if wiring is None:
        return
    inner = [f"{wiring.attention}.{name}" for name in wiring.qkv]
    for path in (wiring.attention_norm, wiring.ffn_norm, *wiring.projection, *wiring.ffn, *inner):
        assert isinstance(blocks_of(model)[1].get_submodule(path), torch.nn.Module)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in WHOLE_BLOCKS])
def test_a_model_of_three_blocks_has_eighteen_cuts(family: str) -> None:
    model = tiny(family)
    points = ("attention", "attention_norm", "ffn", "ffn_norm")
    inside = {f"encoder.{k}.{point}" for k in (1, 2, 3) for point in points}
    whole = {f"encoder.{k}" for k in (1, 2, 3)}
    assert set(_names(model)) == {"embeddings", "encoder.1.qkv", "output"} | inside | whole
    assert len(_names(model)) == 18


def test_what_crosses_is_described() -> None:
    by_name = {str(info.cut): info for info in legal_cuts(tiny("llama"))}
    assert by_name["encoder.2"].shape == f"n x {WIDTH}"
    assert by_name["output"].shape == f"1 x {WIDTH}"
    assert by_name["encoder.1.qkv"].width == WIDTH + 2 * 16  # two of four heads for K and for V
    assert by_name["encoder.1.ffn"].cut.drops_residual
    assert not by_name["encoder.1.attention_norm"].cut.drops_residual
    assert [name for name, info in by_name.items() if info.cut.row_local] == ["embeddings", "encoder.1.qkv"]


@pytest.mark.parametrize(
    ("family", "head"), [("bert", "masked_lm"), ("distilbert", "bare"), ("llama", "bare")]
)
def test_output_needs_a_head_that_reads_one_row(family: str, head: str) -> None:
    model = tiny(family, head)
    assert "output" not in _names(model)
    with pytest.raises(InvalidInput, match="no head that reads one row"):
        split_model(model, "output", allow_vocabulary_head=True)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("albert", {"inner_group_num": 2}),
        ("phi", {}),
        ("gpt_neox", {}),
        ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    ],
)
@torch.no_grad()
def test_a_block_of_another_wiring_is_cut_only_between(family: str, settings: dict[str, Any]) -> None:
    model, inputs = tiny(family, **settings), tiny_inputs(family)
    assert _names(model) == ["embeddings", "encoder.1", "encoder.2", "encoder.3", "output"]
    with pytest.raises(InvalidInput, match="between blocks"):
        split_model(model, "encoder.2.ffn")
    for cut in _names(model):
        front, back = split_model(model, cut)
        assert torch.allclose(back(front(**inputs)).logits, model(**inputs).logits, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_gpt_neox_with_one_part_after_the_other_is_cut_inside_too() -> None:
    model, inputs = tiny("gpt_neox", use_parallel_residual=False), tiny_inputs("gpt_neox")
    assert len(_names(model)) == 18
    front, back = split_model(model, "encoder.2.attention_norm")
    assert torch.equal(back(front(**inputs)).logits, model(**inputs).logits)


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
@torch.no_grad()
def test_gemma_scales_the_embeddings_once_and_in_the_front(family: str) -> None:
    model, inputs = tiny(family), tiny_inputs(family)
    front, back = split_model(model, "embeddings")
    table = model.get_input_embeddings().weight
    assert torch.allclose(front(**inputs), table[inputs["input_ids"]] * WIDTH**0.5)
    assert not [name for name, _ in back.named_buffers() if "embed_scale" in name]


def test_families_that_cannot_be_cut_are_refused_with_the_reason() -> None:
    small = {"vocab_size": 20, "num_heads": 2, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2}
    with pytest.raises(InvalidInput, match="first block alone makes the position bias"):
        legal_cuts(transformers.T5EncoderModel(transformers.T5Config(**small)))
    config = transformers.DebertaV2Config(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(InvalidInput, match="around the first block"):
        legal_cuts(transformers.DebertaV2ForSequenceClassification(config))


def test_an_unknown_cut_names_the_nearest_legal_ones() -> None:
    with pytest.raises(InvalidInput, match=r"Did you mean .*encoder\.2\.attention"):
        split_model(tiny("bert"), "encoder.2.atention")


def test_a_block_beyond_the_last_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"a block from 1 to 3; got encoder\.4"):
        split_model(tiny("bert"), "encoder.4")


def test_an_unknown_architecture_is_told_how_to_be_added() -> None:
    config = transformers.XLNetConfig(vocab_size=20, d_model=8, n_layer=1, n_head=2, d_inner=8)
    for stranger in (transformers.XLNetModel(config), torch.nn.Linear(2, 2), object()):
        with pytest.raises(InvalidInput, match=r"docs/how-to/add-a-family\.md"):
            legal_cuts(stranger)


def test_an_unsupported_head_is_refused() -> None:
    model = transformers.BertForQuestionAnswering(tiny("bert").config)
    with pytest.raises(InvalidInput, match=r"have a supported head .*BertForQuestionAnswering"):
        split_model(model, "encoder.1")


def test_a_subclass_with_a_forward_of_its_own_is_refused() -> None:
    class Hostile(transformers.BertForSequenceClassification):
        pass

    with pytest.raises(InvalidInput, match="have a supported head"):
        split_model(Hostile(tiny("bert").config), "encoder.1")


@pytest.mark.slow
def test_a_family_is_added_by_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of docs/how-to/add-a-family.md."""
    row = FAMILIES["xlm-roberta"]
    monkeypatch.delitem(FAMILIES, "xlm-roberta")
    model, inputs = tiny("xlm-roberta"), tiny_inputs("xlm-roberta")
    with pytest.raises(InvalidInput, match="known family"):
        split_model(model, "encoder.1")
    names = {name: getattr(row, name) for name in ("model_type", "bare", "classifier", "masked_lm")}
    assert replace(FAMILIES["roberta"], **names) == row
    monkeypatch.setitem(FAMILIES, row.model_type, row)
    for info in legal_cuts(model):
        front, back = split_model(model, info.cut)
        with torch.no_grad():
            same = torch.equal(back(front(**inputs)).logits, model(**inputs).logits)
        assert same != info.cut.drops_residual


@pytest.mark.parametrize("family", MASKED_LM)
def test_a_vocabulary_head_needs_permission(family: str) -> None:
    model = tiny(family, "masked_lm")
    assert head_of(model) == "masked_lm"
    with pytest.raises(InvalidInput, match="allow_vocabulary_head=True"):
        split_model(model, "encoder.1")
