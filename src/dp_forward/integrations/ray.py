"""Release a corpus on Ray: Ray Data reads, tokenises and draws; charges and draws lie in a store by record.

    dataset = ray.data.read_parquet("tickets.parquet")
    corpus = release(dataset, "run/projection/front", "releases")

The texts are read and tokenised in parallel into the private folder of the release, so memory does not grow
with their number. Then `corpus.writer` charges the release and takes the draws, piece after piece, from a
`corpus.draw_store.DrawStore`, which the actors fill. What lies in `out` is the same corpus as without Ray.

Guarantees:
    A record is charged and drawn once, whatever Ray runs again. An actor charges its records in the store and
    commits their draws there before it says that they are done, so a task that is retried finds them; the
    draws never travel through Ray. A killed worker or driver loses nothing that was committed, and the same
    call with ``resume=True`` continues. The ledger is charged before the first task that draws begins.
Edges:
    The order of the data set is the order of the records, and must be the same when a release is resumed; it
    is compared before anything is drawn. Where another engine, or another kind of store, resumes, it is
    refused: it would not know what was drawn.
    Ray moves texts and token ids between its processes and may spill them to its own folder on disk: the
    cluster is the user's own, and as closed as the machine that holds the texts. A worker's noise comes from
    the entropy of the machine it runs on.
    Without a URL the store is a file beside the ledger, and all workers are on this machine.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dp_forward.corpus.corpus_spec import CorpusSpec
from dp_forward.corpus.draw_store import DrawStore
from dp_forward.corpus.drawing import ReleaseDrawer
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import private_folder, release_corpus
from dp_forward.data import EncodedTexts, FixedLength, Task
from dp_forward.data.records import check_rows, find_column
from dp_forward.data.row_files import Row, find_split_files
from dp_forward.data.sources import open_source
from dp_forward.errors import DpForwardError, InvalidInput, refuse_if
from dp_forward.optional_packages import name_extra
from dp_forward.progress import Count, Progress, counter
from dp_forward.split.artifacts import UserSide, load_user_side, save_user_side
from dp_forward.storage.files import lock_folder
from dp_forward.storage.stores import Place, is_url

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["connect", "prepare", "read_task", "release"]

_BATCH: Final = 1024
_BLOCK_BYTES: Final = 4 << 20
_TRAIN: Final = "train"
_Columns = dict[str, NDArray[Any]]
_Shapes = dict[str, tuple[str, tuple[int, ...]]]


def connect(address: str | None = None) -> None:
    """Join the Ray cluster at ``address``, or start Ray on this machine; nothing where that was done before.

    Edges:
        Ray's usage statistics are off where it is started here. Its services listen on the network; who wants
        to use them needs the token in ~/.ray/auth_token. Ray reads it where it is started here, but for
        an address only where RAY_AUTH_MODE is token.
    """
    with name_extra("The engine ray"):
        import ray.data
    if ray.is_initialized():
        return
    rule, remedy = "name a cluster that this machine belongs to", "Run this there, with HOST:PORT."
    far = str(address).startswith("ray://")
    refuse_if(far, "ray_address", rule, "a Ray Client address", remedy)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    started: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        ray.init(**started, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # of a network, of a cluster of another version, of a machine that is too slow
        rule, found = "name a Ray cluster that answers", type(error).__name__
        remedy = "Start one with ray start --head; if it has a token, set RAY_AUTH_MODE=token here too."
        raise InvalidInput("ray_address", rule, found, remedy) from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # an error is raised, and progress is shown


def release(
    dataset: Dataset,
    front: str | os.PathLike[str] | UserSide,
    out: str | os.PathLike[str],
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    store: Place | None = None,
    workers: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    **settings: Any,
) -> ReleasedCorpus:
    """One release of every row of a Ray data set into ``out``; see the module for what is promised.

    Args:
        dataset: of rows in the order of the records.
        front: a user's folder, or what `load_user_side` made of it.
        text_column: the column of texts; by default the one with a usual name.
        label_column: the column of labels, the front's words; by default one with a usual name, if there is.
        store: the URL of a Postgres database, where workers are on several machines; by default a file.
        workers: how many actors draw; by default as many as the cluster has processors.
        settings: those of `dp_forward.corpus.writer.release_corpus`, as ``budget`` and ``resume``.
    """
    user = front if isinstance(front, UserSide) else load_user_side(front)
    names = Row("the data set", dict.fromkeys(dataset.columns() or ()))
    label = label_column or ""
    text = text_column or find_column(names, "text", known=(label,), named=True)
    label = label or find_column(names, "label", known=(text,), may_lack=True)
    task = Task(
        name="records",
        text_fields=(text,),
        label_field=label,
        labels=user.spec.labels,
        source="",
        unlabelled=() if label else (_TRAIN,),
        own=True,
    )
    chosen = dataset.select_columns([text, label] if label else [text])
    where: dict[str, Any] = {"store": store, "workers": workers, "device": device}
    with prepare(chosen, task, user, out, progress=counter(progress, "reading"), **where) as (texts, engine):
        shown = counter(progress, "releasing", len(texts))
        return release_corpus(user, texts, out, engine=engine, progress=shown, **settings)


def read_task(task: Task, split: str) -> tuple[Dataset, Task]:
    """The records of a ``split`` of a ``task`` as a Ray data set, in order, and the task that they are of.

    Files are read on this machine, one after another, as `dp_forward.data.read_records` reads them.
    """
    import ray.data

    there = Path(task.source).exists()  # or it is the name of a data set
    places = find_split_files(Path(task.source), split)[0] if there else [task.source]
    rows = ray.data.from_items([{"place": str(place)} for place in places])
    dataset = rows.map_batches(
        _read_rows, batch_size=1, fn_kwargs={"task": task, "split": split}, **_on_this_machine()
    )
    fields = ("text", "second")[: len(task.text_fields)]
    plain = replace(task, text_fields=fields, label_field="label", own=False, label_words={}, other_names={})
    if split in task.unlabelled:
        plain = replace(plain, unlabelled=(_TRAIN,))
    return dataset, plain


@contextlib.contextmanager
def prepare(
    dataset: Dataset,
    task: Task,
    user: UserSide,
    out: str | os.PathLike[str],
    *,
    store: Place | None = None,
    workers: int | None = None,
    device: str = "cpu",
    progress: Count | None = None,
) -> Iterator[tuple[EncodedTexts, _RayEngine]]:
    """Read a data set for a release into ``out``: its token ids, in files, and what draws them.

    Args:
        dataset: of rows in the order of the records.
        task: which columns of the data set hold texts and labels.
        store: where charges and draws lie, as in `release`.
        workers: how many actors draw.
        progress: called with the number of records that were read.
    """
    import ray

    private = private_folder(out)
    place = private if store is None else store
    machines = sum(bool(node["Alive"]) for node in ray.nodes())
    rule, remedy = "be the URL of a Postgres database on a cluster of machines", "Name one: postgresql://..."
    refuse_if(machines > 1 and not is_url(place), "ray_store", rule, f"a file, for {machines}", remedy)
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = private / "texts"
    with lock_folder(private):  # one driver at a time; what a killed one left behind is read anew
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            how: dict[str, Any] = {"task": task, "tokens": user.tokens}
            encoded = _small_blocks(dataset).map_batches(
                _encode, batch_size=_BATCH, batch_format="pyarrow", fn_kwargs=how
            )
            shapes = _write_columns(_batches(encoded), folder, progress)
            texts = EncodedTexts(_map_columns(folder, shapes), pads_left=user.tokens.causal)
            yield texts, _RayEngine(user, folder, shapes, place, workers, device)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # where a release lies in it, it stays
                private.rmdir()


@dataclass(frozen=True, eq=False)
class _RayEngine:
    """Draws the records whose token ids lie in ``folder``, by ``workers`` actors; made by `prepare`."""

    user: UserSide
    folder: Path
    shapes: _Shapes
    place: Place
    workers: int | None
    device: str

    @property
    def name(self) -> str:
        return f"ray over {'postgres' if is_url(self.place) else 'sqlite'}"

    @contextlib.contextmanager
    def drawer(self, spec: CorpusSpec, *, name: str, first: int) -> Iterator[_StoredDraws]:
        """Start the actors; see `dp_forward.corpus.drawing.Engine`."""
        receipts = self._receipts(spec, name, first)
        with DrawStore(self.place, name) as store, contextlib.closing(receipts):
            drawn = _StoredDraws(store, receipts, first)
            yield drawn
            store.empty(range(drawn.kept, spec.records))

    def _receipts(self, spec: CorpusSpec, name: str, first: int) -> Generator[_Columns]:
        """The first record of every piece that was drawn, in any order."""
        import ray

        pieces = [{"first": piece.start, "last": piece.stop} for piece in spec.pieces(first)]
        workers = self.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        front = ray.put(_front_files(self.user))  # here as long as actors may start
        drawing = {"front": front, "spec": spec, "store": (str(self.place), name), "device": self.device}
        where = {"folder": self.folder, "shapes": self.shapes}
        dataset = _small_blocks(ray.data.from_items(pieces, override_num_blocks=len(pieces)))
        columns = dataset.map_batches(_load, batch_size=1, fn_kwargs=where, **_on_this_machine())
        drawn = columns.map_batches(
            _Drawing,
            batch_size=None,
            fn_constructor_kwargs=drawing,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(pieces))),
            num_cpus=1,
            num_gpus=1 if self.device.startswith("cuda") else None,
        )
        yield from _batches(drawn)


class _StoredDraws:
    """A drawer that reads what actors store; all before ``kept`` is kept elsewhere."""

    def __init__(self, store: DrawStore, receipts: Iterator[_Columns], first: int) -> None:
        self._store, self._receipts, self.kept = store, receipts, first
        self._done: set[int] = set()

    def draw(self, records: range) -> tuple[bytes, bytes]:
        if self.kept < records.start:
            self._store.empty(range(self.kept, records.start))
            self.kept = records.start
        while records.start not in self._done:
            self._done.update(next(self._receipts)["first"].tolist())
        self._done.discard(records.start)
        found = self._store.read(records)
        if found is None:
            raise AssertionError("an actor says that it drew what is not in the store")
        return found


class _Drawing:
    """An actor: charges and draws the records of a piece that have no draw yet, and commits them."""

    def __init__(self, front: Any, spec: CorpusSpec, store: tuple[str, str], device: str) -> None:
        if not isinstance(front, UserSide):  # a reference
            import ray

            front = _read_front(ray.get(front))
        self._user, self._cost = front, spec.charge()
        nothing = EncodedTexts({"ids": np.empty((0, spec.release.rows), np.int32)}, pads_left=False)
        self._drawer = ReleaseDrawer(self._user, nothing, spec, torch.device(device), threads=1)
        self._store = DrawStore(*store)

    def __call__(self, piece: _Columns) -> _Columns:
        records = piece.pop("record").tolist()
        todo = self._store.charge(records, self._cost)
        if todo:
            texts = EncodedTexts(piece, pads_left=self._user.tokens.causal)
            texts = texts.subset([record - records[0] for record in todo])
            noisy, labels = self._drawer.reading(texts).draw(range(len(todo)))
            parts = (_split(noisy, len(todo)), _split(labels, len(todo)))
            self._store.add(list(zip(todo, *parts, strict=True)))
        return {"first": np.array(records[:1])}


def _front_files(user: UserSide) -> dict[str, bytes]:
    """The files of a front: of a pickled model, Transformers forgets which of its rows can be asked for."""
    with tempfile.TemporaryDirectory() as name:
        save_user_side(user.front, user.spec, user.tokens.tokenizer, place := Path(name))
        return {
            str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()
        }


def _read_front(files: dict[str, bytes]) -> UserSide:
    """What `_front_files` took apart."""
    with tempfile.TemporaryDirectory() as place:
        for name, data in files.items():
            path = Path(place) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        return load_user_side(Path(place) / "front")


def _split(data: bytes, parts: int) -> list[bytes]:
    size = len(data) // parts
    return [data[at * size : (at + 1) * size] for at in range(parts)]


def _read_rows(batch: _Columns, task: Task, split: str) -> Iterator[dict[str, list[Any]]]:
    """The checked records of one file, a few at a time."""
    records = check_rows(task, split, open_source(task, split, str(batch["place"][0])))
    while some := list(itertools.islice(records, _BATCH)):
        columns = zip(("text", "second", "label"), map(list, zip(*some, strict=True)), strict=True)
        # A column that no record has is left out.
        yield {name: values for name, values in columns if any(value is not None for value in values)}


def _encode(table: Any, task: Task, tokens: FixedLength) -> _Columns:
    rows = (Row("a row of the data set", fields) for fields in table.to_pylist())
    return EncodedTexts.from_records(check_rows(task, _TRAIN, rows), tokens).columns | {}


def _load(piece: _Columns, folder: Path, shapes: _Shapes) -> _Columns:
    """The token ids of a piece, with the numbers of its records."""
    first, last = int(piece["first"][0]), int(piece["last"][0])
    columns = _map_columns(folder, {name: kind for name, kind in shapes.items() if name != "prints"})
    return {"record": np.arange(first, last)} | {name: value[first:last] for name, value in columns.items()}


def _write_columns(batches: Iterable[_Columns], folder: Path, progress: Count | None) -> _Shapes:
    """Put columns into files, one each; returns their types and shapes."""
    kinds, files, done = _Shapes(), dict[str, Any](), 0
    with contextlib.ExitStack() as stack:
        for batch in batches:
            for name in batch if not done else ():
                files[name] = stack.enter_context(open(folder / name, "wb"))
            mixed, rule = batch.keys() != files.keys(), "have a label each, or none at all"
            refuse_if(mixed, "records", rule, "both kinds", "Fill in the labels.")
            for name, column in batch.items():
                files[name].write(np.ascontiguousarray(column).data)
                kinds[name] = column.dtype.str, column.shape[1:]
            done += len(batch["ids"])
            if progress is not None:
                progress(done)
    refuse_if(not done, "records", "hold at least one", "none", "Check the data set.")
    return {name: (kind, (done, *shape)) for name, (kind, shape) in kinds.items()}


def _map_columns(folder: Path, shapes: _Shapes) -> _Columns:
    return {name: np.memmap(folder / name, kind, "r", 0, shape) for name, (kind, shape) in shapes.items()}


def _small_blocks(dataset: Dataset) -> Dataset:
    """Let a data set keep the order of its rows and use small blocks, without Ray's own progress."""
    context = dataset.context
    context.target_max_block_size = _BLOCK_BYTES
    context.execution_options.preserve_order = True
    context.enable_progress_bars, context.raise_original_map_exception = False, True
    return dataset


def _batches(dataset: Dataset) -> Iterator[_Columns]:
    """Its rows; an error of ours is raised as itself, and of any other of a task the type alone is told."""
    import ray.exceptions

    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="numpy")
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", error)
        if isinstance(cause, DpForwardError):
            raise cause from None
        rule, remedy = "be readable, and the workers run", "Look at the workers. Nothing is lost: resume."
        raise InvalidInput("dataset", rule, type(cause).__name__, remedy) from None


def _on_this_machine() -> dict[str, Any]:
    """Settings of tasks that read files of this machine: one at a time, beside the workers."""
    import ray.data

    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    return {"num_cpus": 0, "label_selector": here, "compute": ray.data.TaskPoolStrategy(size=1)}
