"""Two artefacts, each loadable without the other, and refused when touched."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from corpus.release_cases import ROWS, Numbers
from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import split_model
from dp_forward.split.artifacts import (
    ProviderSide,
    UserSide,
    half_digest,
    load_back,
    load_front,
    save_split,
)
from tiny_models import SETTINGS, tiny, tiny_inputs


@pytest.mark.parametrize("family", SETTINGS)
def test_each_half_comes_back_without_the_other(tmp_path: Path, family: str) -> None:
    for cut in ("embeddings", "encoder.2", "encoder.1.ffn", "output"):
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
