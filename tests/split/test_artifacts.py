"""Two artefacts, each loadable without the other, and refused when touched."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from corpus.release_cases import ROWS, Numbers
from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.client.client import Client
from dp_forward.split import split_model
from dp_forward.split.artifacts import (
    ProviderSide,
    UserSide,
    half_digest,
    load_back,
    load_front,
    load_user_side,
    save_split,
    save_user_side,
)
from tiny_models import RELATIVES, SETTINGS, WHOLE_BLOCKS, tiny, tiny_inputs
from tiny_user import SERVER, write_user


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in SETTINGS if family not in RELATIVES])
def test_each_half_comes_back_without_the_other(tmp_path: Path, family: str) -> None:
    inside = () if family in WHOLE_BLOCKS else ("encoder.1.ffn",)
    for cut in ("embeddings", "encoder.2", "output", *inside):
        _save_and_load(tmp_path / cut, family, cut)


def _save_and_load(tmp_path: Path, family: str, cut: str) -> None:
    pair = split_model(tiny(family, blocks=2), cut)
    digests = save_split(pair, tmp_path)
    inputs = tiny_inputs(family)
    with torch.no_grad():
        hidden = pair.front.eval()(**inputs)
        expected = pair.back.eval()(hidden).logits
    shutil.move(tmp_path / "back", tmp_path / "elsewhere")
    front = load_front(tmp_path / "front", digest=digests["front"])
    shutil.rmtree(tmp_path / "front")
    back = load_back(tmp_path / "elsewhere", digest=digests["back"])
    with torch.no_grad():
        assert torch.equal(front(**inputs), hidden)
        assert torch.equal(back(hidden).logits, expected)


def test_maps_and_vocabulary_heads_come_back_too(tmp_path: Path) -> None:
    pair = split_model(tiny("bert", "masked_lm"), "encoder.1", width=8, allow_vocabulary_head=True)
    save_split(pair, tmp_path)
    hidden = torch.randn(2, 5, 8)
    with torch.no_grad():
        assert torch.equal(load_back(tmp_path / "back")(hidden).logits, pair.back(hidden).logits)
    assert load_front(tmp_path / "front").width == 8


def test_only_safetensors_and_json_are_written_and_the_digests_are_told(tmp_path: Path) -> None:
    digests = save_split(split_model(tiny("bert"), "encoder.1"), tmp_path)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    halves = {
        f"{side}/{name}"
        for side in ("front", "back")
        for name in ("model.safetensors", "half.json", "digest.json")
    }
    assert written == halves | {"split.json"}
    summary = json.loads((tmp_path / "split.json").read_text())
    assert summary == {
        "format": 1,
        "cut": "encoder.1",
        "digest_front": digests["front"],
        "digest_back": digests["back"],
    }
    assert half_digest(tmp_path / "front") == digests["front"]


def test_a_touched_artefact_is_refused(tmp_path: Path) -> None:
    save_split(split_model(tiny("bert"), "encoder.1"), tmp_path)
    for name in ("model.safetensors", "half.json"):
        path = tmp_path / "front" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(InvalidInput, match="digest"):
            load_front(tmp_path / "front")
        path.write_bytes(whole)
    load_front(tmp_path / "front")
    with pytest.raises(InvalidInput, match="digest"):
        load_front(tmp_path / "front", digest="0" * 64)


@pytest.mark.parametrize("text", ["{}", "not json"])
def test_an_unreadable_digest_is_refused(tmp_path: Path, text: str) -> None:
    save_split(split_model(tiny("bert"), "encoder.1"), tmp_path)
    (tmp_path / "front" / "digest.json").write_text(text)
    with pytest.raises(InvalidInput, match="digest"):
        load_front(tmp_path / "front")


def test_the_wrong_half_and_missing_files_are_refused(tmp_path: Path) -> None:
    save_split(split_model(tiny("bert"), "encoder.1"), tmp_path)
    with pytest.raises(InvalidInput, match="hold a front"):
        load_front(tmp_path / "back")
    with pytest.raises(InvalidInput, match="hold a back"):
        load_back(tmp_path / "front")
    with pytest.raises(InvalidInput, match="no such file"):
        load_back(tmp_path)


def _rewrite(folder: Path, **changes) -> None:
    settings = json.loads((folder / "half.json").read_text()) | changes
    (folder / "half.json").write_text(json.dumps(settings))
    (folder / "digest.json").write_text(json.dumps({"sha256": half_digest(folder)}))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"format": 99}, "format"),
        ({"architecture": "system"}, "model class"),
        ({"architecture": "logging"}, "model class"),
        ({"model": {"model_type": "t5"}}, "family"),
        ({"cut": "encoder.2"}, "weights"),
    ],
)
def test_settings_that_ask_for_something_else_are_refused(tmp_path: Path, changes: dict, rule: str) -> None:
    save_split(split_model(tiny("bert"), "encoder.1"), tmp_path)
    _rewrite(tmp_path / "front", **changes)
    with pytest.raises(InvalidInput, match=rule):
        load_front(tmp_path / "front")


@pytest.mark.parametrize("width", [None, 8])
@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"cut": "embeddings"}, "have the cut encoder.1"),
        ({"cut": "output"}, "have the cut encoder.1"),
        ({"cut": None}, "have the cut encoder.1"),
        ({"width": 7}, "have the width"),
    ],
)
def test_a_spec_of_another_cut_or_width_than_its_half_is_refused(
    width: int | None, changes: dict, rule: str
) -> None:
    pair, tokens = split_model(tiny("bert"), "encoder.1", width=width), FixedLength(Numbers(), ROWS)
    spec = ReleaseSpec.of(pair.front, noise=NoiseSpec(), rows=ROWS, labels="ab", front="ab" * 32)
    user, provider = UserSide(pair.front, tokens, spec), ProviderSide(pair.back, spec, "cd" * 32)
    for side in (user, provider):
        with pytest.raises(InvalidInput, match=rule):
            replace(side, spec=replace(spec, **changes))


def _delete(front: Path) -> None:
    (front / "tokenizer" / "tokenizer.json").unlink()


def _swap(front: Path) -> None:
    """The same words in another order: every text becomes others."""
    path = front / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    words = list(content["model"]["vocab"])
    content["model"]["vocab"] = dict(zip(reversed(words), range(len(words)), strict=True))
    path.write_text(json.dumps(content))


def _add(front: Path) -> None:
    (front / "tokenizer" / "added_tokens.json").write_text('{"parcel": 3}')


def _shorten(front: Path) -> None:
    spec = json.loads((front / "release.json").read_text())
    (front / "release.json").write_text(json.dumps(spec | {"rows": 5}))


def _of_an_earlier_version(front: Path) -> None:
    settings = json.loads((front / "half.json").read_text())
    old = {name: value for name, value in settings.items() if name not in ("rows", "tokenizer")}
    (front / "half.json").write_text(json.dumps(old))
    (front / "digest.json").write_text(json.dumps({"sha256": half_digest(front)}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_delete, "hold the tokenizer that its digest names"),
        (lambda front: shutil.rmtree(front / "tokenizer"), "hold the tokenizer that its digest names"),
        (_swap, "hold the tokenizer that its digest names"),
        (_add, "hold the tokenizer that its digest names"),
        (_shorten, "have 12 rows"),
        (_of_an_earlier_version, "an earlier version. Make it again"),
    ],
)
def test_a_front_whose_texts_would_become_others_is_refused_before_anything_is_charged(
    tmp_path: Path, change, rule: str
) -> None:
    write_user(tmp_path, noise=NoiseSpec())
    load_user_side(tmp_path / "front")
    change(tmp_path / "front")
    with pytest.raises(InvalidInput, match=rule):
        Client(tmp_path / "front", server=SERVER, ledger=tmp_path / "ledger", budget=50)
    assert not (tmp_path / "ledger").exists()


@pytest.mark.slow
def test_the_digest_of_a_front_tells_tokenizers_and_lengths_apart_and_is_the_same_for_the_same(
    tmp_path: Path,
) -> None:
    write_user(tmp_path / "a", noise=NoiseSpec())
    user = load_user_side(tmp_path / "a" / "front")
    assert half_digest(tmp_path / "a" / "front") == user.digest

    def digest_of(tokenizer, **changes) -> str:
        return save_user_side(user.front, replace(user.spec, **changes), tokenizer, tmp_path / "b")

    tokenizer = user.tokens.tokenizer
    again = digest_of(tokenizer)
    user.tokens.encode(["a quiet film"])
    assert digest_of(tokenizer) == again, "what a tokenizer was used for is not part of it"
    assert digest_of(tokenizer, rows=11) != again
    assert digest_of(transformers.BertTokenizerFast(vocab={"[UNK]": 0, "[PAD]": 1})) != again


def test_the_digest_follows_the_recipe_of_the_wire_format(tmp_path: Path) -> None:
    front = write_user(tmp_path, noise=NoiseSpec()) / "front"
    parts = [(name, (front / name).read_bytes()) for name in ("half.json", "model.safetensors")]
    recipe = b"".join(f"{name}:{len(data)}\n".encode() + data for name, data in parts)
    assert load_user_side(front).digest == hashlib.sha256(recipe).hexdigest()
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (front / "tokenizer").iterdir()
    }
    settings = json.loads(parts[0][1])
    assert (settings["rows"], settings["tokenizer"]) == (12, files)
    assert "tokenizer.json" in files
