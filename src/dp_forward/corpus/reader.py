"""Released corpus on disk: integers in safetensors files, read as a torch data set larger than memory.

    OUT/manifest.json             what it is, what it promises, and the SHA-256 of every shard
    OUT/shard-00000.safetensors   values [records, rows, width] int8 or int16, record numbers, labels if any

This folder is what a user hands over. It holds no text, no token, no true length and no plain digest of any
of them, which would confirm a guess: `corpus` in the manifest is a keyed one; its secret stays with the user.

Guarantees:
    `ReleasedCorpus.open` gives the corpus as it was released or refuses it: manifest, lengths, digests,
    shapes, and every record once, in its place. Nothing is unpickled.
Edges:
    Digests show accidents. What is read here is what its maker says, and the guarantee protects the maker.
    Record i is record i of the corpus. Taking the order away is the work of a shuffler;
    `ReleasedCorpus.shuffled` says in which batches the records came through one.
"""

import contextlib
import json
import operator
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor
from torch.utils.data import Dataset

from dp_forward.corpus.corpus_spec import CorpusSpec, LabelMechanism
from dp_forward.corpus.draw_log import Shard
from dp_forward.corpus.shuffle_guarantee import ShuffledBatch, check_batches
from dp_forward.errors import InvalidInput
from dp_forward.noise import dequantise
from dp_forward.privacy import Guarantee
from dp_forward.progress import Count
from dp_forward.release_spec import ReleaseSpec
from dp_forward.storage.digests import file_digest, settings_digest
from dp_forward.storage.json_files import read_json
from dp_forward.storage.stores import Place

__all__ = ["MANIFEST", "ReleasedCorpus", "manifest_bytes"]

MANIFEST: Final = "manifest.json"
_FORMAT: Final = 2
_KEYS: Final = {"format", "name", "corpus", "form", "shards", "shuffled", "guarantee", "versions", "sha256"}
_Batches = tuple[ShuffledBatch, ...] | None


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


def shard_bytes(spec: CorpusSpec, noisy: bytes, labels: bytes, *, name: str, number: int) -> bytes:
    """The file of a shard: a function of the draws, so made again it is the same."""
    span = spec.span(number)
    tensors: dict[str, NDArray[Any]] = {
        "values": np.frombuffer(noisy, dtype=spec.release.integers).reshape(len(span), *spec.release.shape),
        "records": np.arange(span.start, span.stop, dtype=np.int64),
    }
    if spec.stores_labels:
        tensors["labels"] = np.frombuffer(labels, dtype="<i8").reshape(len(span))
    # One entry only: safetensors writes several in any order, and the bytes must not depend on the day.
    return save(tensors, metadata={"shard": f"{name}/{number}"})


def manifest_bytes(
    spec: CorpusSpec,
    shards: Sequence[Shard],
    *,
    name: str,
    corpus: str,
    shuffled: Sequence[ShuffledBatch] | None = None,
) -> bytes:
    """The manifest of a finished ``corpus`` (its id): ``name``, ``shards``, and the batches ``shuffled``."""
    listed = [
        {"file": shard_name(number), "records": records, "bytes": size, "sha256": sha256}
        for number, records, size, sha256 in shards
    ]
    versions = {}
    for package in ("dp-forward", "torch", "numpy", "safetensors"):
        with contextlib.suppress(PackageNotFoundError):  # run from its sources
            versions[package] = version(package)
    content: dict[str, Any] = {
        "format": _FORMAT,
        "name": name,
        "corpus": corpus,
        "form": spec.as_dict(),
        "shards": listed,
        "shuffled": None if shuffled is None else [batch.as_dict() for batch in shuffled],
        "guarantee": spec.guarantee().as_dict(),
        "versions": versions,
    }
    content["sha256"] = _digest(content)
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def _digest(content: dict[str, Any]) -> str:
    return settings_digest({key: value for key, value in content.items() if key != "sha256"})


class ReleasedCorpus(Dataset[dict[str, Tensor]]):
    """A corpus of releases, one per record: train on it as often as you like, it costs nothing more.

    ``verify`` compares the digests of all shards when it is opened.

    A batch is fetched whole by `__getitems__`, so a loader needs the identity as its ``collate_fn``
    (`dp_forward.data.collate`); a Hugging Face Trainer needs ``remove_unused_columns=False`` besides.

    Guarantees:
        Items are ``{"hidden": float32 [rows, width], "labels": int64}``, or with ``raw=True``
        ``{"values": int8 or int16 [rows, width], "labels": int64}``, where ``hidden = values * scale``: move
        a quarter (half) of the bytes to the GPU and scale there. No ``labels`` where none were released.
    Edges:
        ``labels`` are randomized where `label_transition` is not None: correct the loss for it.
        Safe in loader workers, forked or spawned: each maps the files for itself.
    """

    def __init__(self, folder: Path, *, raw: bool, verify: bool, progress: Count | None) -> None:
        manifest, spec, shuffled = _read_manifest(folder)
        self.folder, self.raw = folder, raw
        self._spec, self._shuffled, self._guarantee = spec, shuffled, spec.guarantee()
        self.name: str = manifest["name"]
        """A random name of this release."""
        self.key: str = manifest["corpus"]
        """What its maker knows it by; a ledger has it under this key."""
        one = np.ones((1, 1), dtype=spec.release.integers)
        self.scale = float(dequantise(one, spec.release.mechanism(), spec.release.bits)[0, 0])
        """``hidden = values * scale``."""
        how = spec.labels
        self.label_transition = how.transition() if isinstance(how, LabelMechanism) else None
        """Row y: the probabilities of the answers to label y; None where labels are public or absent."""
        self.bytes = sum(shard["bytes"] for shard in manifest["shards"])
        """What the shards take on disk."""
        parts = []
        for number, listed in enumerate(manifest["shards"]):
            parts.append(_check_shard(folder, number, listed, spec, verify=verify))
            if progress is not None:
                progress(number + 1)
        self.labels = np.concatenate(parts) if spec.stores_labels else None
        """The labels as released; None where none were."""
        if self.labels is not None:
            self.labels.setflags(write=False)
        if shuffled is not None:
            _check_shuffled(self, shuffled)

    @classmethod
    def open(
        cls, folder: Place, *, raw: bool = False, verify: bool = True, progress: Count | None = None
    ) -> Self:
        """The corpus in a folder, checked.

        ``verify=False`` skips the digests of the shards, for a large corpus that was checked before;
        ``progress`` is called with the number of shards checked so far.
        """
        return cls(Path(folder), raw=raw, verify=verify, progress=progress)

    def __len__(self) -> int:
        return self.spec.records

    @property
    def spec(self) -> CorpusSpec:
        """All public settings."""
        return self._spec

    @property
    def guarantee(self) -> Guarantee:
        """What a record is promised, proved anew from the settings."""
        return self._guarantee

    @property
    def shuffled(self) -> _Batches:
        """The sealed batches of a shuffler in which all records came; None where they did not."""
        return self._shuffled

    @property
    def release(self) -> ReleaseSpec:
        """What every release in it looks like."""
        return self.spec.release

    @property
    def front_digest(self) -> str:
        """The front that made it."""
        return self.release.front or ""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One record, without the batch axis."""
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError("record out of range")
        return {name: value[0] for name, value in self.__getitems__([number % len(self)]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A ready batch; torch's loader calls this one."""
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        shards, places = np.divmod(chosen, self.spec.shard_records)
        found = np.empty((len(chosen), *self.release.shape), dtype=self.release.integers)
        for shard in np.unique(shards):
            here = shards == shard
            found[here] = self._maps[shard][places[here]]
        values = torch.from_numpy(found)
        batch = {"values": values} if self.raw else {"hidden": values.to(torch.float32).mul_(self.scale)}
        if self.labels is not None:
            batch["labels"] = torch.from_numpy(self.labels[chosen])
        return batch

    def mean(self) -> NDArray[np.float64]:
        """The mean of all releases [rows, width], read once; sums of integers, so exact up to the scale."""
        total = sum(np.sum(values, axis=0, dtype=np.int64) for values in self._maps)
        return np.asarray(total * (self.scale / len(self)))

    @cached_property
    def _maps(self) -> list[NDArray[Any]]:
        """The values of every shard, not read yet."""
        maps, release = [], self.release
        for number in range(self.spec.shards):
            path = self.folder / shard_name(number)
            shape = (len(self.spec.span(number)), *release.shape)
            with open(path, "rb") as file:
                header = int.from_bytes(file.read(8), "little")
                start, stop = json.loads(file.read(header))["values"]["data_offsets"]
            if stop - start != shape[0] * release.payload_bytes:
                _refuse(path.name, f"hold integers of {release.bits} bits", "others")
            maps.append(np.asarray(np.memmap(path, release.integers, "r", 8 + header + start, shape)))
        return maps

    def __getstate__(self) -> dict[str, Any]:
        # A memory map would be pickled as all of its numbers.
        return {name: value for name, value in self.__dict__.items() if name != "_maps"}

    def __repr__(self) -> str:
        rows, width = self.release.shape
        shape = f"{len(self)} records of {rows} x {width}, int{self.release.bits}"
        return f"ReleasedCorpus({shape}) -> {self.guarantee.promise}"


def _read_manifest(place: Path) -> tuple[dict[str, Any], CorpusSpec, _Batches]:
    remedy = "Finish it with dpf release --resume, or name its folder."
    manifest = read_json(place / MANIFEST, name="corpus", remedy=remedy)
    try:
        known = manifest.keys() == _KEYS and manifest["format"] == _FORMAT
        if not known or manifest["sha256"] != _digest(manifest):
            _refuse(MANIFEST, f"be of format {_FORMAT} and match its own digest", "something else")
        spec = CorpusSpec.from_dict(manifest["form"])
        listed = manifest["shuffled"]
        shuffled = None if listed is None else tuple(map(ShuffledBatch.from_dict, listed))
        spans = [(shard_name(number), len(spec.span(number))) for number in range(spec.shards)]
        if [(shard["file"], shard["records"]) for shard in manifest["shards"]] != spans:
            _refuse(MANIFEST, f"list {spec.shards} shards of {spec.records} records", "others")
    except InvalidInput:
        raise
    except (ValueError, TypeError, AttributeError, KeyError):
        _refuse(MANIFEST, "be readable", "something else")
    return manifest, spec, shuffled


def _check_shuffled(corpus: ReleasedCorpus, batches: Sequence[ShuffledBatch]) -> None:
    """The batches make up the corpus, label by label where those are public."""
    try:
        check_batches(corpus.spec, batches)
    except InvalidInput:
        _refuse(MANIFEST, f"list batches of {len(corpus)} records in all", "others")
    if corpus.spec.labels == "public":
        found = np.bincount(np.asarray(corpus.labels), minlength=len(corpus.release.labels)).tolist()
        counted = [batch.by_label or () for batch in batches]
        if [sum(of_one) for of_one in zip(*counted, strict=True)] != found:
            _refuse(MANIFEST, "count the labels of the corpus in its batches", "others")


def _check_shard(
    place: Path, number: int, listed: dict[str, Any], spec: CorpusSpec, *, verify: bool
) -> NDArray[np.int64]:
    """The labels of a shard that is what the manifest says; anything else is refused."""
    name = shard_name(number)
    path = place / name
    if not path.is_file():
        _refuse(name, "be in the folder", "no such file")
    if (size := path.stat().st_size) != listed["bytes"]:
        _refuse(name, f"have {listed['bytes']} bytes", size)
    if verify and (found := file_digest(path)) != listed["sha256"]:
        _refuse(name, f"match its digest {str(listed['sha256'])[:12]}...", f"{found[:12]}...")
    span = spec.span(number)
    try:
        with safe_open(path, framework="numpy") as file:
            keys = {"values", "records"} | ({"labels"} if spec.stores_labels else set())
            values = file.get_slice("values")
            shape, kind = [len(span), *spec.release.shape], f"I{spec.release.bits}"
            whole = set(file.keys()) == keys and (values.get_dtype(), values.get_shape()) == (kind, shape)
            if not whole or not np.array_equal(file.get_tensor("records"), np.arange(span.start, span.stop)):
                _refuse(name, f"hold the records {span.start} to {span.stop - 1}", "others")
            labels = file.get_tensor("labels") if "labels" in keys else np.empty(0, dtype=np.int64)
    except (SafetensorError, OSError):
        _refuse(name, "be a safetensors file", "something else")
    kinds = len(spec.release.labels)
    if labels.dtype != np.int64 or (labels.size and not 0 <= labels.min() <= labels.max() < kinds):
        _refuse(name, f"hold labels of 0 to {kinds - 1}", "others")
    return np.asarray(labels, dtype=np.int64)


def _refuse(name: str, rule: str, value: object) -> NoReturn:
    raise InvalidInput(name, rule, value, "Get the corpus again, or release it anew elsewhere.")
