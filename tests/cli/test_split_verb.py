"""`dpf cuts` and `dpf split`, on the real MiniLM of the demo extra."""

from pathlib import Path

import pytest
import torch

from dp_forward.split.artifacts import half_digest, load_back, load_front
from dp_forward.split.pretrained import load_model


@pytest.mark.slow
def test_the_cuts_of_the_real_model_are_listed(dpf) -> None:
    rows = dpf("cuts", "minilm", "--no-check", "--json").json
    assert len(rows) == 2 + 6 * 5 + 1
    by_name = {row["cut"]: row for row in rows}
    assert by_name["encoder.3"]["shape"] == "n x 384"
    assert not by_name["encoder.3"]["residual_dropped"]
    assert by_name["encoder.3.ffn"]["residual_dropped"]
    assert by_name["encoder.1.qkv"]["shape"] == "n x 1152"
    assert by_name["output"]["shape"] == "1 x 384"


@pytest.mark.slow
def test_every_kind_of_cut_of_the_real_weights_passes_the_leak_check(dpf, tmp_path: Path) -> None:
    model = load_model("minilm")
    del model.encoder.layer[2:]  # the other blocks are cut in the same places
    model.config.num_hidden_layers = 2
    model.save_pretrained(tmp_path)
    rows = dpf("cuts", str(tmp_path), "--json").json
    assert len(rows) == 2 + 2 * 5 + 1
    assert all(row["problems"] == [] for row in rows)


@pytest.mark.slow
def test_cuts_can_be_read_by_people(dpf) -> None:
    said = dpf("cuts", "minilm", "--no-check").out
    assert "encoder.6.attention_norm" in said
    assert "not run" in said


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["encoder.3", "encoder.6.attention_norm", "output"])
def test_the_real_model_splits_exactly(dpf, tmp_path: Path, cut: str) -> None:
    result = dpf("split", "minilm", "--cut", cut, "--out", str(tmp_path), "--labels", "2", "--json").json
    assert result["max_abs_difference"] == 0.0
    assert result["back_inputs"] == 1
    assert result["digest_front"] == half_digest(tmp_path / "front")
    front, back = load_front(tmp_path / "front"), load_back(tmp_path / "back")
    model = load_model("minilm")
    ids = torch.randint(1000, 2000, (1, 12))
    with torch.no_grad():
        assert back(front(input_ids=ids)).logits.shape == (1, 2)
        if cut == "encoder.3":
            whole = model(input_ids=ids, output_hidden_states=True).hidden_states[3]
            assert torch.equal(front(input_ids=ids), whole)


@pytest.mark.slow
def test_a_dropped_residual_is_said(dpf, tmp_path: Path) -> None:
    words = ("split", "minilm", "--cut", "encoder.3.ffn", "--out", str(tmp_path))
    assert dpf(*words, "--json").json["max_abs_difference"] is None
    assert "residual is dropped" in dpf(*words).out
    assert dpf("split", "minilm", "--cut", "encoder.3", "--out", str(tmp_path), "--width", "16").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cut", "encoder.7"], "1 to 6"),
        (["--cut", "encoder.3.fnn"], "Did you mean"),
        (["--cut", "encoder.3", "--width", "1"], "width"),
        (["--cut", "encoder.3", "--width", "384"], "width"),
        (["--cut", "encoder.3", "--labels", "0"], "labels"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(dpf, tmp_path: Path, words: list[str], said: str) -> None:
    result = dpf("split", "minilm", "--out", str(tmp_path / "halves"), *words)
    assert result.code == 2
    assert said in result.err
    line = [text for text in result.err.splitlines() if text.startswith("dpf:")]
    assert len(line) == 1
    assert "Traceback" not in result.err
    assert not (tmp_path / "halves").exists()


def test_a_model_that_is_not_there_is_one_line(dpf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = dpf("cuts", str(tmp_path / "nothing"))
    assert result.code == 2
    assert "Hugging Face" in result.err
