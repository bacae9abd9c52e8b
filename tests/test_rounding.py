"""A number that people stake their privacy on is printed by `privacy.rounding`, and by no other format."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dp_forward.cli import output
from dp_forward.privacy import AnalyticGaussian, RandomizedResponse
from dp_forward.privacy.rounding import brief, percent_down, percent_up, shown_down, shown_up
from dp_forward.privacy.shuffling import shuffled_mechanism

PACKAGE = Path(__file__).parents[1] / "src" / "dp_forward"
NUMERIC = re.compile(r"[-+ #0-9,_]*(\.[0-9]+)?[eEfFgGn%]$")
ALLOWED = re.compile(
    r"accuracy|success|chance|described|commonest|height|sure|points|signal|[Ss]econds|SECONDS|mib|error"
    r"|'(low|high|share|z)'\]$|^value$|difference|values\.|sum\(|least\b|share\b|step\b|drop_words|^[tp]$"
    r"|timeout$|^wait$|^LARGEST_SCALE$|^_FURTHEST|^_WORST_CONDITION$|least_noise|_sigma'\] / row"
    r"|paper_epsilon|paper_really|^(worth|claim|estimate)$"
)
"""Accuracies, intervals, seconds, sizes, constants, what an error found, and what others' noise is worth."""
ELSEWHERE = {"privacy/charge.py"}
"""It prints its own integers, exactly, and a size that does not fit."""


def formats(tree: ast.AST) -> Iterator[str]:
    """What is formatted as a number, as it is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            parts = node.format_spec.values
            spec = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in parts)
            if NUMERIC.fullmatch(spec):
                yield ast.unparse(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "round" and len(node.args) > 1:
            yield ast.unparse(node.args[0])


@pytest.mark.slow
def test_no_promise_charge_or_budget_is_printed_by_a_format_that_rounds_to_nearest() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {shown}"
        for path in PACKAGE.rglob("*.py")
        if str(path.relative_to(PACKAGE)) not in ELSEWHERE
        for shown in formats(ast.parse(path.read_text(encoding="utf-8")))
        if not ALLOWED.search(shown)
    }
    assert found == set()
    broken = ast.parse('f"epsilon {epsilon:.4g} at {bound.delta:g}, {100 * rate:.1f} %"')
    assert list(formats(broken)) == ["epsilon", "bound.delta", "100 * rate"], "the control"


def test_fields_are_rounded_to_the_side_that_their_name_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    value = 5.682764999
    names = {"central_epsilon_upper": "5.68277", "central_epsilon_lower": "5.68276", "remaining": "5.68276"}
    output.print_fields("", dict.fromkeys(names, value) | {"local_delta": 1.0000001e-5, "epsilon": 8.0})
    shown = dict(line.split() for line in capsys.readouterr().out.splitlines() if line)
    assert shown == names | {"local_delta": "1.00001e-05", "epsilon": "8"}


def test_statements_round_delta_up() -> None:
    delta = 1.00001e-5
    assert f"({shown_up(1.0)}" == "(1.0"
    central = shuffled_mechanism(RandomizedResponse(2.0, 2), users=100_000, delta=delta)
    assert "at delta 1.001e-05 is proved" in central.upper.statement
    mechanism = AnalyticGaussian(4.0, 2.0)
    assert "1.00001e-05)-DP" in mechanism.promise(1.000009e-5)
    assert brief(shown_down(7.9999999)) == "7.99999"
    assert percent_up(0.5) == percent_down(0.5) == "50 %"
    assert [percent_down(keep) for keep in (0.98201, 0.99966, 1 - 1e-13)] == ["98.2 %", "99.96 %", "99.99 %"]
