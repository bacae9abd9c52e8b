"""A task is a name, or the data that it stands for; what a plan leaves open is found in the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.train.defaults import effective_plan
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
from dp_forward.train.plan import Plan
from dp_forward.train.regimes import promises_of


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    rows = [f"text {i},{('billing', 'delivery', 'other')[i % 3]}" for i in range(30)]
    (tmp_path / "tickets.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return tmp_path / "tickets.csv"


def test_a_source_stands_for_a_name_and_its_place(tickets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = Plan(task="tickets", data={"tickets": str(tickets)}, epsilon=4.0)
    monkeypatch.chdir(tickets.parent)
    assert Plan(task="tickets.csv", epsilon=4.0) == named, "the same from any folder"
    moved = effective_plan(Plan(task="mine", data={"mine": str(tickets)}, epsilon=4.0))
    assert moved.labels == effective_plan(named).labels == ("billing", "delivery", "other")


def test_an_effective_plan_is_whole_and_reads_nothing_again(tickets: Path) -> None:
    plan = effective_plan(Plan(task=str(tickets), epsilon=4.0))
    assert (plan.text_column, plan.label_column, plan.validation_share) == (("text",), "label", 0.1)
    again = Plan.from_dict(plan.as_dict())
    tickets.unlink()
    assert effective_plan(again) == plan, "also where the file has gone"
    assert again.find_task().labels == plan.labels
    assert effective_plan(Plan.from_dict(plan.as_dict() | {"seed": 1})).digest() != plan.digest()


def test_a_test_part_is_measured_on_where_there_is_no_other(tickets: Path) -> None:
    tickets.rename(tickets.parent / "train.csv")
    (tickets.parent / "test.csv").write_text("text,label\nx,other\n")
    plan = effective_plan(Plan(task=str(tickets.parent), epsilon=4.0))
    assert (plan.evaluation_split, plan.validation_share) == ("test", 0.0)


def test_what_does_not_fit_a_task_is_refused(tickets: Path) -> None:
    own = str(tickets)
    for settings, message in (
        ({"task": "tickets"}, "a file, a folder, hf:NAME or one of sst2"),
        ({"task": "sst2", "text_column": ["body"]}, "left out for sst2"),
        ({"task": "sst2", "header": False}, "left out for sst2"),
        ({"task": own, "text_column": ["a", "b", "c"]}, "one or two"),
        ({"task": own, "data": {"ticket": own}}, "Did you mean tickets"),
        ({"task": own, "validation_share": 0.7}, "0 to 0.5"),
        ({"task": own, "public": own}, "the private ones"),
        ({"task": own, "public": own, "regime": "end-to-end"}, "the private ones"),
        ({"task": own, "public": "else.txt", "regime": "end-to-end"}, "left out in end-to-end"),
        ({"task": own, "regime": "public-front"}, "--public FILE"),
        (
            {"task": own, "regime": "public-front", "public": "a", "public_task": "imdb"},
            "without public_task",
        ),
        ({"task": own, "public_words": 3, "public": "a.txt", "back": "gradient"}, "public-front"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Plan.from_dict({"epsilon": 4.0, **settings})


def test_what_is_assumed_of_own_data_is_said(tickets: Path) -> None:
    from dp_forward.release_spec import ReleaseSpec

    plan = effective_plan(Plan(task=str(tickets), epsilon=4.0, public="/somewhere/forum.txt"))
    assert plan.labels is not None
    spec = ReleaseSpec(noise=plan.noise, rows=64, labels=plan.labels, width=3, cut="output")
    training = promises_of(plan, spec).training
    assert training is not None
    said = " ".join(training.as_dict()["assumptions"])
    assert "0.1 of the records, taken from them" in said
    assert "the names of the labels" in said
    assert "the texts of forum.txt are public" in said
    named = effective_plan(Plan(task="sst2", epsilon=4.0))
    other = promises_of(
        named, ReleaseSpec(noise=named.noise, rows=64, labels=("a", "b"), width=2, cut="output")
    )
    assert other.training is not None
    assert "taken from them" not in " ".join(other.training.as_dict()["assumptions"])


def test_the_baseline_takes_the_same_data(tickets: Path) -> None:
    plan = DpSgdPlan(task=str(tickets), epsilon=8.0).with_data()
    assert (plan.task, plan.labels) == ("tickets", ("billing", "delivery", "other"))
