"""The examples run, say what they are there to show, and leave nothing behind."""

import re
from pathlib import Path

import pytest

from warm_process import Script

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))

EXPECTED = {
    "audit_a_promise": (
        r"honest: .* not refuted",
        r"sigma x 0\.9: .* REFUTED by",
        r"S = C \(the authors' experiments\): .* REFUTED by",
    ),
    "classify_your_texts": (
        r"8\.0-LDP per record",
        r"a ticket is about (delivery|billing|refund)\n",
        r"right on \d+%",
        r"a second fit is refused: .* Nothing was charged.* k folds cost k epsilon",
    ),
    "finetune_with_peft_lora": (
        r"of the front: 0 tensors",
        r"step 6: loss \d",
        r"16\.0-LDP per text per query",
    ),
    "finetune_with_trainer": (
        r"6 steps, mean loss \d",
        r"training texts: NOT protected",
        r"queries: 8\.0-LDP",
    ),
    "private_inference": (r"what crosses: 12288 bytes", r"probabilities \[0\.\d+, 0\.\d+\]"),
    "release_and_train": (
        r"released 200 records",
        r"10\.0-LDP per record",
        r"charged=epsilon 10\.0",
        r"a second release is refused: .* Nothing was charged",
        r"right on \d+%",
    ),
    "serve_and_ask": (
        r"charged 8, 8 left\n\w+: charged 0, 8 left\n\w+: charged 8, 0 left",
        r"refused: The cap",
    ),
    "shuffled_central_epsilon": (
        r"epsilon 0\.3128 at delta 1e-05 is proved by the privacy blanket",
        r"no proof for this noise can promise less than 65\.\d",
        r"theorem: 8\.\n",
    ),
    "your_own_model": (r"by 0\n", r"token table: False", r"one step through the noise: loss \d"),
}
"""What each example must print. A new example needs a line here, so that it cannot run without being read."""


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_shows_and_leaves_nothing_behind(example: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}
    script = Script(example, [], log=tmp_path / "log", cwd=here, **variables)
    assert script.finish() == 0, script.errors[-2000:]
    for pattern in EXPECTED[example.stem]:
        assert re.search(pattern, script.output), (pattern, script.output)
    assert not list(here.iterdir())
    assert not list(tmp_path.glob("tmp*")), "its own temporary folder is gone too"


def test_every_example_is_expected_to_say_something() -> None:
    assert {path.stem for path in EXAMPLES} == set(EXPECTED)


def test_every_example_is_listed_and_every_listed_one_is_there() -> None:
    listed = re.findall(
        r"^\| \[(\w+\.py)\]\((\w+\.py)\) \|", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert {name for name, _ in listed} == {place for _, place in listed} == {path.name for path in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(example: Path) -> None:
    text = example.read_text("utf-8")
    assert 20 <= len([line for line in text.splitlines() if line.strip()]) <= 65
    assert text.startswith('"""')
    assert f"    python examples/{example.name}\n" in text.split('"""')[1]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_public_names_only(example: Path) -> None:
    for module, names in re.findall(
        r"^from (dp_forward\S*) import (.+)$", example.read_text("utf-8"), re.MULTILINE
    ):
        exported = __import__(module, fromlist=["__all__"]).__all__
        assert {name.strip() for name in names.split(",")} <= set(exported), module
