"""The halves are apart: real copies, nothing of the other side, one tensor in between."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dp_forward.errors import InvalidInput
from dp_forward.split import FAMILIES, Back, Front, legal_cuts, split_model
from dp_forward.split.artifacts import load_back, load_front, save_split
from dp_forward.split.check import check_split
from dp_forward.split.halves import AnswerBack, NarrowBack, NarrowFront, ReadoutFront, Split
from tiny_models import (
    CAUSAL,
    LABELS,
    MASKED_LM,
    PAD,
    SETTINGS,
    VOCABULARY,
    WHOLE_BLOCKS,
    tiny,
    tiny_inputs,
)

SOME_CUTS = ("embeddings", "encoder.1.qkv", "encoder.2", "encoder.2.attention", "encoder.2.ffn", "output")


def _some_cuts(model: Any) -> list[str]:
    """Those of them that are legal: all, or those between blocks."""
    found = [str(info.cut) for info in legal_cuts(model) if str(info.cut) in SOME_CUTS]
    assert len(found) == (3 if model.config.model_type in WHOLE_BLOCKS else len(SOME_CUTS))
    return found


def _contents(module: nn.Module) -> set[bytes]:
    """Parameters by their values: every one of a tiny model is random, so a value is as good as a name."""
    return {parameter.detach().numpy().tobytes() for parameter in module.parameters()}


def _labels(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    if "MaskedLM" in type(model).__name__:
        return inputs["input_ids"]
    return torch.arange(2) % LABELS


@pytest.mark.slow
@pytest.mark.parametrize("family", SETTINGS)
def test_every_parameter_goes_to_exactly_one_half(family: str) -> None:
    """Together the halves hold the whole model, nothing else, and nothing twice.

    No parameter of these models is unused: a pooler that no head reads is not built by Hugging Face. ALBERT
    is the exception to "nothing twice": its one block is needed on both sides. So is the small table by
    which MPNet weighs relative positions.
    """
    model = tiny(family)
    twice = _contents(model.base_model.encoder.relative_attention_bias) if family == "mpnet" else set()
    for info in legal_cuts(model):
        front, back = split_model(model, info.cut)
        assert _contents(front) | _contents(back) == _contents(model)
        if family != "albert":
            assert _contents(front) & _contents(back) <= twice
            sizes = [sum(p.numel() for p in part.parameters()) for part in (front, back, model)]
            assert sizes[0] + sizes[1] - sizes[2] == sum(map(len, _contents(front) & _contents(back))) // 4


@pytest.mark.slow
@pytest.mark.parametrize("family", SETTINGS)
def test_a_front_has_no_head_and_a_back_no_entry(family: str) -> None:
    model, row = tiny(family), FAMILIES[family]
    modules = dict(model.base_model.named_modules())  # OPT has its `project_in` only where widths differ
    entry = set().union(*(_contents(modules[path]) for path in row.entry if path in modules))
    assert entry
    head = _contents(model) - _contents(model.base_model)
    for info in legal_cuts(model):
        front, back = split_model(model, info.cut)
        assert type(front.model).__name__ == row.bare
        assert head <= _contents(back)
        assert not head & _contents(front)
        assert entry <= _contents(front)
        assert not entry & _contents(back)
        assert not any(VOCABULARY in tensor.shape for tensor in back.state_dict().values())


@pytest.mark.parametrize("family", SETTINGS)
def test_blocks_stay_on_their_side_of_the_cut(family: str) -> None:
    model = tiny(family)
    blocks = list(model.base_model.get_submodule(FAMILIES[family].blocks))
    if family == "albert":  # one block, needed on both sides
        blocks = []
    for k in range(1, len(blocks) + 1):
        front, back = split_model(model, f"encoder.{k}")
        for index, block in enumerate(blocks, start=1):
            assert (_contents(block) <= _contents(front)) == (index <= k)
            assert _contents(block).isdisjoint(_contents(back)) == (index <= k)


@pytest.mark.slow
@pytest.mark.parametrize("family", SETTINGS)
@torch.no_grad()
def test_the_copies_are_real(family: str) -> None:
    model, inputs = tiny(family), tiny_inputs(family)
    whole, settings = model(**inputs).logits, model.config.to_dict()
    names = list(model.state_dict())
    for cut in _some_cuts(model):
        front, back = split_model(model, cut)
        hidden = front(**inputs)
        answer = back(hidden).logits
        for parameter in front.parameters():
            parameter.add_(1.0)
        assert torch.equal(back(hidden).logits, answer)
        moved = front(**inputs)
        for parameter in back.parameters():
            parameter.add_(1.0)
        assert torch.equal(front(**inputs), moved)
    assert torch.equal(model(**inputs).logits, whole)
    assert model.config.to_dict() == settings
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("family", MASKED_LM)
def test_an_allowed_vocabulary_head_is_untied_and_each_tensor_has_one_name(family: str) -> None:
    model, inputs = tiny(family, "masked_lm"), tiny_inputs(family)
    front, back = split_model(model, "encoder.2", allow_vocabulary_head=True)
    hidden = front(**inputs)
    answer = back(hidden).logits
    with torch.no_grad():
        for parameter in front.parameters():
            parameter.zero_()
    assert torch.equal(back(hidden).logits, answer)
    addresses = [tensor.data_ptr() for tensor in back.state_dict().values()]
    assert len(addresses) == len(set(addresses))
    assert front.vocabulary_head
    assert back.vocabulary_head


@pytest.mark.slow
@pytest.mark.parametrize("family", SETTINGS)
def test_gradients_flow_through_the_one_tensor(family: str) -> None:
    model, inputs = tiny(family).train(), tiny_inputs(family)
    for cut in _some_cuts(model):
        front, back = split_model(model, cut)
        assert front.training
        assert back.training
        hidden = front(**inputs)
        loss = back(hidden, labels=_labels(model, inputs)).loss
        (into,) = torch.autograd.grad(loss, hidden, retain_graph=True)
        assert float(into.abs().max()) > 0
        loss.backward()
        for half in (front, back):
            touched = [p for p in half.parameters() if p.grad is not None and bool(p.grad.any())]
            assert touched
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("family", MASKED_LM)
def test_a_masked_lm_trains_through_the_cut(family: str) -> None:
    model, inputs = tiny(family, "masked_lm"), tiny_inputs(family)
    front, back = split_model(model, "encoder.1", allow_vocabulary_head=True)
    with torch.no_grad():
        whole = model(**inputs, labels=inputs["input_ids"]).loss
    loss = back(front(**inputs), labels=inputs["input_ids"]).loss
    assert torch.equal(loss, whole)
    loss.backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in front.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2"])
def test_the_exported_back_computes_the_same(family: str) -> None:
    """The leak check exports every kind of cut of every family, and counts the inputs."""
    model, inputs = tiny(family, blocks=2), tiny_inputs(family)
    front, back = split_model(model, "encoder.1.qkv")
    with torch.no_grad():
        hidden = front(**inputs)
        exported = torch.export.export(back, (hidden,), strict=False)
        again = exported.module()(hidden).logits
        assert torch.allclose(again, back(hidden).logits, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", SETTINGS)
@torch.no_grad()
def test_a_local_row_depends_on_its_own_token_alone(family: str) -> None:
    model, inputs = tiny(family), tiny_inputs(family)
    other = copy.deepcopy(inputs)
    if family == "vit":
        other["pixel_values"][:, :, :4, 4:] += 1.0  # the second patch; row 0 is the class token
        row = 2
    else:
        row = 3
        other["input_ids"][:, row] = PAD  # the hardest change: RoBERTa counts its positions around PAD
    for info in legal_cuts(model):
        front, _ = split_model(model, info.cut)
        moved = (front(**inputs) != front(**other)).any(dim=-1).any(dim=0)
        if info.cut.row_local:
            assert moved.nonzero().flatten().tolist() == [row]
        elif info.cut.place == "encoder" and family not in CAUSAL:
            assert int(moved.sum()) > 1  # the control
    local = {"embeddings"} if family in WHOLE_BLOCKS else {"embeddings", "encoder.1.qkv"}
    assert {str(info.cut) for info in legal_cuts(model) if info.cut.row_local} == local


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in SETTINGS if f != "vit"])
@torch.no_grad()
def test_pad_rows_leave_as_zero_and_are_not_seen_by_the_others(family: str) -> None:
    model, ids = tiny(family), tiny_inputs(family)["input_ids"]
    left = family in CAUSAL
    mask = torch.ones_like(ids)
    pad = slice(0, 3) if left else slice(6, 9)
    mask[:, pad] = 0
    changed = ids.clone()
    changed[:, pad] = PAD
    for info in legal_cuts(model):
        front, _ = split_model(model, info.cut)
        assert front.pads_left == left
        rows = front(input_ids=ids, attention_mask=mask)
        assert torch.isfinite(rows).all()
        assert torch.equal(rows, front(input_ids=changed, attention_mask=mask))
        if info.cut.place != "output":
            assert not rows[:, pad].any()
            assert rows[:, 4].any()


def test_the_back_sees_the_rows_and_nothing_else() -> None:
    front, back = split_model(tiny("bert"), "encoder.1")
    hidden = torch.randn(2, 5, 32)
    longer = torch.cat([hidden, torch.zeros(2, 3, 32)], dim=1)
    with torch.no_grad():
        assert not torch.allclose(back(hidden).logits, back(longer).logits)  # zero rows are attended to
    with pytest.raises(TypeError):
        back(hidden, attention_mask=torch.ones(2, 5))
    assert isinstance(front, Front)
    assert isinstance(back, Back)


def test_extra_outputs_asked_for_in_the_settings_are_switched_off() -> None:
    model = tiny("bert", output_hidden_states=True, output_attentions=True, attn_implementation="eager")
    front, back = split_model(model, "encoder.1")
    inputs = tiny_inputs("bert")
    assert front.model(**inputs).keys() == {"last_hidden_state"}
    assert back(front(**inputs)).keys() == {"logits"}
    assert model.config.output_hidden_states


def test_a_half_keeps_what_was_frozen() -> None:
    model = tiny("bert")
    model.bert.embeddings.requires_grad_(False)
    front, back = split_model(model, "encoder.1")
    assert not any(p.requires_grad for p in front.model.embeddings.parameters())
    assert all(p.requires_grad for p in back.parameters())


def test_wrong_shapes_are_refused_in_one_line() -> None:
    front, back = split_model(tiny("bert"), "encoder.1")
    _, at_output = split_model(tiny("bert"), "output")
    bare = split_model(tiny("bert", "bare"), "encoder.1")[1]
    ids = torch.ones(2, 5, dtype=torch.long)
    wrong = [
        lambda: back(torch.zeros(2, 5, 31)),
        lambda: back(torch.zeros(5, 32)),
        lambda: at_output(torch.zeros(2, 5, 32)),
        lambda: bare(torch.zeros(2, 5, 32), labels=torch.zeros(2)),
        lambda: front(attention_mask=ids),
        lambda: front(input_ids=ids, attention_mask=ids[:, :4]),
        lambda: front(input_ids=torch.ones(1, 41, dtype=torch.long)),
    ]
    for call in wrong:
        with pytest.raises(InvalidInput) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("family", "most"), [("bert", 40), ("roberta", 38), ("gpt2", 40), ("vit", None)])
def test_a_front_knows_how_many_rows_have_positions(family: str, most: int | None) -> None:
    front, _ = split_model(tiny(family), "encoder.1")
    assert front.max_rows == most
    if most is not None:
        assert front(input_ids=torch.full((1, most), 5)).shape == (1, most, 32)


def test_a_half_introduces_itself() -> None:
    front, back = split_model(tiny("bert"), "encoder.2.ffn")
    assert "cut=encoder.2.ffn, width=32" in repr(front)
    assert back.architecture == "BertForSequenceClassification"
    assert front.settings["num_hidden_layers"] == 3


# Dimension maps


@pytest.mark.slow
def test_fewer_columns_cross() -> None:
    model = tiny("bert")
    pair = split_model(model, "encoder.2", width=8)
    hidden = pair.front(**tiny_inputs("bert"))
    assert hidden.shape == (2, 9, 8)
    assert pair.back(hidden).logits.shape == (2, 3)
    assert (pair.front.width, pair.back.width, str(pair.cut)) == (8, 8, "encoder.2")
    assert (pair.front.max_rows, pair.front.pads_left) == (40, False)
    report = check_split(pair, model)
    report.refuse()
    assert report.max_abs_difference is None


def test_padding_stays_zero_and_rows_stay_local() -> None:
    pair = split_model(tiny("bert"), "embeddings", width=8)
    inputs = tiny_inputs("bert")
    mask = torch.ones_like(inputs["input_ids"])
    mask[:, 6:] = 0
    hidden = pair.front(**inputs, attention_mask=mask)
    assert not hidden[:, 6:].any()
    assert pair.front.row_local


def test_the_maps_start_as_a_projection_and_its_transpose() -> None:
    pair = split_model(tiny("bert"), "encoder.2", width=8)
    narrow, widen = pair.front.narrow.weight, pair.back.widen.weight
    assert torch.allclose(narrow @ narrow.T, torch.eye(8), atol=1e-5)
    assert torch.equal(widen, narrow.T)
    assert widen.data_ptr() != narrow.data_ptr()


@pytest.mark.parametrize("width", [1, 0, -3, 32, 500])
def test_impossible_widths_are_refused(width: int) -> None:
    with pytest.raises(InvalidInput, match="width"):
        split_model(tiny("bert"), "encoder.1", width=width)


# --- poolings, projections and decisions at `output` ---------------------------------------------------


@pytest.mark.parametrize("family", [name for name in SETTINGS if name != "vit"])
def test_output_reads_the_mean_of_the_rows_that_are_no_padding(family: str) -> None:
    model = tiny(family, "bare").eval()
    front = split_model(model, "output", pooling="mean").front.eval()
    ids = torch.randint(5, VOCABULARY, (2, 7))
    mask = torch.ones_like(ids)
    if family in CAUSAL:
        mask[1, :3] = 0
    else:
        mask[1, 4:] = 0
    with torch.no_grad():
        rows = split_model(model, f"encoder.{len(legal_blocks(model))}").front.eval()
        found = front(input_ids=ids, attention_mask=mask)
        if family not in ("modernbert", *CAUSAL):  # those have a final norm behind the last block
            expected = rows(input_ids=ids, attention_mask=mask).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            torch.testing.assert_close(found[:, 0], expected)
        both = split_model(model, "output", pooling="mean2").front.eval()
        two = both(input_ids=ids, attention_mask=mask)
        assert two.shape == found.shape
        last = torch.nn.functional.normalize(found, dim=-1)
        torch.testing.assert_close((two - last).norm(dim=-1), torch.ones(2, 1))
        changed = ids.clone()
        changed[1, 1 if family in CAUSAL else 5] = 4
        torch.testing.assert_close(front(input_ids=changed, attention_mask=mask), found)
        torch.testing.assert_close(both(input_ids=changed, attention_mask=mask), two)
    assert found.shape == (2, 1, front.width)


def legal_blocks(model: Any) -> set[int]:
    return {info.cut.block for info in legal_cuts(model) if info.cut.block is not None}


@pytest.mark.slow
def test_a_pooling_of_ones_own_makes_another_model_and_says_so() -> None:
    model = tiny("bert").eval()
    own, mean = split_model(model, "output"), split_model(model, "output", pooling="mean")
    assert own.comparable
    assert not mean.comparable
    assert check_split(mean, model).problems == ()
    assert not any("pooler" in name for name, _ in mean.front.named_parameters())
    pooled = split_model(model, "output", pooling="pooler")
    inputs = tiny_inputs("bert")
    with torch.no_grad():
        torch.testing.assert_close(pooled.front(**inputs), own.front(**inputs), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("family", "cut", "pooling"),
    [("bert", "output", "last"), ("gpt2", "output", "cls"), ("distilbert", "output", "pooler"),
     ("bert", "encoder.1", "mean"), ("bert", "output", "median")],
)  # fmt: skip
def test_a_pooling_that_means_nothing_is_refused(family: str, cut: str, pooling: str) -> None:
    with pytest.raises(InvalidInput, match="pooling"):
        split_model(tiny(family), cut, pooling=pooling)


@pytest.mark.slow
def test_a_projected_front_gives_directions_and_a_decision_scores(tmp_path: Path) -> None:
    model = tiny("bert").eval()
    plain = split_model(model, "output", pooling="mean").front
    assert isinstance(plain, Front)
    torch.manual_seed(0)
    inputs, direction, score = tiny_inputs("bert"), ReadoutFront(plain, 5), ReadoutFront(plain, 5, 4)
    pair = Split(score.eval(), AnswerBack(4).eval())
    with torch.no_grad():
        found = direction.eval()(**inputs)
        assert found.shape == (len(inputs["input_ids"]), 1, 5)
        torch.testing.assert_close(found.norm(dim=-1), torch.ones(found.shape[:2]))
        scores = score(**inputs)
        assert scores.shape[2] == score.width == 4
    assert check_split(pair, model).problems == ()
    save_split(pair, tmp_path / "scores")
    save_split(Split(direction, pair.back), tmp_path / "directions")
    with torch.no_grad():
        for name, made, expected in (("scores", score, scores), ("directions", direction, found)):
            front = load_front(tmp_path / name / "front")
            assert isinstance(front, ReadoutFront)
            assert front.width == made.width
            torch.testing.assert_close(front(**inputs), expected, rtol=0, atol=0)
        back = load_back(tmp_path / "scores" / "back")
        torch.testing.assert_close(back(scores).logits, pair.back(scores).logits, rtol=0, atol=0)


def test_a_projection_needs_one_row() -> None:
    with pytest.raises(InvalidInput, match="output"):
        ReadoutFront(split_model(tiny("bert"), "encoder.1").front, 5)


def _giant_texts(family: str) -> tuple[Any, dict[str, Tensor], Tensor]:
    """A model in which the first row of a text is thousands of times as long as all others, as in trained
    decoders; texts padded on one side; and where that row is."""
    model, texts = tiny(family), tiny_inputs(family, rows=9)
    giant, table = PAD + 1, model.get_input_embeddings().weight
    with torch.no_grad():
        table[giant] *= 5000 / table[giant].norm()
    inputs, places = texts["input_ids"], torch.tensor([0, 0])
    inputs[inputs == giant] = giant + 1
    mask = torch.ones_like(inputs)
    if family in CAUSAL:
        mask[1, :3], places = 0, torch.tensor([0, 3])
    else:
        mask[1, 6:] = 0
    inputs[torch.arange(2), places] = giant
    return model, {"input_ids": inputs, "attention_mask": mask}, places


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "phi"])
def test_one_giant_row_between_blocks_does_not_drown_the_others(family: str) -> None:
    """The control is the same map on the rows as they are: bounded together, only the giant is left."""
    model, texts, places = _giant_texts(family)
    front = split_model(model, "encoder.2", width=4).front
    assert isinstance(front, NarrowFront)
    with torch.no_grad():
        level, plain = front(**texts), front.narrow(front.plain(**texts))
        rows = front.rows(**texts)
    assert rows.norm(dim=-1).max() <= rows.shape[-1] ** 0.5 * 1.0001
    assert not level[texts["attention_mask"] == 0].any(), "rows of PAD are zero"
    for matrix, drowned in ((level, False), (plain, True)):
        energy = matrix.square().sum(dim=-1)
        share = energy[torch.arange(2), places] / energy.sum(dim=-1)
        assert bool((share > 0.99).all()) is drowned


@pytest.mark.parametrize(
    ("family", "cut"), [("bert", "encoder.2"), ("gpt2", "embeddings"), ("gpt2", "output")]
)
def test_rows_that_a_norm_made_are_left_as_they_are(family: str, cut: str) -> None:
    front, back = split_model(tiny(family), cut, width=4)
    assert isinstance(front, NarrowFront)
    assert isinstance(back, NarrowBack)
    texts = tiny_inputs(family)
    with torch.no_grad():
        assert torch.equal(front(**texts), front.narrow(front.plain(**texts)))
        assert torch.equal(back(front(**texts)).logits, back.plain(back.widen(front(**texts))).logits)
    assert not [name for half in (front, back) for name in half.state_dict() if "usual" in name]


def test_rows_enter_a_pre_norm_back_as_long_as_is_usual_however_short_they_came() -> None:
    """A residual sum that begins near zero would be overrun by what the first block adds."""
    front, back = split_model(tiny("llama"), "encoder.2", width=4)
    assert isinstance(front, NarrowFront)
    assert isinstance(back, NarrowBack)
    entered = []
    back.plain.model.register_forward_pre_hook(
        lambda module, _, given: entered.append(given["inputs_embeds"]), with_kwargs=True
    )
    with torch.no_grad():
        hidden = front(**tiny_inputs("llama"))
        logits = [back(hidden * factor).logits for factor in (1.0, 1e-3)]
    assert front.usual_length is not None
    for rows in entered:
        torch.testing.assert_close(rows.norm(dim=-1), front.usual_length.expand(rows.shape[:2]))
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


def test_what_is_usual_is_measured_on_no_text_and_stored_with_the_halves(tmp_path: Path) -> None:
    model = tiny("llama")
    pair = split_model(model, "encoder.1", width=4)
    assert isinstance(pair.front, NarrowFront)
    again = split_model(model, "encoder.1", width=4).front
    assert torch.equal(pair.front.usual_length, again.usual_length)  # type: ignore[union-attr, arg-type]
    assert pair.front.usual_length != 1.0
    save_split(pair, tmp_path)
    found, back = load_front(tmp_path / "front"), load_back(tmp_path / "back")
    assert torch.equal(found.usual_length, pair.front.usual_length)  # type: ignore[union-attr, arg-type]
    assert torch.equal(back.usual_length, pair.front.usual_length)  # type: ignore[union-attr, arg-type]
    check_split(pair, model).refuse()
