"""What a cell shows of what was run."""

from __future__ import annotations

from reproduction.jobs import Job
from reproduction.tables.table import Cell, Table

FIRST_SEED, SECOND_SEED = (Job("attribute", {"seed": seed}) for seed in (0, 1))
BOTH = (FIRST_SEED, SECOND_SEED)


def found(*accuracies: float | None) -> dict[str, dict[str, float]]:
    return {
        job.digest: {"accuracy": value, "accuracy_low": value - 0.1, "accuracy_high": value + 0.2}
        for job, value in zip(BOTH, accuracies, strict=False)
        if value is not None
    }


def test_a_cell_that_was_not_run_shows_nothing() -> None:
    value = Cell("a", "1", BOTH).value({})
    assert value.value is None
    assert not value.run
    assert value.parts == ()


def test_a_cell_is_the_mean_of_the_seeds_that_were_run() -> None:
    cell = Cell("a", "1", BOTH)
    whole, half = cell.value(found(0.5, 0.75)), cell.value(found(None, 0.75))
    assert (whole.value, whole.parts) == (0.625, (0.5, 0.75))
    assert (half.value, half.parts) == (0.75, (0.75,))
    assert (whole.run, half.run) == (True, False), "a seed is missing"
    assert (whole.missing, half.missing) == (0, 1)


def test_only_a_single_run_has_an_interval() -> None:
    alone = Cell("a", "1", (FIRST_SEED,)).value(found(0.5))
    assert (alone.low, alone.high) == (0.4, 0.7)
    of_seeds = Cell("a", "1", BOTH).value(found(0.5, 0.5))
    assert (of_seeds.low, of_seeds.high) == (None, None)
    one_of_two = Cell("a", "1", BOTH).value(found(None, 0.5))
    assert (one_of_two.low, one_of_two.high) == (0.4, 0.7)


def test_a_success_takes_the_one_interval_of_its_attack() -> None:
    results = {FIRST_SEED.digest: {"success": 0.5, "low": 0.4, "high": 0.6, "chance": 0.3}}
    value = Cell("a", "1", (FIRST_SEED,), "success").value(results)
    assert (value.value, value.low, value.high) == (0.5, 0.4, 0.6)
    chance = Cell("a", "1", (FIRST_SEED,), "chance").value(results)
    assert (chance.value, chance.low, chance.high) == (0.3, None, None)


def test_a_dot_goes_inside() -> None:
    results = {FIRST_SEED.digest: {"ghost": {"milliseconds": 2, "memory_mib": None}, "accuracy": 1.0}}
    assert Cell("a", "1", (FIRST_SEED,), "ghost.milliseconds").value(results).value == 2.0
    for metric in ("ghost", "ghost.memory_mib", "hooks.milliseconds", "accuracy.milliseconds"):
        assert not Cell("a", "1", (FIRST_SEED,), metric).value(results).run


def test_a_formula_needs_no_run() -> None:
    assert Cell("a", "1", known=lambda: 0.25).value({}).value == 0.25
    assert Cell("a", "1", known=lambda: "none is proved").value({}).run


def test_a_derived_number_is_of_the_runs_that_are_there() -> None:
    cell = Cell("a", "1", BOTH, derived=lambda results: float(len(results)))
    assert cell.value({}).value is None
    half, whole = cell.value(found(0.5)), cell.value(found(0.5, 0.75))
    assert (half.value, half.run) == (1.0, False)
    assert (whole.value, whole.run) == (2.0, True)


def test_a_priority_chooses_cells_and_words_choose_among_them() -> None:
    cells = (Cell("One", "8", (FIRST_SEED,), priority=1), Cell("One", "9", (SECOND_SEED,), priority=2))
    table = Table("t", "T", "i", "c", (*cells, Cell("Ours", "8", (Job("attribute", {"seed": 2}),))))
    assert table.jobs(priority=1) == [FIRST_SEED]
    assert table.jobs(["one"], priority=2) == [SECOND_SEED]
    assert table.jobs(priority=3) == []
    assert len(table.jobs()) == 3


def test_cells_are_chosen_by_all_words() -> None:
    table = Table(
        "t",
        "T",
        "i",
        "c",
        (Cell("One", "8", (FIRST_SEED,)), Cell("One", "9", (SECOND_SEED,)), Cell("Two", "8")),
    )
    assert table.jobs() == [FIRST_SEED, SECOND_SEED]
    assert table.jobs(["one", "8"]) == [FIRST_SEED]
    assert table.jobs(["one, 9"]) == [SECOND_SEED]
    assert table.jobs(["two"]) == table.jobs(["three"]) == []
    assert (table.rows, table.columns) == (["One", "Two"], ["8", "9"])
    assert table.at("Two", "9") is None
