"""Laws of all tables, for a small and a large model."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from dp_forward.privacy import Deployment, NoiseSpec, RandomizedResponse, compose
from dp_forward.privacy.shuffling import paper_estimate, shuffled_epsilon, shuffled_mechanism
from dp_forward.train.dpsgd.accounting import as_replace_one
from reproduction.jobs import Job, effective_settings, in_order
from reproduction.model_setup import ModelSetup
from reproduction.render.ceilings import our_columns
from reproduction.tables.catalogue import tables
from reproduction.tables.paper_sensitivity import (
    DELTA,
    LABEL_EPSILON,
    TRANSLATION,
    real_epsilon,
)
from reproduction.tables.table import Cell, Table

SETUPS = (ModelSetup(), ModelSetup("bert-base-uncased", 12, 768))
CENTRAL = "proved central epsilon, delta 1e-05"
EVERY = [(setup, table) for setup in SETUPS for table in tables(setup).values()]
everywhere = pytest.mark.parametrize(
    ("setup", "table"), EVERY, ids=[f"{table.name}-{setup.blocks}" for setup, table in EVERY]
)


RUN = {"records": 67_349, "plan": {"threshold_share": 0.2}}


def number(shown: object) -> float:
    """The number before the name of its proof."""
    return float(str(shown).split()[0])


def clones(local_epsilon: float) -> float:
    """The central epsilon that the clones prove for the records of SST-2."""
    return shuffled_epsilon(DELTA, local_epsilon=local_epsilon, users=67_349)


def called_central(table: Table) -> list[Cell]:
    """Cells with a computed number that is called central."""
    computed = [cell for cell in table.cells if cell.known is not None or cell.derived is not None]
    return [cell for cell in computed if "central" in f"{cell.row} {cell.column}".lower()]


def known_numbers(table: Table) -> list[tuple[Cell, float | str]]:
    return [(cell, cell.known()) for cell in table.cells if cell.known is not None]


def trained_end_to_end(table: Table) -> list[Job]:
    return [job for job in in_order(table.jobs()) if job.settings.get("regime") == "end-to-end"]


@everywhere
def test_no_two_cells_have_one_place(setup: ModelSetup, table: Table) -> None:
    places = Counter((cell.row, cell.column) for cell in table.cells)
    assert [place for place, times in places.items() if times > 1] == []


@everywhere
def test_a_cell_is_run_or_computed_and_not_both(setup: ModelSetup, table: Table) -> None:
    assert all(bool(cell.jobs) != (cell.known is not None) for cell in table.cells)


@pytest.mark.slow
@everywhere
def test_every_job_is_a_plan_that_would_be_taken(setup: ModelSetup, table: Table) -> None:
    for job in in_order(table.jobs()):
        made = effective_settings(job.kind, job.settings)
        assert made.get("epsilon") == job.settings.get("epsilon")


@everywhere
def test_what_is_drawn_is_in_the_table(setup: ModelSetup, table: Table) -> None:
    if table.chart is not None:
        assert {row for rows in table.chart.lines.values() for row in rows} <= set(table.rows)


@everywhere
def test_a_run_that_trains_on_raw_texts_claims_nothing_for_them(setup: ModelSetup, table: Table) -> None:
    for job in trained_end_to_end(table):
        made = effective_settings(job.kind, job.settings)
        assert made["label_epsilon"] in (None, LABEL_EPSILON)  # randomized labels: only they are promised
        assert not [name for name in made if "central" in name or "shuffle" in name]


@everywhere
def test_a_proved_central_epsilon_stands_beside_no_end_to_end_run(setup: ModelSetup, table: Table) -> None:
    """Where a table has such a run, nothing that is computed in it is called central."""
    if trained_end_to_end(table):
        assert called_central(table) == []
    else:
        assert table.name in ("proved-training", "efficiency")


@pytest.mark.slow
def test_the_positions_have_local_epsilons_only() -> None:
    found = known_numbers(tables()["positions"])
    assert found
    for cell, value in found:
        assert "local epsilon of one release" in cell.row
        assert isinstance(value, float)
        assert value > 8, "the noise of the paper's central 1, 3 and 8 is worth far more to the receiver"


@pytest.mark.slow
def test_the_central_epsilons_of_the_smaller_qqp_are_those_that_the_paper_would_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[paper_estimate.__module__], "_SHARE", 0.1)  # a hundredth is enough
    sigmas = TRANSLATION["qqp"].values()
    found = [paper_estimate(DELTA, mu=1 / s, users=19_055, epochs=3) for s in sigmas]
    shown = [f"{epsilon:.1f}" for epsilon in found]
    (said,) = [text for text in tables()["positions"].says if "19,055" in text]
    assert "{}, {} and {} in place of 1, 3 and 8".format(*shown) in said


@pytest.mark.slow
def test_proved_training_is_public_fronts_and_single_releases() -> None:
    jobs = [job for job in in_order(tables()["proved-training"].jobs()) if job.kind == "finetune"]
    assert Counter(job.settings["regime"] for job in jobs) == {"public-front": 2, "release-once": 14}
    published = [job for job in jobs if job.settings["regime"] == "release-once" and not job.after]
    assert [job.settings["model"] for job in published] == ["minilm", "minilm"]
    for job in jobs:
        if job.settings["regime"] == "release-once" and job not in published:
            (front,) = job.after
            assert front.settings["regime"] == "public-front"
            assert front.settings["seed"] == job.settings["seed"]


@pytest.mark.slow
def test_a_central_epsilon_covers_text_and_label_of_pure_releases() -> None:
    table = tables()["proved-training"]
    numbers = 0
    for row in table.rows:
        if row.startswith(("DP-SGD", "folded", "matrix Gaussian")):
            continue
        central, accuracy = (table.at(row, column) for column in (CENTRAL, "accuracy"))
        assert central is not None
        assert accuracy is not None
        assert central.jobs == accuracy.jobs, "what is proved is about the runs beside it"
        plans = [job.settings for job in accuracy.jobs]
        shown = central.value({job.digest: RUN for job in central.jobs}).value
        numbers += 1
        ((text, label),) = {(plan["epsilon"], plan["label_epsilon"]) for plan in plans}
        assert {plan["mechanism"] for plan in plans} == {"privunit"}
        release = NoiseSpec(epsilon=text, threshold_share=0.2).build()
        record = compose(release, RandomizedResponse(label, 2))
        proved = shuffled_mechanism(record, users=67_349, delta=DELTA).upper.epsilon
        assert proved is not None
        assert proved <= number(shown) <= 1.001 * proved
        assert number(shown) < clones(round(text + label, 6)), "the clones"
    assert numbers == 5


@pytest.mark.slow
def test_a_text_with_a_public_label_hides_among_those_with_the_rarer_one() -> None:
    table = tables()["proved-training"]

    def shown(text: int, records: int = 67_349) -> object:
        cell = table.at(f"matrix Gaussian {text}, label public", CENTRAL)
        assert cell is not None
        return cell.value({job.digest: {"records": records} for job in cell.jobs}).value

    released = NoiseSpec(mechanism="matrix-gaussian", epsilon=4.0, delta=DELTA).build()
    mine = Deployment(released, shuffled=29_780, public_label=True).central(DELTA)
    everybody = Deployment(released, shuffled=67_349, public_label=True).central(DELTA)
    assert mine is not None
    assert everybody is not None
    assert mine.upper.epsilon is not None
    assert everybody.upper.epsilon is not None
    assert mine.upper.epsilon <= number(shown(4)) <= 1.001 * mine.upper.epsilon
    assert number(shown(4)) > 1.5 * everybody.upper.epsilon
    assert shown(8) == "no amplification is proved"
    assert shown(4, records=60_000) is None, "how many have the rarer label is not known"


@pytest.mark.slow
def test_a_folded_record_is_proved_under_its_one_epsilon() -> None:
    table = tables()["proved-training"]
    rows = [row for row in table.rows if row.startswith("folded") and row.endswith("as published")]
    assert len(rows) == 4
    assert sum(row.startswith("folded") for row in table.rows) == 8
    cells = [table.at(row, CENTRAL) for row in rows]
    shown = [number(cell.value({}).value) for cell in cells if cell is not None]
    assert shown == sorted(shown)
    assert shown[2] == pytest.approx(0.1091)
    for epsilon, central in ((2.0, shown[1]), (4.0, shown[2]), (8.0, shown[3])):
        cell = table.at(f"DP-SGD at the promise of folded {epsilon:g}", "accuracy")
        assert cell is not None
        twice, delta = as_replace_one(cell.jobs[0].settings["epsilon"], cell.jobs[0].settings["delta"])
        assert 0.99 * central < twice <= central
        assert 0.95 * DELTA < delta <= DELTA


@pytest.mark.slow
def test_dpsgd_stands_beside_the_main_row_at_its_promise_for_one_record_replaced() -> None:
    table = tables()["proved-training"]
    central, ours = (
        table.at(row, CENTRAL)
        for row in ("DP-SGD by a trusted trainer, queries raw", "PrivUnit 4 + label 2.197")
    )
    assert central is not None
    assert ours is not None
    first, second = central.jobs
    assert {first.kind, second.kind} == {"baseline"}
    budget = {name: first.settings[name] for name in ("epsilon", "delta")}
    assert budget == {name: second.settings[name] for name in budget}
    beside = clones(6.197)
    assert number(ours.value({job.digest: RUN for job in ours.jobs}).value) < beside

    def shown(**changed: float) -> float | str | None:
        said = ({"proved": budget}, {"proved": {**budget, **changed}})
        return central.value(
            {job.digest: found for job, found in zip((first, second), said, strict=True)}
        ).value

    assert shown() == pytest.approx(2 * budget["epsilon"])
    assert 0.99 * beside < shown() <= beside, "as strict as what the clones prove, and hardly stricter"
    assert shown(epsilon=0.32) == pytest.approx(0.64, rel=1e-5), "the weakest of the runs"
    assert shown(delta=1e-5) is None, "replacing a record costs delta as well: nothing is claimed at 1e-5"


@pytest.mark.slow
def test_a_central_epsilon_needs_the_records_of_every_run_and_takes_the_fewest() -> None:
    cell = tables()["proved-training"].at("PrivUnit 4 + label 2.197", CENTRAL)
    assert cell is not None
    first, second = cell.jobs

    def shown(*records: int | None) -> float | str | None:
        said = [{} if count is None else {"records": count} for count in records]
        return cell.value({job.digest: found for job, found in zip((first, second), said, strict=True)}).value

    assert shown(67_349, 67_349) == shown(80_000, 67_349) == shown(67_349, 80_000)
    assert number(shown(67_349, 20_000)) > number(shown(67_349, 67_349))
    assert shown(67_349, None) is None


@pytest.mark.slow
def test_the_right_sensitivity_asks_for_the_epsilon_that_it_names() -> None:
    table = tables()["mechanisms"]
    for column in our_columns(table):
        for row in ("SST-2: aMGM, S = 2C, our recipe", "SST-2: PrivUnit, our recipe"):
            cell = table.at(row, column)
            assert cell is not None
            assert cell.jobs[0].settings["epsilon"] == float(column)
        paper = table.at("SST-2: aMGM, S = C, our recipe", column)
        assert paper is not None
        assert paper.jobs[0].settings["epsilon"] == real_epsilon(float(column))


@pytest.mark.slow
def test_jobs_are_shared_between_cells_and_tables() -> None:
    jobs = [job for table in tables().values() for job in table.jobs()]
    assert len(set(jobs)) < 0.8 * len(jobs)
