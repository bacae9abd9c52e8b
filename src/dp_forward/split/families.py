"""The table of model families: names of modules, and nothing else.

A row says where a Hugging Face base model keeps its blocks, which modules stand before the first block (they
go to the front) and after the last one, and how a block is wired inside. `split_model` does the rest with
Hugging Face's own classes. To add a family, see docs/how-to/add-a-family.md.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from dp_forward.errors import InvalidInput, refuse_if

__all__ = ["FAMILIES"]

Head = Literal["bare", "classifier", "masked_lm"]
Readout = Literal["pooler", "first", "mean", "mean2", "last", "config"]

_TEXT = ("input_ids", "attention_mask", "token_type_ids")
_TEXT_WITHOUT_TYPES = ("input_ids", "attention_mask")


@dataclass(frozen=True, slots=True)
class Wiring:
    """The inside of a block of a ``style`` (post- or pre-norm), as paths below the block.

    `attention` is called with the block's own arguments; `projection` and `ffn` are chains of modules that
    take one tensor. `attention_norm` and `ffn_norm` stand after their residual sum in a post-norm block and
    before their part in a pre-norm one. `qkv` and `merge` are paths below `attention`: the projections into
    Q, K and V (one, where they are fused), and the output projection, only where `residual_inside` holds.
    """

    style: Literal["post", "pre"]
    attention: str
    qkv: tuple[str, ...]
    attention_norm: str
    ffn: tuple[str, ...]
    ffn_norm: str
    projection: tuple[str, ...] = ()
    residual_inside: bool = False
    """The attention module adds the residual and norms by itself (ALBERT)."""
    merge: str = ""
    reads: tuple[str, ...] = ()
    """Plain attributes of a block that Hugging Face's loop over the blocks reads."""
    gives_tuple: bool = False
    """Hugging Face's loop takes the first of what a block returns (MPNet)."""
    only_where: tuple[str, Any] | None = None
    """A setting and its value with which a block is wired so; with another it is cut at its ends only."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row, for a ``model_type`` of Hugging Face: class names, and paths below the base model.

    The classes are ``bare``, ``classifier`` and ``masked_lm``; ``blocks`` is a path, and `Wiring` goes on.
    """

    model_type: str
    bare: str
    classifier: str
    blocks: str
    entry: tuple[str, ...]
    """Everything before the first block. In the back the rows pass these by."""
    wiring: Wiring | None = None
    """None where attention and feed-forward read the same rows (Phi): then no cut is inside a block."""
    masked_lm: str = ""
    final: tuple[str, ...] = ()
    """What follows the last block, the final norm; it lies in the back unless the cut is `output`."""
    readout: Readout = "first"
    """What the classifier reads; "config" means `config.classifier_pooling`."""
    inputs: tuple[str, ...] = _TEXT
    back_input: str = "inputs_embeds"
    dtype_probe: str = ""
    """A module below `entry[0]` whose `weight.dtype` Hugging Face reads even when the rows are given."""
    fold_qkv: str = ""
    """An entry module after which Hugging Face fixes the width of its output. At `qkv` the rows pass it
    folded as [.., 3, width], so that their last axis is the model's own."""
    shared_blocks: bool = False
    """One group of weights is run several times (ALBERT)."""
    positions_after_pad: bool = False
    """Positions count from `pad_token_id + 1` (RoBERTa)."""
    causal: bool = False
    """A row sees only earlier rows; texts are padded on the left and the last row is read."""


def _named(row: Family, model_type: str, stem: str, **changes: Any) -> Family:
    """The row of a relative, the names of whose classes begin with ``stem``."""
    names: dict[str, Any] = {"bare": f"{stem}Model", "classifier": f"{stem}ForSequenceClassification"}
    masked_lm = f"{stem}ForMaskedLM" if row.masked_lm else ""
    return replace(row, model_type=model_type, masked_lm=masked_lm, **names, **changes)


_BERT = Family(
    model_type="bert",
    bare="BertModel",
    classifier="BertForSequenceClassification",
    masked_lm="BertForMaskedLM",
    blocks="encoder.layer",
    entry=("embeddings",),
    readout="pooler",
    wiring=Wiring(
        style="post",
        attention="attention.self",
        qkv=("query", "key", "value"),
        projection=("attention.output.dense", "attention.output.dropout"),
        attention_norm="attention.output.LayerNorm",
        ffn=("intermediate", "output.dense", "output.dropout"),
        ffn_norm="output.LayerNorm",
    ),
)

_PRE_NORM = Wiring(
    style="pre",
    attention="self_attn",
    qkv=("q_proj", "k_proj", "v_proj"),
    attention_norm="input_layernorm",
    ffn=("mlp",),
    ffn_norm="post_attention_layernorm",
)

_LLAMA = Family(
    model_type="llama",
    bare="LlamaModel",
    classifier="LlamaForSequenceClassification",
    blocks="layers",
    entry=("embed_tokens",),
    final=("norm",),
    readout="last",
    inputs=_TEXT_WITHOUT_TYPES,
    causal=True,
    wiring=_PRE_NORM,
)

# A second norm ends each branch. The table scales by sqrt(width), in the front alone.
_GEMMA2_WIRING = replace(
    _PRE_NORM,
    projection=("post_attention_layernorm",),
    ffn=("mlp", "post_feedforward_layernorm"),
    ffn_norm="pre_feedforward_layernorm",
)

_ROWS = (
    _BERT,
    _named(_BERT, "roberta", "Roberta", readout="first", positions_after_pad=True),
    _named(_BERT, "xlm-roberta", "XLMRoberta", readout="first", positions_after_pad=True),
    _named(
        _BERT,
        "mpnet",
        "MPNet",
        # Its relative positions follow from the shape; each half has the small table that weighs them.
        readout="first",
        inputs=_TEXT_WITHOUT_TYPES,
        positions_after_pad=True,
        wiring=Wiring(
            style="post",
            attention="attention.attn",
            qkv=("q", "k", "v"),
            projection=("attention.dropout",),
            attention_norm="attention.LayerNorm",
            ffn=("intermediate", "output.dense", "output.dropout"),
            ffn_norm="output.LayerNorm",
            gives_tuple=True,
        ),
    ),
    _named(_BERT, "electra", "Electra", entry=("embeddings", "embeddings_project"), readout="first"),
    _named(
        _BERT,
        "distilbert",
        "DistilBert",
        blocks="transformer.layer",
        readout="first",
        inputs=_TEXT_WITHOUT_TYPES,
        wiring=Wiring(
            style="post",
            attention="attention",
            qkv=("q_lin", "k_lin", "v_lin"),
            attention_norm="sa_layer_norm",
            ffn=("ffn",),
            ffn_norm="output_layer_norm",
        ),
    ),
    _named(
        _BERT,
        "albert",
        "Albert",
        blocks="encoder.albert_layer_groups",
        entry=("embeddings", "encoder.embedding_hidden_mapping_in"),
        shared_blocks=True,
        wiring=Wiring(
            style="post",
            attention="albert_layers.0.attention",
            qkv=("query", "key", "value"),
            residual_inside=True,
            only_where=("inner_group_num", 1),
            merge="dense",
            attention_norm="albert_layers.0.attention.LayerNorm",
            ffn=("albert_layers.0.ffn", "albert_layers.0.activation", "albert_layers.0.ffn_output"),
            ffn_norm="albert_layers.0.full_layer_layer_norm",
        ),
    ),
    _named(
        _BERT,
        "modernbert",
        "ModernBert",
        blocks="layers",
        final=("final_norm",),
        readout="config",
        inputs=_TEXT_WITHOUT_TYPES,
        wiring=replace(
            _PRE_NORM,
            attention="attn",
            qkv=("Wqkv",),
            attention_norm="attn_norm",
            ffn_norm="mlp_norm",
            reads=("attention_type",),
        ),
    ),
    Family(
        model_type="vit",
        bare="ViTModel",
        classifier="ViTForImageClassification",
        blocks="layers",
        entry=("embeddings",),
        final=("layernorm",),
        inputs=("pixel_values",),
        back_input="pixel_values",
        dtype_probe="patch_embeddings.projection",
        wiring=replace(
            _PRE_NORM,
            attention="attention",
            projection=("dropout",),
            attention_norm="layernorm_before",
            ffn=("mlp", "dropout"),
            ffn_norm="layernorm_after",
        ),
    ),
    _named(
        _LLAMA,
        "gpt2",
        "GPT2",
        blocks="h",
        entry=("wte", "wpe", "drop"),
        final=("ln_f",),
        inputs=_TEXT,
        fold_qkv="drop",
        wiring=replace(_PRE_NORM, attention="attn", qkv=("c_attn",), attention_norm="ln_1", ffn_norm="ln_2"),
    ),
    _LLAMA,
    _named(_LLAMA, "qwen2", "Qwen2"),
    _named(_LLAMA, "qwen3", "Qwen3"),
    _named(_LLAMA, "mistral", "Mistral"),
    _named(_LLAMA, "gemma", "Gemma"),
    _named(_LLAMA, "gemma2", "Gemma2", wiring=_GEMMA2_WIRING),
    _named(_LLAMA, "gemma3_text", "Gemma3Text", wiring=_GEMMA2_WIRING),
    _named(
        _LLAMA, "phi", "Phi", entry=("embed_tokens", "embed_dropout"), final=("final_layernorm",), wiring=None
    ),
    _named(
        _LLAMA,
        "phi3",
        "Phi3",
        wiring=replace(
            _PRE_NORM, qkv=("qkv_proj",), projection=("resid_attn_dropout",), ffn=("mlp", "resid_mlp_dropout")
        ),
    ),
    _named(
        _LLAMA,
        "opt",
        "OPT",
        blocks="decoder.layers",
        entry=("decoder.embed_tokens", "decoder.embed_positions", "decoder.project_in"),
        final=("decoder.final_layer_norm", "decoder.project_out"),
        wiring=replace(
            _PRE_NORM,
            attention_norm="self_attn_layer_norm",
            ffn=("fc1", "activation_fn", "fc2"),
            ffn_norm="final_layer_norm",
            only_where=("do_layer_norm_before", True),
        ),
    ),
    _named(
        _LLAMA,
        "gpt_neox",
        "GPTNeoX",
        entry=("embed_in", "emb_dropout"),
        final=("final_layer_norm",),
        wiring=replace(
            _PRE_NORM,
            attention="attention",
            qkv=("query_key_value",),
            projection=("post_attention_dropout",),
            ffn=("mlp", "post_mlp_dropout"),
            only_where=("use_parallel_residual", False),
        ),
    ),
)

FAMILIES: dict[str, Family] = {row.model_type: row for row in _ROWS}
"""`config.model_type` -> row."""


_REFUSED: Final = {
    "deberta-v2": "its convolution goes around the first block, and a half without blocks has no output",
    "t5": "its first block alone makes the position bias that the later ones read",
}
"""`config.model_type` -> why one tensor does not carry its blocks."""


def family_of(model: Any) -> Family:
    """The row of a model.

    Edges: an architecture without a row is refused, and the message says how to add one.
    """
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None and model_type in _REFUSED:
        rule = "be a model that one tensor carries from block to block"
        raise InvalidInput("model", rule, f"{model_type}: {_REFUSED[model_type]}", "Take another encoder.")
    if family is None:
        rule = f"be a Hugging Face model of a known family ({', '.join(FAMILIES)})"
        remedy = "One table row adds a family: docs/how-to/add-a-family.md."
        raise InvalidInput("model", rule, model_type or type(model).__name__, remedy)
    return family


def wiring_of(model: Any) -> Wiring | None:
    """How a block of a model is wired inside; None where it is cut at its ends only."""
    wiring, settings = family_of(model).wiring, base_of(model).config
    if wiring is None or wiring.only_where is None:
        return wiring
    name, wanted = wiring.only_where
    return wiring if getattr(settings, name) == wanted else None


def head_of(model: Any) -> Head:
    """Which of the supported heads a model wears.

    Edges: the class is matched by its exact name, as what a subclass does between the halves is unknown.
    """
    family, name = family_of(model), type(model).__name__
    heads: dict[str, Head] = {family.bare: "bare", family.classifier: "classifier"}
    if family.masked_lm:
        heads[family.masked_lm] = "masked_lm"
    rule = f"have a supported head ({', '.join(heads)})"
    refuse_if(name not in heads, "model", rule, name, f"Load it as {family.classifier}.")
    return heads[name]


def base_of(model: Any) -> Any:
    """The model without its head."""
    return model if head_of(model) == "bare" else getattr(model, model.base_model_prefix)


POOLINGS: Final[dict[str, Readout]] = {
    "mean": "mean",
    "mean2": "mean2",
    "cls": "first",
    "pooler": "pooler",
    "last": "last",
}
"""What `output` can be told to read, in the words of sentence encoders -> how it is read.

``mean2`` is the direction of the mean row of the last block and that of the one before, added up: what a
sentence encoder has unlearnt in its last block is often still there one block earlier.
"""


def readout_of(model: Any, pooling: str | None = None) -> Readout | None:
    """What `output` means for a model; None where no single row is read.

    With a ``pooling`` (one of `POOLINGS`) the row is made so, whatever the model's own head reads.
    """
    head = head_of(model)
    if head == "masked_lm":
        return None
    if pooling is not None:
        pooler = ["pooler"] if getattr(base_of(model), "pooler", None) is not None else []
        known = ["mean", "mean2", "last"] if family_of(model).causal else ["mean", "mean2", "cls", *pooler]
        if pooling not in known:
            raise InvalidInput("pooling", f"be one of {', '.join(known)}", repr(pooling), "Try mean.")
        return POOLINGS[pooling]
    if head == "bare":
        return "pooler" if getattr(model, "pooler", None) is not None else None
    family = family_of(model)
    if family.readout != "config":
        return family.readout
    return "mean" if model.config.classifier_pooling == "mean" else "first"
