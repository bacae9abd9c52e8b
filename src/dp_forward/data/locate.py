"""Which local files hold a split: told by a word in the file's name (train / validation, dev / test).

A wrong guess here would train and test on the same rows, so nothing is guessed: a file whose name says
another split is refused, and one whose name says none must tell its rows apart (`Task.row_split`), or it
counts as `train`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from dp_forward.data.files import is_data_file
from dp_forward.data.tasks import SPLITS
from dp_forward.errors import InvalidInput

__all__ = ["Located", "locate"]

_SHARD = re.compile(r"(?P<stem>.*)-(?P<index>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<rest>\..*)")


class Located(NamedTuple):
    """The files to read one after the other, and whether all of their rows belong to the split."""

    files: tuple[Path, ...]
    whole: bool


def locate(source: Path, split: str) -> Located:
    """The files of a split in a folder, or the one file that was named."""
    if source.is_dir():
        return _in_folder(source, split)
    if not source.is_file():
        raise InvalidInput("data", "be a file or a folder", repr(str(source)), "Check the path.")
    said = _split_said(source)
    if said is not None and said != split:
        raise InvalidInput(
            "data",
            f"hold the split {split}",
            f"{source.name}, whose name says {said}",
            "Name a folder with one file for each split.",
        )
    return Located((source,), whole=said is not None)


def _in_folder(folder: Path, split: str) -> Located:
    there = sorted(path for path in folder.iterdir() if path.is_file() and is_data_file(path))
    said = [path for path in there if _split_said(path) == split]
    shards = [match for path in said if (match := _SHARD.fullmatch(path.name))]
    if said and len(shards) == len(said):
        _check_shards(shards, split)
    elif len(said) > 1:
        raise InvalidInput(
            "data",
            f"hold one file of the split {split}",
            _names(said),
            "Name one of them, or remove the others.",
        )
    if said:
        return Located(tuple(said), whole=True)
    silent = [path for path in there if _split_said(path) is None]
    if len(silent) == 1:
        return Located((silent[0],), whole=False)
    raise InvalidInput(
        "data",
        f"hold a file of the split {split} (one of {', '.join(SPLITS[split])} in its name)",
        _names(there) if there else f"no data file in {folder.name or folder}",
        "Add it, or rename a file.",
    )


def _split_said(path: Path) -> str | None:
    words = set(re.split(r"[^a-z0-9]+", path.name.lower()))
    said = [split for split, names in SPLITS.items() if words.intersection(names)]
    return said[0] if len(said) == 1 else None


def _check_shards(shards: list[re.Match[str]], split: str) -> None:
    """NAME-00000-of-00003.parquet must come with all of its sisters: a part would pass for the whole."""
    wholes = {(shard["stem"], shard["count"], shard["rest"]) for shard in shards}
    indices = [int(shard["index"]) for shard in shards]
    if len(wholes) != 1 or indices != list(range(int(shards[0]["count"]))):
        raise InvalidInput(
            "data",
            f"hold one file of the split {split}, or all of its shards",
            f"{len(shards)} of them",
            "Fetch the missing ones.",
        )


def _names(paths: list[Path], most: int = 8) -> str:
    names = ", ".join(path.name for path in paths[:most])
    return names if len(paths) <= most else f"{names} and {len(paths) - most} more"
