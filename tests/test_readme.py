"""The README is short, and its numbers are those of the proof and of the results.

`docs/test_page_commands.py` runs its commands.
"""

import json
import math
import re
from pathlib import Path
from statistics import mean

import pytest

from dp_forward.privacy import Deployment, NoiseSpec
from dp_forward.privacy.rounding import percent_up
from dp_forward.split import FAMILIES
from dp_forward.train.regimes import Regime

ROOT = Path(__file__).parents[1]
README, HOME = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/index.md"))

PUBLISHED, PUBLIC_FRONT = (
    f"SST-2, 67,349 records, {front}" for front in ("ten phrases", "public-front on IMDb")
)


def test_the_readme_is_short_and_shows_code_before_any_table() -> None:
    assert len(README.splitlines()) <= 150
    assert README.index("```python") < README.index("\n|")
    assert f"of {len(FAMILIES)} families" in README
    assert len(Regime) == 3
    assert "three [regimes]" in README


def measured() -> dict[str, dict[float, float]]:
    """Accuracies of folded records by row and epsilon."""
    rows = json.loads((ROOT / "results" / "closed-form.json").read_text(encoding="utf-8"))
    return {name: {run["epsilon"]: run["accuracy"] for run in runs} for name, runs in rows.items()}


@pytest.mark.slow
def test_the_numbers_of_the_readme_are_those_of_the_proof_and_of_the_results() -> None:
    accuracies = measured()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 3
    for epsilon, cells in rows:
        made = NoiseSpec(mechanism="privunit", epsilon=float(epsilon)).build()
        central = Deployment(made, shuffled=67349).central(1e-5, with_estimate=False)
        assert central is not None
        of_two, of_hundred = (percent_up(central.upper.guess_rate(among)) for among in (2, 100))
        alone = [percent_up(made.guess_rate(among)) for among in (2, 100)]
        published, public = (accuracies[name][float(epsilon)] for name in (PUBLISHED, PUBLIC_FRONT))
        expected = [*alone, f"{of_two} and {of_hundred}", f"{published:.2f} ({public:.2f})"]
        assert cells.split(" | ") == expected


def test_the_accuracies_of_the_readme_and_the_home_page_are_those_of_the_results() -> None:
    accuracies = measured()
    runs = json.loads((ROOT / "results" / "sst2.json").read_text(encoding="utf-8"))
    clean = mean(run["accuracy"] for run in runs if run["job"].startswith("output/none/"))
    table = (ROOT / "docs" / "paper" / "proved-training.md").read_text(encoding="utf-8")
    (dpsgd,) = re.findall(
        r"^\| DP-SGD at the promise of folded 4 .*\| (0\.\d+) \(", table, flags=re.MULTILINE
    )
    for page in (README, HOME):
        ours, public = re.findall(r"\*\*(0\.\d\d)\*\*", page)
        assert float(ours) == round(accuracies[PUBLISHED][4], 2)
        assert float(public) == round(accuracies[PUBLIC_FRONT][4], 2)
        said = " ".join(page.split())
        assert f"without any privacy it is {clean:.2f}" in said
        assert f"{float(dpsgd):.2f}" in said.partition("DP-SGD")[2][:60]


@pytest.mark.slow
def test_the_other_numbers_of_the_readme_are_proved() -> None:
    made, gaussian = (
        NoiseSpec(mechanism=name, epsilon=8.0).build() for name in ("privunit", "matrix-gaussian")
    )
    assert f"sigma {gaussian.sigma:.5f}" in README
    assert f"sigma {made.sigma:.6f}" in README
    assert 0.3 < made.sigma / gaussian.sigma < 0.34, "a third"
    assert f"at most {math.ceil(8 / math.log(2))} bits" in README
    shuffled = Deployment(NoiseSpec(mechanism="privunit", epsilon=4.0).build(), shuffled=67349)
    central = shuffled.central(1e-5, with_estimate=False)
    assert central is not None
    assert f"have a central epsilon of {central.upper.epsilon:.2f}" in README
