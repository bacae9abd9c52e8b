"""A public prompt makes the front: a decoder from a GGUF file, one folded release per record."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dp_forward.errors import InvalidInput
from dp_forward.split.artifacts import load_asking_side, load_user_side
from dp_forward.train.closed_form_training import answer_words, prepare_projection

if find_spec("gguf") is None or find_spec("accelerate") is None:
    pytest.skip("needs gguf and accelerate (extra llm)", allow_module_level=True)
from tiny_gguf import write_gguf

PROMPT = "{text} good"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prompt")
    (root / "public.txt").write_text("\n".join(f"{'abcdefgh'[i % 8]} {'bad' * (i % 5)}" for i in range(80)))
    return root


def prepare(folder: Path, **settings: object):
    file = write_gguf(folder / "tiny.gguf")
    public = str(folder / "public.txt")
    chosen = {"epsilon": 4.0, "public": public, "rows": 12, "prompt": PROMPT} | settings
    return prepare_projection(str(file), ["bad", "good"], records=100, **chosen)  # type: ignore[arg-type]


def test_the_prompt_and_the_blocks_are_settings_of_the_front_and_in_its_digest(folder: Path) -> None:
    made = prepare(folder, blocks=2).save(folder / "one")
    stored = json.loads((folder / "one" / "front" / "half.json").read_text())
    assert (stored["prompt"], stored["pooling"]) == (PROMPT, "last")
    assert stored["model"]["num_hidden_layers"] == 2
    others = [
        prepare(folder, **more).save(folder / "other") for more in ({}, {"blocks": 2, "prompt": "b {text}"})
    ]
    assert len({made.spec.front, *(other.spec.front for other in others)}) == 3
    user = load_user_side(folder / "one" / "front")
    assert user.tokens.prompt == PROMPT
    tokens = made.tokens.encode_arrays(["a bad abc"])[0]
    again = user.tokens.encode_arrays(["a bad abc"])[0]
    assert {name: ids.tolist() for name, ids in tokens.items()} == {n: v.tolist() for n, v in again.items()}
    assert load_asking_side(folder / "one" / "front").tokens.prompt == PROMPT


def test_answer_words_point_where_their_score_rises(folder: Path) -> None:
    made = prepare(folder)
    front, tokenizer = made.front.plain, made.tokens.tokenizer
    mean = np.full(front.width, 0.1)
    hints = answer_words(front, tokenizer, {"bad": ["bad"], "good": ["good"]}, mean)
    assert hints is not None
    table = front.model.get_input_embeddings().weight.detach().double().numpy()
    scores = hints.rows @ table[tokenizer([" bad", " good"])["input_ids"]].squeeze(1).T
    assert (np.diff(scores, axis=1).ravel() * [-1, 1] > 0).all()
    # Words of several tokens are read as texts, and so is anything where no prompt asks for a word.
    assert answer_words(front, tokenizer, {"bad": ["bad bad"], "good": ["good"]}, mean) is None
    front.prompt = None
    assert answer_words(front, tokenizer, {"bad": ["bad"], "good": ["good"]}, mean) is None


@pytest.mark.parametrize("prompt", ["no place", "{text}", "{text} and {text}", "  {text} "])
def test_a_prompt_that_is_none_is_refused(prompt: str, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="prompt"):
        prepare(folder, prompt=prompt)


def test_a_prompt_needs_a_decoder_and_room(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="rows"):
        prepare(folder, rows=1)
    with pytest.raises(InvalidInput, match="decoder"):
        prepare_projection("minilm", ["bad", "good"], records=9, epsilon=4.0, prompt=PROMPT)
    with pytest.raises(InvalidInput, match="at most 3"):
        prepare(folder, blocks=4)
