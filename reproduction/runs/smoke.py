"""Smoke size of the tables, for CI: a tiny random model, real sentences, a few cells of every table.

Nothing of it says anything about accuracy; it shows that every kind of job runs, and how its cell is filled.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from reproduction.jobs import Job
from reproduction.model_setup import ModelSetup
from reproduction.tables.paper_rows import WIKIPEDIA
from reproduction.tables.table import Cell, Table
from reproduction.tables.training import CORPUS

__all__ = ["few_jobs", "shrink_tables", "smoke_data", "smoke_model"]

_TEXTS: Final = 96
_HELD_OUT: Final = 48
_BLOCKS: Final = 3
_CELLS: Final = 3
_PACE: Final[dict[str, Any]] = {
    "rows": 16,
    "epochs": 1,
    "batch": 16,
    "train_limit": 64,
    "evaluation_limit": 40,
    "evaluation_draws": 2,
}
_SMALLER: Final[dict[str, dict[str, Any]]] = {
    "finetune": _PACE,
    "masked": _PACE,
    "baseline": {**_PACE, "micro_batch": 16, "evaluation_draws": None},
    "pretrain": {"steps": 2, "epochs": None, "head_steps": 2, "batch": 8, "length": 16, "bf16": False},
    "queries": {"draws": 2},
    "membership": {"limit": 20},
    "inversion": {"rows": 16, "limit": 20, "steps": 2},
    "attribute": {"rows": 16, "epochs": 2},
    "speed": {"shape": "tiny", "batch": 4, "rows": 8, "rounds": 2},
}


def shrink_tables(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The same tables, their jobs such as take a second or so."""
    return {
        name: replace(table, cells=tuple(map(_shrink_cell, table.cells))) for name, table in tables.items()
    }


def _shrink_cell(cell: Cell) -> Cell:
    return replace(cell, jobs=tuple(map(_shrink, cell.jobs)))


def _shrink(job: Job) -> Job:
    settings = {**job.settings, **_SMALLER[job.kind]}
    if job.kind in ("finetune", "masked"):
        settings |= _small_plan(job)
    settings = {name: value for name, value in settings.items() if value is not None}
    return Job(job.kind, settings, tuple(map(_shrink, job.after)), job.weight)


def _small_plan(job: Job) -> dict[str, Any]:
    given = job.settings
    changed: dict[str, Any] = {}
    if given["regime"] == "end-to-end" and given.get("mechanism") != "none" and "schedule" not in given:
        changed |= {"warm_up_epochs": 1 if given.get("cut") == "output" else None, "draws": 2}
    if given["regime"] == "public-front":
        changed |= {"public_limit": 64, "public_epochs": 1, "public_batch": 16}
    if (given.get("width") or 0) > 16:
        changed["width"] = 16
    if job.after and job.after[0].kind == "finetune":
        changed["rows"] = None  # as in the run that it starts from
    return changed


def few_jobs(table: Table) -> list[Job]:
    """The jobs of a few cells: each kind of job at least once, and the first and last cell."""
    cells = [cell for cell in table.cells if cell.jobs]
    if not cells:
        return []
    chosen = [cells[0], cells[-1]]
    kinds = {_signature(cell.jobs[0]) for cell in chosen}
    for cell in cells:
        kind = _signature(cell.jobs[0])
        if kind not in kinds and len(chosen) < _CELLS + len(kinds):
            chosen.append(cell)
            kinds.add(kind)
    return list(dict.fromkeys(cell.jobs[0] for cell in chosen))


def _signature(job: Job) -> tuple[object, ...]:
    """What makes a job, with all that it builds on, another kind of work than one before."""
    names = ("task", "regime", "mechanism", "unit")
    after = tuple(_signature(earlier) for earlier in job.after)
    return (job.kind, after, *(str(job.settings.get(name)) for name in names))


def smoke_model(folder: Path) -> ModelSetup:
    """A random BERT of a few narrow blocks with the packaged tokenizer, as an ordinary checkpoint."""
    import torch
    from transformers import BertConfig, BertModel

    from dp_forward.split.pretrained import load_tokenizer

    width = 32
    if not (folder / "config.json").is_file():
        tokenizer = load_tokenizer("minilm")
        torch.manual_seed(0)
        made: Any = BertModel
        model = made(
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=width,
                num_hidden_layers=_BLOCKS,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=64,
            )
        )
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    return ModelSetup(str(folder), _BLOCKS, width)


def smoke_data(folder: Path) -> dict[str, str]:
    """The three tasks and a corpus in files, made of packaged sentences; pairs by whether labels agree."""
    from dp_forward.data import find_task, read_records, sample_records

    folder.mkdir(parents=True, exist_ok=True)
    task = find_task("rotten-tomatoes")
    read = {
        split: [(r.text, int(r.label or 0)) for r in sample_records(read_records(task, split), 2 * size)]
        for split, size in (("train", _TEXTS), ("validation", _HELD_OUT))
    }
    splits = {split: rows[::2] for split, rows in read.items()}
    for name in ("sst2", "imdb", "qqp"):
        (folder / name).mkdir(exist_ok=True)
    genres = ("action", "comedy", "drama", "horror")
    for split, rows in splits.items():
        sentences = [(f"{text} {genres[i % 4]}", label) for i, (text, label) in enumerate(rows)]
        _table(folder / "sst2" / f"{split}.tsv", ("sentence", "label"), sentences)
        ours = "test" if split == "validation" else split
        reviews = [
            json.dumps({"text": f"{text} {genres[i % 4]}", "label": label})
            for i, (text, label) in enumerate(read[split][1::2])  # public texts must be other ones
        ]
        (folder / "imdb" / f"{ours}.jsonl").write_text("\n".join(reviews) + "\n", encoding="utf-8")
        pairs = [
            (first, second, int(a == b))
            for (first, a), (second, b) in zip(rows, [*rows[1:], rows[0]], strict=True)
        ]
        _table(folder / "qqp" / f"{split}.tsv", ("question1", "question2", "is_duplicate"), pairs)
    corpus = folder / "reviews.txt"
    corpus.write_text("\n".join(text for text, _ in splits["train"]) + "\n", encoding="utf-8")
    return {
        **{name: str(folder / name) for name in ("sst2", "imdb", "qqp")},
        CORPUS: str(corpus),
        WIKIPEDIA: str(corpus),
    }


def _table(path: Path, head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t")
        writer.writerow(head)
        writer.writerows(rows)
