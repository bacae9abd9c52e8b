"""The runs of a decoder's table: each once, one that failed again; what is chosen on shares no phrase."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tiny_task import TinyWorld


def test_runs_are_kept_as_they_end_and_those_that_failed_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.decoder_training import main

    world, out, jobs = TinyWorld.under(tmp_path), tmp_path / "found.json", tmp_path / "jobs.json"
    plan = {"task": "sst2", "model": "tiny", "regime": "end-to-end", "rows": 12, "epochs": 1, "batch": 64}
    plan["evaluation_draws"] = 2
    plans = {
        "clean": {**plan, "mechanism": "none"},
        "noisy": {**plan, "epsilon": 8.0, "width": 4, "warm_up_epochs": 0},
    }
    jobs.write_text(json.dumps({**plans, "broken": {**plan, "mechanism": "none", "cut": "encoder.9"}}))
    given = ["--data", f"sst2={world.task}", "--model", f"tiny={world.model}", "--jobs", str(jobs)]

    def run(*more: str) -> dict[str, dict[str, object]]:
        monkeypatch.setattr(sys, "argv", ["decoder_training", *given, "--out", str(out), *more])
        main()
        found: dict[str, dict[str, object]] = json.loads(out.read_text())
        return found

    assert list(run("--only", "clean")) == ["clean"]
    first = run()
    assert first.keys() == {"clean", "noisy", "broken"}
    assert "accuracy" in first["noisy"]
    assert first["noisy"]["plan"]["model"] == "tiny"  # type: ignore[index]
    assert "encoder.9" in str(first["broken"]["error"])
    jobs.write_text(json.dumps(plans | {"broken": plans["clean"]}))
    again = run()
    assert "accuracy" in again["broken"]
    assert {name: again[name] for name in plans} == {name: first[name] for name in plans}
    assert "clean:" in capfd.readouterr().out


def test_no_phrase_of_a_sentence_that_is_held_out_is_trained_on(tmp_path: Path) -> None:
    from benchmarks.decoder_training import hold_out

    words = [f"w{i} " * 3 + " ".join(f"v{i}x{k}" for k in range(8)) for i in range(40)]
    phrases = [" ".join(text.split()[3:6]) for text in words]
    rows = [f"{text} \t{i % 2}" for i, text in enumerate(words + phrases)]
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    hold_out(tmp_path, tmp_path / "parts", sentences=10)
    held, kept = (
        [line.split("\t")[0].strip() for line in (tmp_path / "parts" / name).read_text().splitlines()[1:]]
        for name in ("dev.tsv", "train.tsv")
    )
    assert len(held) == 10
    assert len(kept) == 60, "neither the ten sentences, nor the phrase of each"
    assert not [text for text in kept if any(f" {text} " in f" {whole} " for whole in held)]


def test_the_plans_of_the_table_are_valid() -> None:
    from benchmarks.decoder_training import jobs
    from dp_forward.train.plan import Plan

    made = jobs()
    assert len(made) == 40
    assert all(Plan.from_dict({**plan, "data": {"genres": "x.csv"}}) for plan in made.values())
