"""The front as ONNX: torch's matrix, the same tokens, one digest; and never a promise per token."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import tiny_models
import tiny_task
import tiny_user
from dp_forward.data import FixedLength
from dp_forward.data.tokens import FastTokenizer, tokenizer_facts
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.client.client import Client
from dp_forward.service.protocol.policy import Policy
from dp_forward.split import onnx_front, split_model
from dp_forward.split.artifacts import (
    AskingSide,
    OnnxSide,
    UserSide,
    half_digest,
    load_asking_side,
    load_user_side,
    save_user_side,
)
from dp_forward.split.pretrained import load_tokenizer

ODD = (
    "a",
    "   a\tquiet\n film ",
    "naïve CAFÉ, e\u0301 \u200b\ufeff",
    "🙂👩‍👩‍👧 ٣ 映画はとても静かだ",
    "[CLS] [SEP] [PAD] [MASK] </s> <pad>",
    "word " * 2000,
    "unspeakablylongwordwithoutanyspace" * 300,
    "\x00\x07 control",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(onnx_front.SWITCH)
        folder = tmp_path_factory.mktemp("light") / "run"
        return tiny_user.write_user(folder, noise=NoiseSpec(epsilon=2.0))


@pytest.fixture
def front(run: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    return shutil.copytree(run / "front", tmp_path / "front")


def entry(front: Path) -> dict[str, Any]:
    return json.loads((front / "half.json").read_text()).get("onnx", {})


def hidden(side: AskingSide, text: str) -> np.ndarray[Any, Any]:
    return side.hidden(side.tokens.encode_arrays([text])[0])


def test_an_onnx_front_gives_torchs_matrix_within_the_difference_it_states(run: Path) -> None:
    light, whole = load_asking_side(run / "front"), load_user_side(run / "front")
    assert (type(light), light.digest, light.spec) == (OnnxSide, whole.digest, whole.spec)
    stated = entry(run / "front")["max_difference"]
    assert 0 < stated < 1e-5
    for text in ("a lovely film", *ODD):
        away = np.abs(hidden(light, text) - hidden(whole, text)).max()
        assert away <= 4 * stated


# One of each kind; the others differ in names, and a saved front is compared with torch's each time.
@pytest.mark.parametrize("family", ["bert", "albert", "modernbert", "gpt2", "qwen3"])
@pytest.mark.slow
def test_a_family_of_each_kind_can_be_exported(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.delenv(onnx_front.SWITCH)
    tokenizer = transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(tiny_task.WORDS)})
    words = {"vocab_size": len(tiny_task.WORDS), "pad_token_id": 0}
    for cut, width in (("encoder.1", 4), ("output", None)):
        made = split_model(tiny_models.tiny(family, blocks=2, **words), cut, width=width).front
        spec = ReleaseSpec.of(made, noise=NoiseSpec(epsilon=2.0), rows=12, labels=tiny_user.LABELS)
        save_user_side(made, spec, tokenizer, tmp_path / cut)
        assert type(load_asking_side(tmp_path / cut / "front")) is OnnxSide, [str(w) for w in recwarn]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [3, 12, 64])
def test_a_tokenizer_json_is_read_exactly_as_by_transformers(
    causal: bool, length: int, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer("minilm")
    tokenizer.save_pretrained(tmp_path)
    light = FastTokenizer(tmp_path / "tokenizer.json", tokenizer_facts(tokenizer))
    theirs, ours = (FixedLength(one, length, causal=causal) for one in (tokenizer, light))
    for parts in ([list(ODD)], [list(ODD), list(ODD[::-1])]):
        expected, cut = theirs.encode_arrays(*parts)
        found, cut_too = ours.encode_arrays(*parts)
        assert expected.keys() == found.keys()
        assert cut == cut_too > 0
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
    for text in ODD:  # as a client finds out whether a text is cut, and whether there is anything to read
        calls = [
            one([text], truncation=True, max_length=length + 1)["input_ids"] for one in (tokenizer, light)
        ]
        assert calls[0] == calls[1]
    assert light([""])["input_ids"] == tokenizer([""])["input_ids"]


def test_the_file_holds_no_weights_and_no_path_of_the_machine(run: Path) -> None:
    data, weights = (run / "front" / "front.onnx").read_bytes(), run / "front" / "model.safetensors"
    assert b"model.safetensors" in data
    assert not any(word in data for word in (b"site-packages", b".py", str(run).encode()))
    table = load_user_side(run / "front").front.plain.model.embeddings.word_embeddings.weight
    row = table.detach().numpy()[3].tobytes()
    assert row in weights.read_bytes()
    assert row not in data


@pytest.mark.parametrize("change", ["bytes", "gone", "weights"])
def test_a_front_whose_onnx_or_weights_changed_is_refused_by_both(change: str, front: Path) -> None:
    file = front / ("model.safetensors" if change == "weights" else "front.onnx")
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    for load in (load_asking_side, load_user_side):
        with pytest.raises(InvalidInput, match="digest"):
            load(front)


def test_an_onnx_file_that_does_not_load_is_one_line(front: Path) -> None:
    (front / "front.onnx").write_bytes(b"nothing")
    settings = json.loads((front / "half.json").read_text())
    settings["onnx"]["sha256"] = onnx_front.file_digest(front / "front.onnx")
    _settle(front, settings)
    with pytest.raises(InvalidInput, match="ONNX form"):
        load_asking_side(front)
    assert type(load_user_side(front)) is UserSide


@pytest.mark.parametrize("place", ["initializer", "node", "function", "hidden behind another value"])
@pytest.mark.parametrize("name", ["../secret", "extra.bin", "model.safetensors"])
def test_a_graph_that_reads_another_file_is_refused_before_it_is_loaded(
    name: str, place: str, front: Path
) -> None:
    """Its maker's digests are right; what it would read is the user's, or covered by none of them."""
    settings = json.loads((front / "half.json").read_text())
    (front.parent / "secret").write_bytes(bytes(1 << 16))
    (front / "extra.bin").write_bytes(bytes(1 << 16))
    first = _message(2, b"model.safetensors") * place.startswith(
        "hidden"
    )  # of two values the last one counts
    entry = _message(13, _message(1, b"location") + first + _message(2, name.encode()))
    tensor = _message(8, b"more") + entry
    attribute = _message(5, _message(1, b"value") + _message(5, tensor))
    graph = {"node": _message(1, attribute)}.get(place, _message(5, tensor))
    added = _message(25, _message(7, attribute)) if place == "function" else _message(7, graph)
    file = front / "front.onnx"
    file.write_bytes(file.read_bytes() + added)
    settings["onnx"]["sha256"] = onnx_front.file_digest(file)
    _settle(front, settings)
    loaded = onnx_front.OnnxFront(front, settings)
    if name == "model.safetensors":  # the control: the check alone takes it
        assert set(onnx_front._external_files(file.read_bytes())) == {name}
        return
    with pytest.raises(InvalidInput, match=r"read model\.safetensors alone"):
        loaded.start()
    with pytest.raises(InvalidInput, match=r"read model\.safetensors alone"):
        load_asking_side(front)


def _message(number: int, data: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""

    def varint(value: int) -> bytes:
        return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])

    return varint(number << 3 | 2) + varint(len(data)) + data


def _settle(front: Path, settings: dict[str, Any]) -> None:
    """Whoever makes a front makes its digest too."""
    (front / "half.json").write_text(json.dumps(settings))
    (front / "digest.json").write_text(json.dumps({"sha256": half_digest(front)}))


def test_saving_the_same_front_again_keeps_its_digest_and_its_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    monkeypatch.delenv(onnx_front.SWITCH)
    made: list[object] = []
    monkeypatch.setattr(onnx_front, "_export", lambda *given: made.append(given) or b"no graph")
    tiny_user.write_user(copied, noise=NoiseSpec(epsilon=2.0))
    assert not made
    assert half_digest(copied / "front") == half_digest(run / "front")
    # Another front under the old graph would be another function: it is made anew, here in vain.
    with pytest.warns(UserWarning, match=r"No front\.onnx was made"):
        tiny_user.write_user(copied, noise=NoiseSpec(epsilon=2.0), rows=11)
    assert made
    assert not (copied / "front" / "front.onnx").exists()
    assert type(load_asking_side(copied / "front")) is UserSide


def test_a_front_that_differs_from_torch_is_not_exported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = load_user_side(run / "front")
    monkeypatch.delenv(onnx_front.SWITCH)
    given = (run / "front" / "front.onnx").read_bytes()
    monkeypatch.setattr(onnx_front, "_export", lambda *_: given)
    user.front.narrow.weight.data *= 1 + 2e-5  # type: ignore[union-attr, operator]
    save_user_side(user.front, user.spec, user.tokens.tokenizer, tmp_path / "same")
    assert "onnx" in json.loads((tmp_path / "same" / "front" / "half.json").read_text())
    honest = onnx_front.OnnxFront.hidden
    monkeypatch.setattr(onnx_front.OnnxFront, "hidden", lambda *args: honest(*args) * np.float32(1.001))
    with pytest.warns(UserWarning, match="within 0.0001 of its norm"):
        save_user_side(user.front, user.spec, user.tokens.tokenizer, tmp_path / "other")
    assert not entry(tmp_path / "other" / "front")


def test_a_promise_per_token_is_kept_by_torch_alone(
    front: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(onnx_front.SWITCH)
    noise = NoiseSpec(epsilon=8.0, unit="token", rows=12)
    made = tiny_user.write_user(tmp_path / "run", noise=noise, cut="embeddings", width=None) / "front"
    assert not entry(made)
    # A maker who adds an export all the same is not believed.
    shutil.copy(front / "front.onnx", made)
    width = json.loads((made / "release.json").read_text())["noise"]["columns"] or tiny_models.WIDTH
    added = entry(front) | {"width": width}
    _settle(made, json.loads((made / "half.json").read_text()) | {"onnx": added})
    assert type(load_asking_side(made)) is UserSide


def test_a_text_is_drawn_for_once_whichever_front_reads_it(run: Path, tmp_path: Path) -> None:
    light, whole = load_asking_side(run / "front"), load_user_side(run / "front")
    network = tiny_user.Network(tmp_path / "log", tiny_user.manifest_of(Policy.of(whole)))

    def client(side: AskingSide) -> Client:
        settings = {"ledger": tmp_path / "ledger", "transport": network.transport()}
        return Client(side, server=tiny_user.SERVER, budget=8.0, **settings)

    with client(light) as first:
        assert first.ask("a lovely film").charge == 2.0
    with client(whole) as second:
        answer = second.ask("a lovely film", resend=True)
        assert (answer.charge, answer.resent) == (0.0, True)
        assert second.ask("a dull plot").charge == 2.0
    with client(light) as third:
        assert third.ask("a dull plot", resend=True).charge == 0.0
    assert network.posted[0] == network.posted[1] != network.posted[2] == network.posted[3]


def test_an_onnx_front_works_on_both_sides_of_a_fork(run: Path) -> None:
    side = load_asking_side(run / "front")
    before = hidden(side, "a lovely film")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(hidden(side, "a lovely film")))
    child.start()
    assert ours.poll(30)
    assert np.array_equal(ours.recv(), before)
    child.join(30)
    assert np.array_equal(hidden(side, "a lovely film"), before)


def test_a_front_of_an_earlier_version_or_without_the_switch_asks_with_torch(tmp_path: Path) -> None:
    folder = tiny_user.write_user(tmp_path / "run", noise=NoiseSpec(epsilon=2.0))
    side = load_asking_side(folder / "front")
    assert type(side) is UserSide
    assert replace(side.spec, front=None) == replace(load_user_side(folder / "front").spec, front=None)
