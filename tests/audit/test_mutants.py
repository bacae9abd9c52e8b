"""Every broken variant is caught by its check, and the honest system passes the same check."""

from collections.abc import Iterator

import pytest

from audit.mutants import MUTANTS, Mutant, World, honest_findings, service, tried, world


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant: Mutant, served: World) -> None:
    verdict = tried(mutant, served)
    assert verdict.caught, verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    # One mutant for each check; `test_service_audit` shows the honest service.
    {mutant.check: mutant for mutant in MUTANTS if mutant.check is not service}.values(),
    ids=lambda mutant: mutant.name,
)
def test_the_honest_system_passes_the_same_check(mutant: Mutant, served: World) -> None:
    assert honest_findings(mutant, served) == []


def test_the_issue_s_mutants_are_all_there() -> None:
    names = " ".join(mutant.name for mutant in MUTANTS)
    for word in (
        "sensitivity C",
        "0.9 sigma",
        "reused",
        "seeded",
        "mask",
        "shape",
        "across the batch",
        "NaN",
        "checkpointing",
        "residual",
        "wrong p",
        "threshold",
        "labels",
        "float",
        "retry",
    ):
        assert word in names
