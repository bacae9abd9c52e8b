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
from tiny_models import MASKED_LM, SETTINGS, WIDTH, randomise, tiny, tiny_inputs


def _names(model: Any) -> list[str]:
    return [str(info.cut) for info in legal_cuts(model)]


def test_every_family_of_the_table_has_a_tiny_model() -> None:
    assert set(FAMILIES) == set(SETTINGS)
    assert {name for name, row in FAMILIES.items() if row.masked_lm} == set(MASKED_LM)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_path_of_a_row_names_a_module(family: str) -> None:
    row, model = FAMILIES[family], tiny(family, "bare")
    for path in (row.blocks, *row.entry, *row.final):
        assert isinstance(model.get_submodule(path), torch.nn.Module)
    wiring = row.wiring
    inner = [f"{wiring.attention}.{name}" for name in wiring.qkv]
    for path in (wiring.attention_norm, wiring.ffn_norm, *wiring.projection, *wiring.ffn, *inner):
        assert isinstance(blocks_of(model)[1].get_submodule(path), torch.nn.Module)


@pytest.mark.parametrize("family", FAMILIES)
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


def test_a_group_of_several_albert_layers_is_cut_only_between_groups() -> None:
    model = tiny("albert", inner_group_num=2)
    assert _names(model) == ["embeddings", "encoder.1", "encoder.2", "encoder.3", "output"]
    with pytest.raises(InvalidInput, match="between groups"):
        split_model(model, "encoder.2.ffn")


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
    row = replace(
        FAMILIES["roberta"],
        model_type="xlm-roberta",
        bare="XLMRobertaModel",
        classifier="XLMRobertaForSequenceClassification",
        masked_lm="XLMRobertaForMaskedLM",
    )
    config = transformers.XLMRobertaConfig(**SETTINGS["roberta"], num_hidden_layers=2)
    model = transformers.XLMRobertaForSequenceClassification(config).eval()
    randomise(model, seed=0)
    with pytest.raises(InvalidInput, match="known family"):
        split_model(model, "encoder.1")
    monkeypatch.setitem(FAMILIES, row.model_type, row)
    inputs = tiny_inputs("roberta")
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
