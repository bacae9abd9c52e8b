"""Routes: the front picks the nearest entry, and the provider has the replies."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import tiny_models
import tiny_task
from dp_forward.errors import InvalidInput
from dp_forward.noise.released.released_matrix import release_batch
from dp_forward.privacy import KaryResponse
from dp_forward.split.artifacts import load_provider_side, load_user_side
from dp_forward.train.routing import Route, generate_replies, make_route
from tiny_gguf import needs_gguf, write_gguf

ENTRIES = {"a lovely bright film": "Watch it.", "a dull cold book": "Leave it.", "the grim story": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_task.write_checkpoint(tmp_path_factory.mktemp("route") / "model")


@pytest.fixture(scope="module")
def route(model: Path) -> Route:
    return make_route(ENTRIES, epsilon=3.0, model=str(model), rows=12)


def scores(route: Route, texts: list[str]) -> torch.Tensor:
    with torch.no_grad():
        return route.pair.front(**route.tokens.encode(texts))[:, 0]


def test_scores_are_cosines_and_an_entry_is_nearest_to_itself(route: Route) -> None:
    found = scores(route, list(ENTRIES))
    assert torch.allclose(found.diagonal(), torch.ones(3), atol=1e-5)
    assert torch.equal(found.argmax(dim=1), torch.arange(3))
    assert found.abs().max() <= 1 + 1e-5


def test_a_question_is_released_as_one_of_k_answers_at_epsilon(route: Route) -> None:
    """The odds of any answer to two questions differ by e^eps at most; half of that epsilon is refuted."""
    assert route.response == KaryResponse(3.0, 3)
    hidden = scores(route, list(ENTRIES)[:2])
    drawn = [
        np.mean([made.values[0] > 0 for made in release_batch(matrices, route.response, bits=8)], axis=0)
        for matrices in (one.numpy()[None, None].repeat(2000, axis=0) for one in hidden)
    ]
    odds = np.log(drawn[0] / drawn[1])
    assert abs(odds[0] - 3.0) < 0.6
    assert abs(odds[1] + 3.0) < 0.6
    assert abs(odds[0] - 1.5) > 0.6


def test_the_provider_has_the_replies_and_the_user_the_entries(route: Route, tmp_path: Path) -> None:
    route.save(tmp_path)
    provider, user = load_provider_side(tmp_path / "back"), load_user_side(tmp_path / "front")
    assert provider.replies == {entry: reply for entry, reply in ENTRIES.items() if reply}
    assert user.spec.labels == provider.spec.labels == tuple(ENTRIES)
    assert not any("Watch" in path.read_text(errors="ignore") for path in (tmp_path / "front").glob("*.json"))


@pytest.mark.parametrize("reply", ["", "x" * 9000, "\x1b[2J"])
def test_a_reply_that_a_terminal_should_not_see_is_refused(route: Route, tmp_path: Path, reply: str) -> None:
    broken = dataclasses.replace(route, replies={next(iter(ENTRIES)): reply})
    with pytest.raises(InvalidInput, match="printable"):
        broken.save(tmp_path)


def test_a_language_model_answers_each_prompt_once_and_alike(tmp_path: Path) -> None:
    settings = tiny_models.SETTINGS["gpt2"] | {"vocab_size": len(tiny_task.WORDS), "num_hidden_layers": 1}
    writer = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings))
    tiny_models.randomise(writer, seed=0)  # as it starts, it says padding only
    writer.save_pretrained(tmp_path)
    vocabulary = {word: number for number, word in enumerate(tiny_task.WORDS)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(tmp_path)
    prompts = ["a lovely film", "the grim story"]
    said = generate_replies(prompts, model=str(tmp_path), most_tokens=5)
    assert said == generate_replies(prompts, model=str(tmp_path), most_tokens=5)
    assert len(said) == 2
    assert any(said)
    assert all(len(reply.split()) <= 5 and reply.isprintable() for reply in said)
    with pytest.raises(InvalidInput, match="causal language model"):
        generate_replies(prompts, model=str(tmp_path / "none"))


@needs_gguf
def test_a_gguf_file_answers_prompts_and_a_broken_one_is_refused_by_its_header(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    said = generate_replies(["bad", "good"], model=str(file), most_tokens=5)
    assert said == generate_replies(["bad", "good"], model=str(file), most_tokens=5)
    assert any(said)
    file.write_bytes(b"GGML" + file.read_bytes()[4:])
    with pytest.raises(InvalidInput, match=r"`generate` must .*begin with GGUF"):
        generate_replies(["bad"], model=str(file))
