"""Zero noise: the two halves are the whole model.

Where no residual is dropped the difference is exactly 0.0. Where one is dropped, the reference is the whole
model with forward hooks that take the residual away; it shares no code with the package.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from dp_forward.split import Cut, legal_cuts, split_model
from tiny_models import CAUSAL, MASKED_LM, RELATIVES, SETTINGS, WHOLE_BLOCKS, minilm_folder, tiny, tiny_inputs

CUT_INSIDE = [family for family in SETTINGS if family not in WHOLE_BLOCKS]
HEADS = [(family, "classifier") for family in SETTINGS] + [
    (family, head)
    for family in SETTINGS
    for head in ("bare", "masked_lm")
    if family not in RELATIVES and (head == "bare" or family in MASKED_LM)
]

# Where the hooks go. Post-norm: (what is added to the residual, the norm that reads the sum), for each point.
_BERT = {
    "attention": ("attention.output.dense", "attention.output.LayerNorm"),
    "ffn": ("output.dense", "output.LayerNorm"),
}
_DISTILBERT = {"attention": ("attention", "sa_layer_norm"), "ffn": ("ffn", "output_layer_norm")}
_ALBERT = {
    "attention": ("albert_layers.0.attention.dense", "albert_layers.0.attention.LayerNorm"),
    "ffn": ("albert_layers.0.ffn_output", "albert_layers.0.full_layer_layer_norm"),
}
_MPNET = {
    "attention": ("attention.dropout", "attention.LayerNorm"),
    "ffn": ("output.dense", "output.LayerNorm"),
}
POST = dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), _BERT) | {
    "distilbert": _DISTILBERT,
    "albert": _ALBERT,
    "mpnet": _MPNET,
}
# Pre-norm: (the norm before attention, the feed-forward part).
_LLAMA = ("input_layernorm", "mlp")
PRE = {
    "modernbert": ("attn_norm", "mlp"),
    "vit": ("layernorm_before", "mlp"),
    "gpt2": ("ln_1", "mlp"),
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "mistral": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": ("input_layernorm", "post_feedforward_layernorm"),
    "gemma3_text": ("input_layernorm", "post_feedforward_layernorm"),
    "phi3": _LLAMA,
    "opt": ("self_attn_layer_norm", "fc2"),
}
BLOCKS = {
    "distilbert": "transformer.layer",
    "albert": "encoder.albert_layer_groups",
    "gpt2": "h",
    "opt": "decoder.layers",
} | dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra", "mpnet"), "encoder.layer")


class _Seen:
    """What the hooks of one forward pass have seen; hooks act only in run `wanted` of the block."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.run, self.value = wanted, 0, torch.empty(0)

    @property
    def now(self) -> bool:
        return self.run == self.wanted

    def start(self, *_: Any) -> None:
        self.run += 1

    def keep(self, _module: Any, _args: Any, output: Any) -> None:
        if self.now:
            self.value = output[0] if isinstance(output, tuple) else output

    def keep_rows_and_zero_them(self, _module: Any, args: Any) -> Any:
        if not self.now:
            return None
        self.value = args[0]
        return (torch.zeros_like(args[0]), *args[1:])

    def give_instead_of_input(self, _module: Any, _args: Any) -> Any:
        return (self.value,) if self.now else None

    def give_instead_of_output(self, _module: Any, _args: Any, output: Any) -> Any:
        return self.value.view_as(output) if self.now else None  # OPT feeds the rows of all texts as one list


@contextmanager
def residual_removed(model: Any, family: str, cut: Cut) -> Iterator[_Seen]:
    """The whole model, with the residual at one cut taken as zero."""
    base = model.base_model
    blocks = base.get_submodule(BLOCKS.get(family, "layers"))
    assert cut.block is not None
    assert cut.point is not None
    shared = family == "albert"  # one block that runs several times
    block, seen = blocks[0 if shared else cut.block - 1], _Seen(cut.block if shared else 1)
    point = "attention" if cut.point == "qkv" else cut.point
    hooks = [block.register_forward_pre_hook(seen.start)]
    if family in POST:
        added, norm = POST[family][point]
        hooks.append(block.get_submodule(added).register_forward_hook(seen.keep))
        hooks.append(block.get_submodule(norm).register_forward_pre_hook(seen.give_instead_of_input))
    elif point == "attention":
        # The block runs on zeros, so its own residual is zero; only the norm before attention sees the rows.
        norm, _ = PRE[family]
        hooks.append(block.register_forward_pre_hook(seen.keep_rows_and_zero_them))
        hooks.append(block.get_submodule(norm).register_forward_pre_hook(seen.give_instead_of_input))
    else:
        _, ffn = PRE[family]
        hooks.append(block.get_submodule(ffn).register_forward_hook(seen.keep))
        hooks.append(block.register_forward_hook(seen.give_instead_of_output))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _main(output: Any, *, pooled: bool = False) -> Tensor:
    for name in ("logits", "pooler_output" if pooled else "last_hidden_state"):
        if name in output:
            return output[name]
    raise AssertionError(list(output))


@torch.no_grad()
def _difference(model: Any, family: str, cut: Cut, inputs: dict[str, Tensor]) -> float:
    front, back = split_model(model, cut, allow_vocabulary_head=True)
    pooled = cut.place == "output"
    if cut.drops_residual:
        with residual_removed(model, family, cut):
            wanted = _main(model(**inputs))
    elif pooled and family in CAUSAL:
        wanted = _head_on_the_last_row(model, inputs)
    else:
        wanted = _main(model(**inputs), pooled=pooled)
    hidden = front(**inputs)
    assert hidden.shape[0] == wanted.shape[0]
    assert hidden.shape[2] == front.width == back.width
    return float((_main(back(hidden), pooled=pooled) - wanted).abs().max())


def _head_on_the_last_row(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Hugging Face applies `score` to all rows and picks the last: the same numbers, but a product with many
    rows may round differently than one with one row. So the order is turned here, and the whole is close."""
    logits: Tensor = model.score(model.base_model(**inputs).last_hidden_state[:, -1:])[:, 0]
    assert torch.allclose(logits, model(**inputs).logits, rtol=1e-5, atol=1e-6)
    return logits


def _table(model: Any, family: str, head: str, inputs: dict[str, Tensor]) -> dict[str, float]:
    table = {str(i.cut): _difference(model, family, i.cut, inputs) for i in legal_cuts(model)}
    for cut, difference in table.items():
        print(f"{family:<11} {head:<10} {cut:<25} {difference:g}")
    return table


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), HEADS)
def test_zero_noise_gives_the_whole_model_exactly(family: str, head: str) -> None:
    table = _table(tiny(family, head), family, head, tiny_inputs(family))
    assert set(table.values()) == {0.0}


@pytest.mark.parametrize("family", SETTINGS)
def test_a_cut_says_whether_it_is_exact(family: str) -> None:
    inexact = {str(info.cut) for info in legal_cuts(tiny(family)) if not info.exact}
    if family in WHOLE_BLOCKS:
        assert inexact == {"output"}
        return
    dropped = {f"encoder.{k}.{point}" for k in (1, 2, 3) for point in ("attention", "ffn")}
    assert inexact == dropped | {"encoder.1.qkv"} | ({"output"} if family in CAUSAL else set())


@pytest.mark.slow
@pytest.mark.skipif(minilm_folder() is None, reason="the demo extra is not installed")
def test_the_real_minilm_splits_exactly_at_every_cut() -> None:
    model = transformers.AutoModel.from_pretrained(minilm_folder()).eval()
    ids = torch.randint(1000, 30000, (2, 12), generator=torch.Generator().manual_seed(0))
    table = _table(model, "bert", "bare*", {"input_ids": ids})
    assert set(table.values()) == {0.0}
    assert len(table) == 33


@pytest.mark.parametrize("family", CUT_INSIDE)
def test_dropping_a_residual_matters(family: str) -> None:
    """The control: against the untouched model, the cuts that drop a residual must differ."""
    model, inputs = tiny(family), tiny_inputs(family)
    with torch.no_grad():
        whole = model(**inputs).logits
        for cut in ("encoder.1.qkv", "encoder.2.attention", "encoder.2.ffn"):
            front, back = split_model(model, cut)
            assert float((back(front(**inputs)).logits - whole).abs().max()) > 1e-3


@pytest.mark.parametrize("family", SETTINGS)
@torch.no_grad()
def test_what_crosses_is_the_tensor_that_the_cut_names(family: str) -> None:
    model, inputs = tiny(family), tiny_inputs(family)
    if family in POST:
        cut = Cut("encoder", 2, "attention")
        with residual_removed(model, family, cut) as seen:
            model(**inputs)
        assert torch.equal(split_model(model, cut)[0](**inputs), seen.value)
    states = model.base_model(**inputs, output_hidden_states=True).hidden_states
    assert torch.equal(split_model(model, "embeddings")[0](**inputs), states[0])
    assert torch.equal(split_model(model, "encoder.2")[0](**inputs), states[2])


@pytest.mark.parametrize("family", [f for f in SETTINGS if f != "vit"])
def test_a_mask_without_padding_changes_nothing(family: str) -> None:
    inputs = tiny_inputs(family)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inside = () if family in WHOLE_BLOCKS else (Cut("encoder", 2, "attention_norm"),)
    for cut in (Cut("encoder", 1), Cut("output"), *inside):
        assert _difference(tiny(family), family, cut, inputs) == 0.0


@pytest.mark.parametrize("family", SETTINGS)
def test_every_attention_of_hugging_face_splits_exactly(family: str) -> None:
    # With a cache, Hugging Face copies K and V into another layout, and matmul rounds that differently.
    model = tiny(family, attn_implementation="eager", use_cache=False)
    inside = (Cut("encoder", 1, "qkv"), Cut("encoder", 2, "attention_norm"))
    for cut in (Cut("encoder", 2), *(() if family in WHOLE_BLOCKS else inside)):
        assert _difference(model, family, cut, tiny_inputs(family)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "gpt2", "vit", "llama"])
def test_half_precision_stays_half_precision(family: str) -> None:
    model, inputs = tiny(family).to(torch.bfloat16), tiny_inputs(family)
    for cut in (Cut("embeddings"), Cut("encoder", 2)):
        front, back = split_model(model, cut)
        assert front(**inputs).dtype == back(front(**inputs)).logits.dtype == torch.bfloat16
        assert _difference(model, family, cut, inputs) == 0.0


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_reads_what_its_settings_say(pooling: str) -> None:
    model = tiny("modernbert", classifier_pooling=pooling)
    inputs = tiny_inputs("modernbert")
    assert _difference(model, "modernbert", Cut("output"), inputs) == 0.0
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, 6:] = 0
    assert _difference(model, "modernbert", Cut("output"), inputs | {"attention_mask": mask}) == 0.0


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_a_causal_back_reads_the_last_row_of_each_record_without_a_pad_token(family: str) -> None:
    model, inputs = tiny(family, pad_token_id=None), tiny_inputs(family, batch=3)
    one_by_one = torch.cat([model(input_ids=ids[None]).logits for ids in inputs["input_ids"]])
    for cut in ("embeddings", "encoder.2", "output"):
        front, back = split_model(model, cut)
        assert torch.allclose(back(front(**inputs)).logits, one_by_one, atol=1e-5)
    assert model.config.pad_token_id is None


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_albert_with_any_number_of_groups_splits_exactly(groups: int) -> None:
    model = tiny("albert", blocks=4, num_hidden_groups=groups, inner_group_num=2)
    for info in legal_cuts(model):
        assert _difference(model, "albert", info.cut, tiny_inputs("albert")) == 0.0


def test_electra_without_a_projection_splits_exactly() -> None:
    model = tiny("electra", embedding_size=32)
    for cut in (Cut("embeddings"), Cut("encoder", 2)):
        assert _difference(model, "electra", cut, tiny_inputs("electra")) == 0.0


def test_pad_tokens_of_roberta_do_not_shift_the_other_positions() -> None:
    """Right padding: our positions by place and Hugging Face's count agree on every real token."""
    model, inputs = tiny("roberta"), tiny_inputs("roberta")
    ids, mask = inputs["input_ids"], torch.ones_like(inputs["input_ids"])
    ids[0, 5:], mask[0, 5:] = 1, 0
    with torch.no_grad():
        whole = model.roberta(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[2]
        ours = split_model(model, "encoder.2")[0](input_ids=ids, attention_mask=mask)
    assert torch.equal(ours, whole.masked_fill(mask[..., None] == 0, 0.0))


def test_the_reference_shares_no_code_with_the_package() -> None:
    assert not any(isinstance(part, nn.Module) for part in vars(_Seen).values())
    assert set(POST) | set(PRE) == set(CUT_INSIDE)
