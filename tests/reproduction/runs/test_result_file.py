"""Finished jobs outlive crashes and several writers."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.train import defaults
from reproduction.jobs import Job
from reproduction.runs.result_file import ResultFile

LINES = 60


def entry(name: str, value: float = 0.5) -> dict[str, object]:
    job = Job("attribute", {"name": name})
    return {
        "digest": job.digest,
        "kind": job.kind,
        "settings": dict(job.settings),
        "after": [],
        "result": {"accuracy": value},
    }


def names(results: ResultFile) -> list[str]:
    """Of the finished jobs, in order."""
    return [line["settings"]["name"] for line in results.lines().values()]


def append_many(path: Path, writer: int) -> None:
    for number in range(LINES):
        ResultFile(path).append({**entry(f"{writer}-{number}"), "padding": "x" * (97 * number)})


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_many, args=(path, number)) for number in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    wanted = {f"{writer}-{number}" for writer in range(2) for number in range(LINES)}
    assert set(names(ResultFile(path))) == wanted
    assert len([line for line in path.read_text().splitlines() if line]) == len(wanted)


def test_a_line_that_was_cut_short_is_left_out_and_swallows_nothing(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "results.jsonl")
    for name in ("first", "second"):
        results.append(entry(name))
    results.path.write_bytes(results.path.read_bytes()[:-9])
    assert names(results) == ["first"]
    results.append(entry("third"))
    assert names(results) == ["first", "third"]
    assert results.path.read_text().count("\n") == 3


def test_of_two_lines_with_one_digest_the_later_counts(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "results.jsonl")
    for value in (0.25, 0.75):
        results.append(entry("same", value))
    assert list(results.by_digest().values()) == [{"accuracy": 0.75}]


def test_no_file_is_no_results_and_folders_are_made(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "deep" / "er" / "results.jsonl")
    assert results.lines() == {}
    results.append(entry("first"))
    assert list(results.lines().values()) == [entry("first")]


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": {"name": "another"}},
        {"kind": "inversion"},
        {"kind": "unheard of"},
        {"after": ["0" * 64]},
        {"digest": "0" * 64},
        {"result": 0.9},
        {"settings": None},
    ],
)
def test_a_line_that_is_not_what_its_digest_says_is_left_out(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    results = ResultFile(tmp_path / "results.jsonl")
    results.append(entry("first"))
    results.append({**entry("second"), **changed})
    assert names(results) == ["first"]


def test_a_line_of_a_rule_that_was_changed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not fill the cell that its settings would fill today."""
    plan = {"task": "sst2", "model": "minilm", "regime": "end-to-end", "cut": "output", "epsilon": 8.0}
    job = Job("finetune", plan)
    results = ResultFile(tmp_path / "results.jsonl")
    results.append({**entry(""), "digest": job.digest, "kind": job.kind, "settings": plan})
    assert results.by_digest().keys() == {job.digest}
    monkeypatch.setattr(defaults, "_OUTPUT", {**defaults._OUTPUT, "draws": 3})
    assert results.by_digest() == {}


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "binary"):
        with pytest.raises(InvalidInput, match="be a file that can be read"):
            ResultFile(path).lines()
