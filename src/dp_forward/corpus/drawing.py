"""Front, bound, noise and labels of a corpus: records in, draws out."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, Final, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dp_forward.corpus.corpus_spec import CorpusSpec, LabelMechanism
from dp_forward.data import EncodedTexts
from dp_forward.noise import release_batch, release_labels, serialise
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.privacy import Mechanism
from dp_forward.split.artifacts import UserSide

__all__ = ["ReleaseDrawer"]

_FRONT_BATCH: Final = 64
_LENGTH_STEP: Final = 16
_NOISE_ENTRIES: Final = 1 << 16  # what a thread draws at a time


class RecordDrawer(Protocol):
    """What gives the draws of a corpus, piece by piece."""

    def draw(self, records: range) -> tuple[bytes, bytes]:
        """The releases of these ``records`` and their labels, as they are stored."""


class Engine(Protocol):
    """What draws a corpus elsewhere than in this process, as `dp_forward.integrations.ray` does.

    Guarantees:
        Its drawer draws a record once, also after a crash, a retry or a restart.
    """

    @property
    def name(self) -> str:
        """What it is called; a release that one began is not continued by another."""

    def drawer(self, spec: CorpusSpec, *, name: str, first: int) -> AbstractContextManager[RecordDrawer]:
        """Draw `CorpusSpec.pieces` of the release ``name`` from the record ``first`` on; it was charged."""


class ReleaseDrawer:
    """A front on a device and the records it reads.

    Guarantees:
        Only what came out of `release_batch` and `release_labels` (or a public label) comes out. The hidden
        values stay in memory, and no gradient is kept.
    Edges:
        The front stays on the device, in evaluation mode. By default there is a thread for each processor.
    """

    def __init__(
        self,
        user: UserSide,
        texts: EncodedTexts,
        spec: CorpusSpec,
        device: torch.device,
        *,
        threads: int | None = None,
    ) -> None:
        self._front = user.front.to(device).train(False)
        self._texts, self._spec, self._device = texts, spec, device
        self._threads = threads or os.cpu_count()
        self._mechanism: Mechanism = spec.release.mechanism()
        release, labels = spec.release, len(spec.release.labels)
        self._code = FoldedCode.of_columns(release.width, labels) if release.folded else None

    def reading(self, texts: EncodedTexts) -> Self:
        """The same for other ``texts``, without calibrating anew."""
        other = copy(self)
        other._texts = texts
        return other

    def draw(self, records: range) -> tuple[bytes, bytes]:
        """One release of each of these records, and their labels as they are stored.

        Every call draws anew: call it once for a record.
        """
        # The noise takes most of the time, and its arithmetic runs outside of Python's lock.
        with ThreadPoolExecutor(self._threads) as threads:
            noisy = b"".join(threads.map(self._add_noise, self._folded(records)))
        return noisy, self._draw_labels(records)

    def _folded(self, records: range) -> Iterator[Tensor]:
        """The hidden matrices, with the labels folded in where the spec says so."""
        first, labels = records.start, self._texts.labels
        for hidden in self._hidden(records):
            if self._code is None or labels is None:
                yield hidden
                continue
            last = first + len(hidden)
            yield torch.from_numpy(self._code.fold(hidden[:, 0].numpy(), labels[first:last]))[:, None]
            first = last

    @torch.inference_mode()
    def _hidden(self, records: range) -> Iterator[Tensor]:
        """The hidden matrices of the records, as many at a time as a thread adds noise to."""
        shape, at_once = self._spec.release.shape, max(1, _NOISE_ENTRIES // self._spec.release.payload_bytes)
        pooled = self._spec.release.cut == "output"
        for hidden in [self._pooled(records)] if pooled else self._in_order(records):
            if tuple(hidden.shape[1:]) != (shape[0], self._front.width):
                raise AssertionError("the front gives another shape than its spec says")
            yield from torch.split(hidden, at_once)

    def _in_order(self, records: range) -> Iterator[Tensor]:
        for first in range(records.start, records.stop, _FRONT_BATCH):
            yield self._read(range(first, min(first + _FRONT_BATCH, records.stop)))

    def _pooled(self, records: range) -> Tensor:
        """One row for each record; texts of like length are read together, in batches of one shape.

        A text is cut to its own length, rounded up, and a batch always has the same number of texts, filled
        up by repeating one: so nothing of the others can move a text's row, not even by a rounding.
        """
        numbers = np.arange(records.start, records.stop)
        lengths = -(-self._texts.lengths[numbers] // _LENGTH_STEP) * _LENGTH_STEP
        found = torch.empty(len(numbers), 1, self._front.width)
        for length in np.unique(lengths):
            alike = np.flatnonzero(lengths == length)
            for start in range(0, len(alike), _FRONT_BATCH):
                some = alike[start : start + _FRONT_BATCH]
                filled = np.concatenate([some, np.repeat(some[:1], _FRONT_BATCH - len(some))])
                rows = slice(-length, None) if self._texts.pads_left else slice(length)
                found[some] = self._read(numbers[filled], rows)[: len(some)].float()
        return found

    def _read(self, numbers: Any, rows: slice = slice(None)) -> Tensor:
        """The front of some records, with these rows of their tokens."""
        batch = self._texts.batch(numbers)
        batch.pop("labels", None)
        rows_of: Tensor = self._front(**{name: ids[:, rows].to(self._device) for name, ids in batch.items()})
        return rows_of.cpu()

    def _add_noise(self, hidden: Tensor) -> bytes:
        return b"".join(map(serialise, release_batch(hidden, self._mechanism, bits=self._spec.release.bits)))

    def _draw_labels(self, records: range) -> bytes:
        labels, how = self._texts.labels, self._spec.labels
        if not self._spec.stores_labels or labels is None:
            return b""
        known: NDArray[Any] = labels[records.start : records.stop]
        if isinstance(how, LabelMechanism):
            known = release_labels(known, how).values
        return known.astype("<i8").tobytes()
