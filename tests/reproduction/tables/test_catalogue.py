"""Laws of all tables, for a small and a large model."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from dp_forward.privacy.shuffling import paper_estimate
from reproduction.jobs import Step, effective, in_order
from reproduction.model_setup import Subject
from reproduction.tables import paper_sensitivity as convention
from reproduction.tables.catalogue import tables
from reproduction.tables.table import Cell, Table

SUBJECTS = (Subject(), Subject("bert-base-uncased", 12, 768))
CENTRAL = "proved central epsilon, delta 1e-05"
EVERY = [(subject, table) for subject in SUBJECTS for table in tables(subject).values()]
everywhere = pytest.mark.parametrize(
    ("subject", "table"), EVERY, ids=[f"{table.name}-{subject.blocks}" for subject, table in EVERY]
)


def called_central(table: Table) -> list[Cell]:
    """Cells with a computed number that is called central."""
    computed = [cell for cell in table.cells if cell.known is not None or cell.derived is not None]
    return [cell for cell in computed if "central" in f"{cell.row} {cell.column}".lower()]


def known_numbers(table: Table) -> list[tuple[Cell, float | str]]:
    return [(cell, cell.known()) for cell in table.cells if cell.known is not None]


def trained_end_to_end(table: Table) -> list[Step]:
    return [step for step in in_order(table.steps()) if step.settings.get("regime") == "end-to-end"]


@everywhere
def test_no_two_cells_have_one_place(subject: Subject, table: Table) -> None:
    places = Counter((cell.row, cell.column) for cell in table.cells)
    assert [place for place, times in places.items() if times > 1] == []


@everywhere
def test_a_cell_is_run_or_computed_and_not_both(subject: Subject, table: Table) -> None:
    assert all(bool(cell.steps) != (cell.known is not None) for cell in table.cells)


@everywhere
def test_every_step_is_a_plan_that_would_be_taken(subject: Subject, table: Table) -> None:
    for step in in_order(table.steps()):
        made = effective(step.kind, step.settings)
        assert made.get("epsilon") == step.settings.get("epsilon")


@everywhere
def test_what_is_drawn_is_in_the_table(subject: Subject, table: Table) -> None:
    if table.chart is not None:
        assert {row for rows in table.chart.lines.values() for row in rows} <= set(table.rows)


@everywhere
def test_a_run_that_trains_on_raw_texts_claims_nothing_for_them(subject: Subject, table: Table) -> None:
    for step in trained_end_to_end(table):
        made = effective(step.kind, step.settings)
        assert made["label_epsilon"] is None
        assert not [name for name in made if "central" in name or "shuffle" in name]


@everywhere
def test_a_proved_central_epsilon_stands_beside_no_end_to_end_run(subject: Subject, table: Table) -> None:
    """Where a table has such a run, nothing that is computed in it is called central."""
    if trained_end_to_end(table):
        assert called_central(table) == []
    else:
        assert table.name in ("proved-training", "efficiency")


def test_the_positions_have_local_epsilons_only() -> None:
    found = known_numbers(tables()["positions"])
    assert found
    for cell, value in found:
        assert "local epsilon of one release" in cell.row
        assert isinstance(value, float)
        assert value > 8, "the noise of the paper's central 1, 3 and 8 is worth far more to the receiver"


def test_the_central_epsilons_of_the_smaller_qqp_are_those_that_the_paper_would_compute() -> None:
    sigmas = convention.TRANSLATION["qqp"].values()
    found = [paper_estimate(convention.DELTA, mu=1 / s, users=19_055, epochs=3) for s in sigmas]
    shown = [f"{math.ceil(10 * epsilon) / 10:g}" for epsilon in found]
    (said,) = [text for text in tables()["positions"].says if "19,055" in text]
    assert "{}, {} and {} in place of 1, 3 and 8".format(*shown) in said


def test_proved_training_is_public_fronts_and_single_releases() -> None:
    steps = [step for step in in_order(tables()["proved-training"].steps()) if step.kind == "finetune"]
    assert Counter(step.settings["regime"] for step in steps) == {"public-front": 2, "release-once": 14}
    published = [step for step in steps if step.settings["regime"] == "release-once" and not step.after]
    assert [step.settings["model"] for step in published] == ["minilm", "minilm"]
    for step in steps:
        if step.settings["regime"] == "release-once" and step not in published:
            (front,) = step.after
            assert front.settings["regime"] == "public-front"
            assert front.settings["seed"] == step.settings["seed"]


def test_a_central_epsilon_covers_text_and_label_of_pure_releases() -> None:
    table = tables()["proved-training"]
    numbers = 0
    for row in table.rows:
        if row.startswith("DP-SGD"):
            continue
        central, accuracy = (table.at(row, column) for column in (CENTRAL, "accuracy"))
        assert central is not None
        assert accuracy is not None
        assert central.steps == accuracy.steps, "what is proved is about the runs beside it"
        plans = [step.settings for step in accuracy.steps]
        shown = central.value({step.digest: {"training_records": 67_349} for step in central.steps}).value
        if isinstance(shown, float):
            numbers += 1
            (spent,) = {plan["epsilon"] + plan["label_epsilon"] for plan in plans}
            assert {plan["mechanism"] for plan in plans} == {"privunit"}
            assert min(plan["label_epsilon"] for plan in plans) > 0
            assert shown == pytest.approx(
                convention.proved_central(round(spent, 6), records=67_349), rel=1e-6
            )
            assert shown < spent
        else:
            assert shown == "no amplification is proved"
    assert numbers == 5


def test_dpsgd_stands_beside_the_main_row_at_its_promise_for_one_record_replaced() -> None:
    table = tables()["proved-training"]
    central, ours = (
        table.at(row, CENTRAL)
        for row in ("DP-SGD by a trusted trainer, queries raw", "PrivUnit 4 + label 2.197")
    )
    assert central is not None
    assert ours is not None
    first, second = central.steps
    assert {first.kind, second.kind} == {"baseline"}
    budget = {name: first.settings[name] for name in ("epsilon", "delta")}
    assert budget == {name: second.settings[name] for name in budget}
    beside = ours.value({step.digest: {"training_records": 67_349} for step in ours.steps}).value

    def shown(**changed: float) -> float | str | None:
        said = ({"proved": budget}, {"proved": {**budget, **changed}})
        return central.value(
            {step.digest: found for step, found in zip((first, second), said, strict=True)}
        ).value

    assert shown() == pytest.approx(2 * budget["epsilon"])
    assert 0.99 * beside < shown() <= beside, "as strict as ours, and hardly stricter"
    assert shown(epsilon=0.32) == pytest.approx(0.64, rel=1e-5), "the weakest of the runs"
    assert shown(delta=1e-5) is None, "replacing a record costs delta as well: nothing is claimed at 1e-5"


def test_a_central_epsilon_needs_the_records_of_every_run_and_takes_the_fewest() -> None:
    cell = tables()["proved-training"].at("PrivUnit 4 + label 2.197", CENTRAL)
    assert cell is not None
    first, second = cell.steps

    def shown(*records: int | None) -> float | str | None:
        said = [{} if count is None else {"training_records": count} for count in records]
        return cell.value(
            {step.digest: found for step, found in zip((first, second), said, strict=True)}
        ).value

    assert shown(67_349, 67_349) == shown(80_000, 67_349) == shown(67_349, 80_000)
    assert shown(67_349, 20_000) > shown(67_349, 67_349)
    assert shown(67_349, None) is None


def test_the_right_sensitivity_asks_for_the_epsilon_that_it_names() -> None:
    table = tables()["mechanisms"]
    for column in table.columns:
        for row in ("SST-2: aMGM, S = 2C (right)", "SST-2: PrivUnit (ours)"):
            cell = table.at(row, column)
            assert cell is not None
            assert cell.steps[0].settings["epsilon"] == float(column)
        paper = table.at("SST-2: aMGM, S = C (the paper's)", column)
        assert paper is not None
        assert paper.steps[0].settings["epsilon"] == convention.real_epsilon(float(column))


def test_steps_are_shared_between_cells_and_tables() -> None:
    steps = [step for table in tables().values() for step in table.steps()]
    assert len(set(steps)) < 0.8 * len(steps)
