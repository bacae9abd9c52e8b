"""What the tables are about: a model, and how it is cut. Every table is made for the model at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["TASKS", "ModelSetup", "TaskSetting"]


@dataclass(frozen=True)
class TaskSetting:
    """How a task is run: what the paper calls it, how many rows, where it is measured."""

    name: str
    title: str
    rows: int
    split: str = "validation"
    limit: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """As settings of a plan."""
        chosen: dict[str, Any] = {"task": self.name, "rows": self.rows, "evaluation_split": self.split}
        return chosen if self.limit is None else {**chosen, "evaluation_limit": self.limit}


TASKS: Final[Mapping[str, TaskSetting]] = {
    "sst2": TaskSetting("sst2", "SST-2", 64),
    "imdb": TaskSetting("imdb", "IMDb", 128, "test", 5000),
    "qqp": TaskSetting("qqp", "QQP", 64),
}


@dataclass(frozen=True)
class ModelSetup:
    """The model of all tables: its name, how many blocks, how wide."""

    model: str = "minilm"
    blocks: int = 6
    columns: int = 384

    @classmethod
    def of(cls, model: str, *, folder: Path | None = None) -> ModelSetup:
        """From the settings of a checkpoint, in a ``folder`` or where its name says; no weights are read."""
        from transformers import AutoConfig

        from dp_forward.errors import InvalidInput
        from dp_forward.split.pretrained import model_folder

        try:
            found = AutoConfig.from_pretrained(model_folder(model) if folder is None else folder)
            return cls(model, int(found.num_hidden_layers), int(found.hidden_size))
        except (OSError, ValueError, AttributeError):
            raise InvalidInput(
                "model", "be a transformer that can be found", model, "A folder, or a name."
            ) from None

    @property
    def positions(self) -> list[str]:
        """All cuts between blocks, from the first to the last."""
        return ["embeddings", *[f"encoder.{k}" for k in range(1, self.blocks + 1)], "output"]

    @property
    def some_positions(self) -> list[str]:
        """Five cuts: the two ends, the first block, the middle, the last block but one."""
        inner = dict.fromkeys((1, max(1, self.blocks // 2), max(1, self.blocks - 1)))
        return ["embeddings", *[f"encoder.{k}" for k in inner], "output"]
