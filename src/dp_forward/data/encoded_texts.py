"""Token ids of a whole split, compact in memory, as a torch data set that gives whole batches.

The texts are dropped as soon as they are tokenised. Token ids still tell the text: an `EncodedTexts` belongs
on the user's side, like the front that reads it.
"""

import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset

from dp_forward.data.fingerprints import PRINT_COLUMNS, fingerprint_records, note_prints
from dp_forward.data.public_text import cut_into_sentences
from dp_forward.data.records import Record, read_records, sample_records
from dp_forward.data.tasks import Task
from dp_forward.data.tokens import FixedLength
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy.checks import probability
from dp_forward.progress import Count

__all__ = ["encode_records"]

_CHUNK = 1024


class EncodedTexts(Dataset[dict[str, Tensor]]):
    """The records of a split as token ids: 4 bytes a token, and no text.

    ``columns`` are read-only arrays: ``ids`` [N, n] int32, ``lengths`` [N] int32, and where there are any
    ``types`` [N, n] uint8 and ``labels`` [N] int64. ``prints`` [N, 17] uint64 are their fingerprints. Where
    ``pads_left``, padding comes first. ``cut`` is how many texts were longer than a row.

    `__getitems__` gives a whole batch: a loader needs ``collate_fn=collate``, a Hugging Face Trainer
    ``data_collator=collate`` and ``remove_unused_columns=False``.

    Guarantees:
        Every item has the same ``length`` rows. ``repr`` shows numbers of records and rows only.
        Nothing here changes in place: `with_labels`, `subset` and `split_off` give new objects.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], *, pads_left: bool, cut: int = 0) -> None:
        for column in columns.values():
            column.setflags(write=False)
        self.columns = dict(columns)
        self.pads_left = pads_left
        self.cut = cut
        """How many texts were longer when they were read; a part of the records does not know it."""
        self.origins: NDArray[np.uint64] | None = None
        """Fingerprints of the texts that the records were cut from, where they are pieces."""

    @classmethod
    def from_records(
        cls, records: Iterable[Record], fixed: FixedLength, *, progress: Count | None = None
    ) -> "EncodedTexts":
        """Tokenise record by record, and tell ``progress`` how many; at most 1024 texts are held at a time.

        Edges:
            No record at all, or labels on some records only, is refused.
        """
        source, done, cut = iter(records), 0, 0
        # A buffer grows in place: joining parts at the end would hold everything twice.
        buffers: dict[str, bytearray] = {}
        part: dict[str, NDArray[Any]] = {}
        singles, unlabelled = set[bool](), set[bool]()
        while some := list(islice(source, _CHUNK)):
            singles |= {record.second is None for record in some}
            unlabelled |= {record.label is None for record in some}
            rule = "be all pairs or all single texts"
            refuse_if(len(singles) > 1, "records", rule, "both", "Read one task at a time.")
            rule = "have a label each, or none at all"
            refuse_if(len(unlabelled) > 1, "records", rule, "both kinds", "Fill in the labels.")
            part, longer = _encode(some, fixed)
            for name, column in part.items():
                buffers.setdefault(name, bytearray()).extend(column.data.cast("B"))
            done, cut = done + len(some), cut + longer
            if progress is not None:
                progress(done)
        refuse_if(not part, "records", "hold at least one", "none", "Check the source and the split.")
        columns = {
            name: np.frombuffer(buffers[name], column.dtype).reshape(done, *column.shape[1:])
            for name, column in part.items()
        }
        return cls(columns, pads_left=fixed.causal, cut=cut)

    def __repr__(self) -> str:
        labelled = "no labels" if self.labels is None else "labelled"
        return f"EncodedTexts({len(self)} records of {self.length} rows, {labelled})"

    def __len__(self) -> int:
        return len(self.columns["ids"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One record, without the batch axis."""
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError("record out of range")
        return {name: value[0] for name, value in self.batch([number]).items()}

    @property
    def length(self) -> int:
        """Rows of every record."""
        return int(self.columns["ids"].shape[1])

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The labels, read-only; None if there are none."""
        return self.columns.get("labels")

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Rows that are text, per record, read-only. They tell the text's length: they stay with the user."""
        return self.columns["lengths"]

    @property
    def prints(self) -> NDArray[np.uint64]:
        """Fingerprints of the texts; of the token ids, where nobody read the texts here."""
        if "prints" not in self.columns:
            hashes = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in self.columns["ids"]]
            found = np.zeros((len(self), PRINT_COLUMNS), dtype=np.uint64)
            found[:, 0] = np.frombuffer(b"".join(hashes), dtype=np.uint64)
            self.columns["prints"] = found
        return self.columns["prints"]

    @property
    def all_prints(self) -> NDArray[np.uint64]:
        """Also of the texts that they were cut from."""
        return self.prints if self.origins is None else np.concatenate([self.prints, self.origins])

    def batch(self, indices: Sequence[int] | NDArray[Any], *, trim: bool = False) -> dict[str, Tensor]:
        """Ids, attention mask, token types (if the tokenizer gives any) and labels (if any) of some records.

        ``trim=True`` cuts the rows that are padding in every record of the batch, to save time. Their number
        then depends on the texts, so a trimmed batch must never be released.
        """
        part = self._take(indices)
        kept = int(part["lengths"].max(initial=1)) if trim else self.length
        rows = slice(self.length - kept, None) if self.pads_left else slice(0, kept)
        mask = self._is_text(part["lengths"])[:, rows]
        batch = {"input_ids": _long(part["ids"][:, rows]), "attention_mask": _long(mask)}
        if "types" in part:
            batch["token_type_ids"] = _long(part["types"][:, rows])
        if "labels" in part:
            batch["labels"] = _long(part["labels"])
        return batch

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        return self.batch(indices)

    def _take(self, indices: Sequence[int] | NDArray[Any]) -> dict[str, NDArray[Any]]:
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        return {name: array[chosen] for name, array in self.columns.items()}

    def _is_text(self, lengths: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of the rows [N, n] of records are no padding."""
        row, lengths = np.arange(self.length), lengths[:, None]
        return row >= self.length - lengths if self.pads_left else row < lengths

    def with_labels(self, labels: ArrayLike) -> "EncodedTexts":
        """The same texts with other labels, such as randomized ones."""
        array = np.array(labels)
        if array.shape != (len(self),) or array.dtype.kind not in "iu":
            rule, found = f"be {len(self)} whole numbers", f"shape {array.shape} of {array.dtype}"
            raise InvalidInput("labels", rule, found, "Give one for every record.")
        return EncodedTexts({**self.columns, "labels": array.astype(np.int64)}, pads_left=self.pads_left)

    def subset(self, indices: Sequence[int] | NDArray[Any]) -> "EncodedTexts":
        """Some of the records, in the order given."""
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        refuse_if(not chosen.size, "indices", "name at least one record", "none", "Give the numbers of some.")
        others = chosen.min() < 0 or chosen.max() >= len(self)
        refuse_if(others, "indices", f"lie in 0 to {len(self) - 1}", "others", "Count from 0.")
        return EncodedTexts(self._take(chosen), pads_left=self.pads_left)

    def split_off(self, part: float, *, seed: int) -> "tuple[EncodedTexts, EncodedTexts]":
        """``(rest, held_out)``: a fraction of the records, drawn by ``seed``.

        Both keep the order of the records, and are never empty.
        """
        held = round(len(self) * probability("part", part, remedy="Use a fraction such as 0.1."))
        rule = f"leave some of {len(self)} records on both sides"
        refuse_if(not 0 < held < len(self), "part", rule, part, "Change it.")
        order = np.random.default_rng(seed).permutation(len(self))
        return self.subset(np.sort(order[held:])), self.subset(np.sort(order[:held]))

    def check_known(self, tokenizer: Any) -> None:
        """Refuse public texts of which the tokenizer does not know most words.

        Only for texts that may be looked at: whether it is refused tells something about them.
        """
        unknown = tokenizer.unk_token_id
        ids = self.columns["ids"][self._is_text(self.lengths)]
        words = ids[~np.isin(ids, [token for token in tokenizer.all_special_ids if token != unknown])]
        share = float((words == unknown).mean()) if unknown is not None and words.size else 0.0
        rule, found = "know most words of the public texts", f"{share:.0%} unknown"
        refuse_if(share > 0.5, "tokenizer", rule, found, "Take the model's own, or a model of the language.")

    def check_labels(self, kinds: int, *, name: str) -> None:
        """Refuse records without labels, or with one outside of 0 to ``kinds`` - 1; errors say ``name``."""
        rule = f"lie in 0 to {kinds - 1}, as the head has"
        if self.labels is None:
            raise InvalidInput(name, rule, "no labels", "Name another split.")
        other = not 0 <= self.labels.min() <= self.labels.max() < kinds
        refuse_if(other, name, rule, "another", "Check the data.")

    def fingerprint(self) -> str:
        """SHA-256 of ids, token types, lengths and labels: the same records in the same order, or not.

        It can confirm a guess at the texts: it belongs in files on the user's side, and into no release.
        """
        digest = hashlib.sha256(f"texts-1:{len(self)}x{self.length}:{self.pads_left}".encode())
        for name, kind in (("ids", "<i4"), ("lengths", "<i4"), ("types", "u1"), ("labels", "<i8")):
            array = self.columns.get(name)
            digest.update(f":{name}:{'none' if array is None else 'some'}:".encode())
            if array is not None:
                digest.update(np.ascontiguousarray(array, dtype=kind).data)
        return digest.hexdigest()


def collate(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The ``collate_fn`` for `EncodedTexts`: the ``batch`` itself, under a name that workers can load."""
    return batch


def read_texts(
    task: Task, split: str, tokens: FixedLength, *, source: str | None = None, **settings: Any
) -> EncodedTexts:
    """Read a ``split`` of a ``source`` as token ids; ``settings`` are those of `encode_records`."""
    return encode_records(read_records(task, split, source=source), tokens, **settings)


def encode_records(
    records: Iterable[Record],
    tokens: FixedLength,
    *,
    limit: int | None = None,
    words: int = 0,
    treebank: bool = False,
    progress: Count | None = None,
) -> EncodedTexts:
    """Records as token ids; ``limit`` takes a sample of them, the same each time.

    ``words`` cuts long texts into sentence-like pieces of at most so many words (public texts only); with
    ``treebank`` they are written as the private texts are.
    """
    origins: list[NDArray[np.uint64]] = []
    if words:
        records = cut_into_sentences(note_prints(records, origins), most_words=words, treebank=treebank)
    if limit is not None:
        records = sample_records(records, limit)
    found = EncodedTexts.from_records(records, tokens, progress=progress)
    found.origins = np.concatenate(origins) if origins else None
    return found


def _long(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def _encode(records: list[Record], fixed: FixedLength) -> tuple[dict[str, NDArray[Any]], int]:
    seconds = [record.second for record in records if record.second is not None]
    labels = [record.label for record in records if record.label is not None]
    encoded, cut = fixed.encode_arrays([record.text for record in records], seconds or None)
    columns: dict[str, NDArray[Any]] = {
        "ids": encoded["input_ids"].astype(np.int32),
        "lengths": encoded["attention_mask"].sum(axis=1).astype(np.int32),
        "prints": fingerprint_records(records),
    }
    if "token_type_ids" in encoded:
        columns["types"] = encoded["token_type_ids"].astype(np.uint8)
    if labels:
        columns["labels"] = np.array(labels, dtype=np.int64)
    return columns, cut
