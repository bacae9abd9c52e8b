"""The README is short, and its numbers come out of the proof; `docs/test_page_commands.py` runs the rest."""

import re
from pathlib import Path

import pytest

from dp_forward.privacy import Deployment, NoiseSpec
from dp_forward.privacy.rounding import percent_up
from dp_forward.split import FAMILIES

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short_and_shows_code_before_any_table() -> None:
    assert len(README.splitlines()) <= 150
    assert README.index("```python") < README.index("\n|")
    assert f"of {len(FAMILIES)} families" in README


@pytest.mark.slow
def test_the_numbers_of_the_readme_are_those_of_the_proof() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 3
    for epsilon, cells in rows:
        made = NoiseSpec(mechanism="privunit", epsilon=float(epsilon)).build()
        central = Deployment(made, shuffled=67349).central(1e-5, with_estimate=False)
        assert central is not None
        of_two, of_hundred = (percent_up(central.upper.guess_rate(among)) for among in (2, 100))
        alone = [percent_up(made.guess_rate(among)) for among in (2, 100)]
        assert cells.split(" | ") == [*alone, f"{of_two} and {of_hundred}"]
