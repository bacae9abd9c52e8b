"""A user's own four-label file, from `dpf finetune` to `dpf evaluate` and `dpf release`."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from tiny_task import BAD, GOOD, PLAIN, TinyWorld

TOPICS = dict(zip(("billing", "delivery", "login", "other"), zip(GOOD, BAD, strict=True), strict=True))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return TinyWorld.under(tmp_path_factory.mktemp("world"))


def write_tickets(
    path: Path, count: int, *, seed: int = 0, columns: tuple[str, str] = ("body", "topic")
) -> Path:
    """Texts that two of their words give away; one in ten is longer than the twelve rows of a plan here."""
    chosen, names = random.Random(seed), list(TOPICS)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        for i in range(count):
            words = chosen.choices(PLAIN, k=20 if i % 10 == 0 else 4) + list(TOPICS[names[i % 4]])
            chosen.shuffle(words)
            rows.writerow([" ".join(words), names[i % 4]])
    return path


def _words(world: TinyWorld, *more: str) -> list[str]:
    small = ["--rows", "12", "--width", "4", "--batch", "16", "--epochs", "1", "--evaluation-draws", "2"]
    return ["--model", str(world.model), *small, "--epsilon", "8", *more]


@pytest.mark.slow
def test_a_file_with_four_labels_is_trained_measured_and_released(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    data, run = write_tickets(tmp_path / "tickets.csv", 200), tmp_path / "run"
    done = dpf("finetune", str(data), *_words(world, "--out", str(run), "--json"))
    assert done.code == 0, done.err
    assert "labels = ('billing', 'delivery', 'login', 'other')" in done.err, "shown before anything runs"
    assert done.json["labels"] == list(TOPICS)
    assert (done.json["records"], done.json["texts"]) == (180, 20)
    told = " ".join(done.json["data"])
    assert "20 of its records were split off" in told
    assert "declared PUBLIC" in told
    assert "of 180 texts are cut to 12 tokens" in told
    plan = json.loads((run / "plan.json").read_text())["plan"]
    assert (plan["task"], plan["labels"], plan["validation_share"]) == ("tickets", list(TOPICS), 0.1)
    assert json.loads((run / "front" / "release.json").read_text())["labels"] == list(TOPICS)
    assert "declared PUBLIC" in (run / "report.md").read_text()
    assumed = done.json["guarantee"]["training"]["assumptions"]
    assert any("0.1 of the records" in text for text in assumed)

    again = dpf("finetune", str(data), *_words(world, "--out", str(run), "--json"))
    assert again.json["accuracy"] == done.json["accuracy"]
    found = dpf("evaluate", str(run), "--draws", "2", "--json")
    assert (found.code, found.json["texts"], found.json["split"]) == (0, 20, "validation")
    other = write_tickets(tmp_path / "other.csv", 40, seed=1)
    found = dpf(
        "evaluate", str(run), "--data", f"tickets={other}", "--split", "train", "--draws", "2", "--json"
    )
    assert (found.code, found.json["texts"]) == (0, 40)
    assert dpf("evaluate", str(run), "--data", f"ticket={other}").code == 2

    shards = dpf("release", str(run / "front"), str(other), "--out", str(tmp_path / "shards"), "--json")
    assert (shards.code, shards.json["records"]) == (0, 40), shards.err
    strange = tmp_path / "strange.csv"
    strange.write_text("text,label\nwarm film,zanzibar\n")
    refused = dpf("release", str(run / "front"), str(strange), "--out", str(tmp_path / "no"))
    assert (refused.code, "strange.csv, line 2" in refused.err, "zanzibar" in refused.err) == (2, True, False)
    bare = ["--no-labels", "--out", str(tmp_path / "bare"), "--json"]
    (tmp_path / "plain.csv").write_text("text\nwarm film\ncold plot\n")
    assert dpf("release", str(run / "front"), str(tmp_path / "plain.csv"), *bare).json["records"] == 2


@pytest.mark.slow
def test_a_public_file_with_labels_trains_the_front(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    data = write_tickets(tmp_path / "tickets.csv", 120)
    public = write_tickets(tmp_path / "public.csv", 200, seed=5, columns=("text", "class"))
    pace = ["--regime", "public-front", "--public-epochs", "1", "--set", "public_batch=16"]
    pace += ["--warm-up-epochs", "0", "--draws", "2", "--set", "public_relabel=false", "--json"]
    words = ["finetune", str(data), *_words(world, *pace)]
    done = dpf(*words, "--public", str(public), "--out", str(tmp_path / "run"))
    assert done.code == 0, done.err
    assert any("private texts are among the public ones" in said for said in done.json["data"])
    assert done.json["front_has_seen_raw_texts_of"] == ["public"]
    copied = tmp_path / "copy.csv"
    copied.write_text(
        data.read_text().replace("topic", "label", 1).upper().replace("BODY,LABEL", "body,label")
    )
    refused = dpf(*words, "--public", str(copied), "--out", str(tmp_path / "no"))
    assert (refused.code, "another at copy.csv, line 2" in refused.err) == (2, True), "labels in capitals"
    head, *rows = data.read_text().splitlines()
    copied.write_text("\n".join([head, *(row.capitalize() for row in rows)]) + "\n")
    refused = dpf(*words, "--public", str(copied), "--out", str(tmp_path / "no2"))
    assert (refused.code, "private texts in it" in refused.err) == (2, True)
    assert not (tmp_path / "no2" / "releases").exists()


def test_a_plan_file_where_data_belongs_is_told_apart(dpf: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("epsilon = 8.0\n")
    refused = dpf("finetune", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "run"))
    assert (refused.code, "--plan" in refused.err) == (2, True)


@pytest.mark.slow
def test_a_folder_without_its_tokenizer_is_refused_before_anything_is_charged(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    data, model = write_tickets(tmp_path / "tickets.csv", 80), tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_bytes((world.model / name).read_bytes())
    words = ["finetune", str(data), *_words(world, "--out", str(tmp_path / "run")), "--model", str(model)]
    refused = dpf(*words)
    assert (refused.code, "`tokenizer` must" in refused.err) == (2, True), refused.err
    vocabulary = {f"word{i}" if i > 4 else word: i for i, word in enumerate(_vocabulary(world))}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(model)
    refused = dpf(*words[:-2], "--model", str(model), "--out", str(tmp_path / "other"))
    assert (refused.code, "100% unknown" in refused.err) == (2, True), refused.err
    assert not (tmp_path / "other" / "releases").exists()


def _vocabulary(world: TinyWorld) -> list[str]:
    words = transformers.AutoTokenizer.from_pretrained(world.model).get_vocab()
    return sorted(words, key=lambda word: words[word])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "hold records; got none in a.csv"),
        ("text,label\n" + "zanzibar,x\n" * 9, "two labels or more"),
        ("text,label\n" + "zanzibar,x\n" * 9 + "zanzibar,y\n" * 2, "first at a.csv, line 11"),
        ("text,label\nzanzibar,x\nzanzibar,\n", "a.csv, line 3"),
        ("title,text,body,label\na,b,c,d\n", "got title, text, body, label"),
        ("text,label\nzanzibar\n", "a.csv, line 2"),
    ],
)
def test_a_bad_file_costs_one_line_and_leaves_nothing(
    dpf: Callable[..., Any], tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    refused = dpf("finetune", str(tmp_path / "a.csv"), "--epsilon", "4", "--out", str(tmp_path / "run"))
    assert (refused.code, message in refused.err) == (2, True), refused.err
    assert refused.err.strip().count("\n") == 0
    assert "zanzibar" not in refused.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_file_without_a_header_is_read_by_the_flag(
    dpf: Callable[..., Any], world: TinyWorld, tmp_path: Path
) -> None:
    data = write_tickets(tmp_path / "tickets.csv", 60)
    data.write_text(data.read_text().split("\n", 1)[1])
    words = [str(data), "--model", str(world.model), "--rows", "12", "--epsilon", "8"]
    words += ["--out", str(tmp_path / "run"), "--dry-run", "--json"]
    refused = dpf("finetune", *words)
    assert (refused.code, "--no-header" in refused.err) == (2, True)
    done = dpf("finetune", *words, "--no-header")
    assert done.code == 0, done.err
    assert done.json["labels"] == 4
