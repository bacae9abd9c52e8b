"""A job is known by what decides its result, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.train import defaults
from reproduction.jobs import FIRST, Job, in_order

PLAN = {"task": "sst2", "model": "minilm", "regime": "end-to-end", "cut": "output", "epsilon": 8.0}


def finetune(**changed: Any) -> Job:
    return Job("finetune", PLAN | changed)


def test_the_same_effective_plan_is_the_same_job() -> None:
    spelt_out = finetune(rows=64, width=4, epochs=1, draws=16)
    assert finetune() == spelt_out
    assert len({finetune(), spelt_out}) == 1
    assert Job("finetune", PLAN, weight=9.0) == finetune()


@pytest.mark.parametrize(
    "changed",
    [{"epsilon": 8.0001}, {"cut": "embeddings"}, {"rows": 32}, {"seed": 1}, {"mechanism": "matrix-gaussian"}],
)
def test_another_setting_is_another_job(changed: dict[str, Any]) -> None:
    assert finetune(**changed) != finetune()


def test_another_default_rule_is_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = finetune().digest
    spelt_out = finetune(warm_up_epochs=4).digest
    assert spelt_out == before
    monkeypatch.setattr(defaults, "_OUTPUT", {**defaults._OUTPUT, "warm_up_epochs": 5})
    assert finetune().digest != before
    assert finetune(warm_up_epochs=4).digest == before, "what the plan says itself, no rule changes"


def test_where_data_lies_does_not_matter() -> None:
    assert finetune(data={"sst2": "/somewhere"}) == finetune(data={"sst2": "/elsewhere"}) == finetune()
    baseline = {"task": "sst2", "model": "minilm", "epsilon": 1.0}
    assert Job("baseline", {**baseline, "data": {"sst2": "/somewhere"}}) == Job("baseline", baseline)


def test_what_a_job_builds_on_decides_and_its_folder_does_not() -> None:
    released = PLAN | {"regime": "release-once", "model": FIRST}
    jobs = [Job("finetune", released, (finetune(seed=seed),)) for seed in (0, 1, 0)]
    assert jobs[0] == jobs[2] != jobs[1]
    assert jobs[0] != Job("finetune", released)


def test_the_kind_decides() -> None:
    assert Job("inversion", {"limit": 1}) != Job("attribute", {"limit": 1})
    assert Job("inversion", {"limit": 1}) != {"limit": 1}


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidInput, match="got 'training'"):
        Job("training", {})


@pytest.mark.parametrize(
    ("kind", "plan"), [("finetune", PLAN), ("baseline", {"task": "sst2"}), ("pretrain", {"corpus": "some"})]
)
def test_an_unknown_setting_of_a_plan_is_refused(kind: str, plan: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="got 'epsilom'"):
        _ = Job(kind, {**plan, "epsilom": 8.0}).digest


def test_what_is_built_on_comes_first_and_each_once() -> None:
    base, other = finetune(), finetune(seed=1)
    middle = Job("queries", {"draws": 1}, (base,))
    last = Job("membership", {"draws": 1}, (middle, other))
    found = in_order([last, Job("queries", {"draws": 1}, (finetune(),)), base])
    assert found == [base, middle, other, last]


def test_a_job_shows_its_kind_and_digest_only() -> None:
    job = finetune()
    assert repr(job) == f"Job(finetune, {job.digest[:12]})"
