"""A private model by the name of a checkpoint: made, trained, saved, served and asked in one call each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

import dp_forward as dpf
import tiny_task
from dp_forward.errors import InvalidInput
from dp_forward.split.artifacts import load_provider_side, load_user_side

LABELS = ["bad", "good"]
TEXTS = ["a lovely film", "the dull plot and some tired scene"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_task.write_checkpoint(tmp_path_factory.mktemp("model")))


@pytest.fixture
def model(checkpoint: str) -> dpf.PrivateModel:
    return dpf.private(checkpoint, cut="encoder.1", epsilon=8.0, labels=LABELS, rows=12, width=4, seed=0)


def test_it_trains_through_the_noise_and_says_what_it_promises(model: dpf.PrivateModel) -> None:
    output = model.train()(
        **model.tokenizer(TEXTS, padding=True, return_tensors="pt"), labels=torch.tensor([1, 0])
    )
    output.loss.backward()
    assert output.logits.shape == (2, 2)
    assert any(weight.grad is not None and weight.grad.any() for weight in model.front.parameters())
    assert model.guarantee().epsilon == pytest.approx(8.0)
    assert model.device == torch.device("cpu")


def test_what_crosses_has_all_rows_however_the_texts_were_padded(model: dpf.PrivateModel) -> None:
    model.eval()
    short = model.tokenizer(TEXTS, padding=True, return_tensors="pt")
    full = model.tokenizer(TEXTS, padding="max_length", return_tensors="pt")
    assert short["input_ids"].shape[1] < full["input_ids"].shape[1] == 12
    model.sanitizer = None
    with torch.no_grad():
        expected = model(**full).logits
        torch.testing.assert_close(model(**short).logits, expected)
        model.spec = None  # the negative control: the back attends to rows of padding too
        assert not torch.allclose(model(**short).logits, expected)


def test_longer_texts_than_cross_are_refused(model: dpf.PrivateModel) -> None:
    longer = model.tokenizer(["film " * 20], return_tensors="pt")
    with pytest.raises(InvalidInput, match="at most 12 tokens"):
        model(**longer)
    model(**model.tokenizer(["film " * 20], truncation=True, return_tensors="pt"))


@pytest.mark.slow
def test_it_is_saved_as_what_serves_and_asks_and_read_again(model: dpf.PrivateModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    user, provider = load_user_side(tmp_path / "front"), load_provider_side(tmp_path / "back")
    assert user.spec.labels == provider.spec.labels == tuple(LABELS)
    assert (user.tokens.length, user.spec.mechanism().name) == (12, "privunit")
    again = dpf.PrivateModel.from_pretrained(tmp_path, seed=1)
    assert again.guarantee().epsilon == model.guarantee().epsilon
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert again.config.id2label == {0: "bad", 1: "good"}


@pytest.mark.slow
def test_halves_of_two_kinds_of_release_are_refused(checkpoint: str, tmp_path: Path) -> None:
    for name, epsilon in (("one", 8.0), ("two", 4.0)):
        made = dpf.private(checkpoint, cut="encoder.1", epsilon=epsilon, labels=LABELS, rows=12)
        made.save_pretrained(tmp_path / name)
    (tmp_path / "one" / "back").rename(tmp_path / "one" / "kept")
    (tmp_path / "two" / "back").rename(tmp_path / "one" / "back")
    with pytest.raises(InvalidInput, match="one kind of release"):
        dpf.PrivateModel.from_pretrained(tmp_path / "one")


def test_joined_halves_have_no_tokenizer_to_save(checkpoint: str, tmp_path: Path) -> None:
    pair = dpf.split(transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint), "encoder.1")
    with pytest.raises(InvalidInput, match=r"made by dpf\.private"):
        dpf.join(pair).save_pretrained(tmp_path)


@pytest.mark.slow
def test_a_promise_per_token_is_refused_where_rows_mix(checkpoint: str) -> None:
    settings = {"epsilon": 8.0, "labels": LABELS, "rows": 12, "unit": "token"}
    assert str(dpf.private(checkpoint, cut="embeddings", **settings).guarantee().mechanism.unit) == "token"
    with pytest.raises(InvalidInput, match="unit"):
        dpf.private(checkpoint, cut="encoder.1", **settings)


@pytest.mark.slow
def test_a_pipeline_classifies_with_it(model: dpf.PrivateModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    read = dpf.PrivateModel.from_pretrained(tmp_path)
    for found in (model, read):
        classify = transformers.pipeline("text-classification", model=found, tokenizer=found.tokenizer)
        answers = classify([*TEXTS, "film " * 20], truncation=True)
        assert {answer["label"] for answer in answers} <= set(LABELS)
        everything = classify(TEXTS[0], top_k=None)
        assert {answer["label"] for answer in everything} == set(LABELS)
        assert sum(answer["score"] for answer in everything) == pytest.approx(1.0)
