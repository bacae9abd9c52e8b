"""Long work says how long it will take: on a terminal in bars, elsewhere in a line now and then."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dp_forward.cli import output
from dp_forward.cli.output import Bars


class _Clock:
    """Seconds that pass only when a test says so."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(output, "time", made)
    return made


def _say(clock: _Clock, steps: int, *, seconds: float, total: int) -> None:
    with Bars() as bars:
        for done in range(steps + 1):
            bars("attacking", done, total, {})
            clock.now += seconds


def test_a_line_is_said_after_two_seconds_and_then_every_five(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    _say(clock, 100, seconds=0.5, total=100)
    assert capsys.readouterr().err.split("\n") == [
        "attacking: 4 of 100, 2 s elapsed, about 48 s left",
        *(
            f"attacking: {4 + 10 * n} of 100, {2 + 5 * n} s elapsed, about {48 - 5 * n} s left"
            for n in range(1, 10)
        ),
        "attacking: 100 of 100, 50 s elapsed",
        "",
    ]


def test_short_work_says_only_that_it_is_done(clock: _Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _say(clock, 10, seconds=0.1, total=10)
    assert capsys.readouterr().err == "attacking: 10 of 10\n"


def test_long_times_are_in_minutes_and_hours(clock: _Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _say(clock, 1, seconds=60.0, total=11)
    _say(clock, 1, seconds=3600.0, total=11)
    assert capsys.readouterr().err.split("\n")[:2] == [
        "attacking: 1 of 11, 60 s elapsed, about 10 min left",
        "attacking: 1 of 11, 60 min elapsed, about 10 h left",
    ]


def test_without_a_total_nothing_is_foretold(clock: _Clock, capsys: pytest.CaptureFixture[str]) -> None:
    _say(clock, 3, seconds=1.0, total=0)
    assert capsys.readouterr().err == "attacking: 2, 2 s elapsed\n"


def test_what_was_done_before_a_resume_does_not_count_as_speed(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bars() as bars:
        bars("attacking", 90, 100, {})
        clock.now += 4.0
        bars("attacking", 92, 100, {"loss": 0.5})
    assert capsys.readouterr().err == "attacking: 92 of 100, 4 s elapsed, about 16 s left loss 0.5\n"


def test_a_terminal_shows_both_times() -> None:
    screen = io.StringIO()
    bars = Bars()
    bars.live.console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    task = bars.add_task("attacking", total=10, more="")
    bars.update(task, completed=5)
    bars.live.console.print(bars.get_renderable())
    assert re.search(r"attacking.*5/10.*\d:\d\d:\d\d elapsed.*(-:--:--|\d:\d\d:\d\d) left", screen.getvalue())


def test_of_several_processes_the_first_one_speaks(
    clock: _Clock,
    dpf: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rank, speaks in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)  # as torchrun and accelerate say it
        _say(clock, 3, seconds=3.0, total=3)
        assert ("attacking: 3 of 3" in capsys.readouterr().err) is speaks
        done = dpf("explain", "-m", "privunit", "-e", "4", "--json")
        assert (done.code, done.out.startswith("{")) == (0, speaks)
    refused = dpf("explain", "-m", "privunit", "-e", "-4")
    assert (refused.code, "epsilon" in refused.err) == (2, True), "what goes wrong is said by all"
