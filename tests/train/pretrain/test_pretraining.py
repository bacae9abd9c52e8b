"""Noisy pre-training learns through the noise, can be stopped, and ends as an ordinary checkpoint."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import tiny_task
from dp_forward.data.public_text import pack_blocks
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.split import split_model
from dp_forward.split.pretrained import load_model
from dp_forward.split.private_model import join
from dp_forward.train.pretrain.masked_lm import MaskedBlocks, Masking
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
from dp_forward.train.pretrain.pretraining import masked_loss, pretrain
from dp_forward.train.training_loop import last_checkpoint
from tiny_corpus import WORDS, any_words, one_word_each
from tiny_models import tiny

CHANCE = math.log(WORDS)
"""The loss of who knows how often words occur, and nothing of the text."""

Planned = Callable[..., PretrainPlan]


def in_file(folder: Path, texts: list[str]) -> str:
    file = folder / f"{abs(hash(tuple(texts)))}.txt"
    file.write_text("\n".join(texts) + "\n")
    return str(file)


@pytest.fixture
def planned(checkpoint: str, tmp_path: Path) -> Planned:
    """A plan that takes seconds, on a list of texts."""

    def plan(texts: list[str] | None = None, **changes) -> PretrainPlan:
        texts = one_word_each(60) if texts is None else texts
        usual = {"model": checkpoint, "cut": "encoder.1", "epsilon": 64.0, "length": 16, "batch": 16}
        usual |= {"steps": 6, "learning_rate": 5e-3, "corpus": in_file(tmp_path, texts)}
        return PretrainPlan(**(usual | changes))

    return plan


@pytest.fixture(scope="module")
def learned(checkpoint: str, tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    plan = PretrainPlan(
        model=checkpoint,
        corpus=in_file(folder, one_word_each()),
        cut="encoder.1",
        epsilon=64.0,
        length=16,
        batch=16,
        steps=100,
        learning_rate=5e-3,
    )
    return folder / "run", plan, pretrain(plan, folder=folder / "run")


@pytest.mark.slow
def test_the_loss_through_the_noise_falls_where_the_text_can_be_predicted(learned) -> None:
    _, _, report = learned
    assert report["held_out_loss_before"] > CHANCE
    assert report["held_out_loss"] < 0.5 * CHANCE
    assert report["loss"] < report["history"][0]["loss"]
    assert (report["steps"], report["head_steps"]) == (100, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("texts", "epsilon"), [(any_words, 64.0), (one_word_each, 0.05)])
def test_nothing_is_learned_from_random_words_or_through_drowning_noise(
    planned: Planned, tmp_path: Path, texts, epsilon: float
) -> None:
    report = pretrain(planned(texts(), steps=100, epsilon=epsilon), folder=tmp_path / "run")
    assert report["held_out_loss"] > 0.8 * CHANCE


@pytest.mark.slow
def test_the_result_is_an_ordinary_checkpoint_that_can_be_fine_tuned(learned) -> None:
    folder, plan, report = learned
    ours = {"plan.json", "report.json", "report.md", "lock"}
    assert {path.name for path in folder.iterdir()} - ours == {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert json.loads((folder / "report.json").read_text()) == report
    assert "costs no privacy" in (folder / "report.md").read_text()
    whole = load_model(str(folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    blocks = pack_blocks(one_word_each(), tokenizer, length=16)[-report["held_out_blocks"] :]
    items = MaskedBlocks(blocks, Masking(tokenizer), seed=(0, 2), items=len(blocks))
    found = masked_loss(whole, items, batch=16)
    assert found == pytest.approx(report["held_out_loss_without_noise"], rel=1e-6)

    model = load_model(str(folder), labels=2)
    assert torch.equal(
        model.bert.embeddings.word_embeddings.weight, whole.bert.embeddings.word_embeddings.weight
    )
    private = join(split_model(model, "encoder.1"), Sanitizer(plan.noise.build(), seed=1)).train()
    ids = torch.tensor(blocks[:8], dtype=torch.long)
    optimizer = torch.optim.Adam(private.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = private(input_ids=ids, labels=ids[:, 1] % 2).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-5:]) < 0.7 * losses[0]


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.slow
def test_a_killed_run_goes_on_where_its_last_checkpoint_was(
    checkpoint: str, planned: Planned, tmp_path: Path
) -> None:
    seen: list[str] = []

    def kill_at(moment: str):
        def progress(stage: str, done: int, total: int, numbers) -> None:
            seen.append(f"{stage} {done}")
            if seen[-1] == moment:
                raise Killed

        return progress

    headless = str(tmp_path / "headless")
    load_model(checkpoint).bert.save_pretrained(headless)
    transformers.AutoTokenizer.from_pretrained(checkpoint).save_pretrained(headless)
    plan, folder = planned(model=headless, steps=8, head_steps=3, save_every=3), tmp_path / "run"
    for moment in ("head 2", "noisy 5"):
        with pytest.raises(Killed):
            pretrain(plan, folder=folder, resume=moment != "head 2", progress=kill_at(moment))
    assert not (folder / "report.json").exists()
    assert not (folder / "model.safetensors").exists()
    # A kill in the middle of writing the next checkpoint leaves a part of it, which must not be taken.
    cut_short = folder / "stages" / "noisy" / "checkpoint-4"
    cut_short.mkdir()
    (cut_short / "model.safetensors").write_bytes(b"half")
    assert last_checkpoint(cut_short.parent).name == "checkpoint-3"
    with pytest.raises(InvalidInput, match="no other plan"):
        pretrain(replace(plan, seed=1), folder=folder, resume=True)

    Path(plan.corpus).unlink()  # it was packed at the first start, and is not read again
    report = pretrain(plan, folder=folder, resume=True, progress=kill_at(""))
    once = ["head 1", "head 2", "head 3", *(f"noisy {step}" for step in range(1, 9))]
    assert seen == [*once[:2], *once[:8], *once[6:]]
    assert (report["head_steps"], report["steps"], report["history"][-1]["step"]) == (3, 8, 8)
    assert [row["phase"] for row in report["history"]] == ["head"] * 3 + ["noisy"] * 8
    assert not (folder / "stages").exists()
    assert pretrain(plan, folder=folder, resume=True) == report


@pytest.mark.slow
def test_a_stop_does_not_change_what_is_learned_without_noise(planned: Planned, tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int, numbers) -> None:
        if done == 4:
            raise Killed

    plan = planned(mechanism="none", epsilon=None, save_every=3)
    whole = pretrain(plan, folder=tmp_path / "whole")
    with pytest.raises(Killed):
        pretrain(plan, folder=tmp_path / "stopped", progress=stop)
    resumed = pretrain(plan, folder=tmp_path / "stopped", resume=True)
    assert resumed["held_out_loss"] == whole["held_out_loss"]
    assert whole["held_out_loss"] == whole["held_out_loss_without_noise"]


@pytest.mark.slow
def test_an_encoder_gets_a_head_first_and_keeps_its_pooler(planned: Planned, tmp_path: Path) -> None:
    encoder = str(tiny_task.write_checkpoint(tmp_path / "encoder", max_position_embeddings=64))
    texts = [text for text, _ in tiny_task.sentences(200, seed=1)]
    head = {"steps": 0, "head_steps": 40, "head_learning_rate": 1e-2}
    report = pretrain(planned(texts, model=encoder, **head), folder=tmp_path / "run")
    losses = [row["loss"] for row in report["history"]]
    assert len(losses) == report["head_steps"] == 40
    assert losses[0] > 0.9 * math.log(len(tiny_task.WORDS))
    assert np.mean(losses[-10:]) < losses[0] - 0.15
    old, new = load_model(encoder), load_model(str(tmp_path / "run"), labels=2)
    assert torch.equal(new.bert.pooler.dense.weight, old.pooler.dense.weight)


@pytest.mark.slow
def test_what_cannot_be_is_refused_and_leaves_no_folder(planned: Planned, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    gpt = tmp_path / "gpt"
    tiny("gpt2", "bare").save_pretrained(gpt)
    for message, plan in (
        ("rows of the encoder", planned(cut="output")),
        ("from 1 to 2", planned(cut="encoder.3")),
        ("24 positions", planned(length=25)),
        ("family with a masked LM", planned(model=str(gpt))),
        ("Hugging Face can load", planned(model=str(tmp_path / "none"))),
        ("at least one block", planned([])),
        ("two blocks", planned(["w1 " * 15])),
        ("file, a folder", planned(corpus=str(tmp_path / "none.txt"))),
    ):
        with pytest.raises(InvalidInput, match=message):
            pretrain(plan, folder=folder)
        assert not folder.exists(), message


@pytest.mark.slow
def test_softened_noise_is_said_and_changes_what_is_learned(planned: Planned, tmp_path: Path) -> None:
    softened = pretrain(planned(steps=2, least_noise=0.25), folder=tmp_path / "run")
    assert "with 0.25 to 1 times the noise of PrivUnit" in softened["statement"]
    plain = pretrain(planned(steps=2, least_noise=1.0), folder=tmp_path / "plain")
    assert softened["held_out_loss"] != plain["held_out_loss"]
    assert " times " not in plain["statement"]


@pytest.mark.slow
def test_zero_steps_change_nothing(planned: Planned, tmp_path: Path) -> None:
    report = pretrain(planned(steps=0), folder=tmp_path / "zero")
    assert report["held_out_loss"] == report["held_out_loss_before"]
    assert (report["loss"], report["history"]) == (None, [])
    assert "costs no privacy" in report["statement"]
    assert "LDP" not in report["statement"]
