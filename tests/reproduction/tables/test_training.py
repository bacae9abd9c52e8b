"""What pre-training gains, from the results of both starts."""

from typing import Any

from reproduction.model_setup import ModelSetup
from reproduction.tables.training import pretraining

TABLE = pretraining(ModelSetup())


def value(row: str, results: dict[str, dict[str, Any]]) -> object:
    cell = TABLE.at(row, "4")
    assert cell is not None
    return cell.value(results).value


def test_a_gain_is_the_difference_of_two_means_in_points() -> None:
    published, ours = (
        next(row for row in TABLE.rows if row.startswith("encoder.3: ") and word in row)
        for word in ("as published", "0.03 to 1")
    )
    results: dict[str, dict[str, Any]] = {}
    for row, accuracies in ((published, (0.63, 0.65)), (ours, (0.70, 0.71))):
        cell = TABLE.at(row, "4")
        assert cell is not None
        for job, accuracy in zip(cell.jobs, accuracies, strict=True):
            results[job.digest] = {"accuracy": accuracy}
    assert value(f"gain at {ours}", results) == "+6.5 points"
    missing = TABLE.at(published, "4")
    assert missing is not None
    del results[missing.jobs[1].digest]
    assert value(f"gain at {ours}", results) is None, "never from different numbers of seeds"


def test_only_the_share_of_the_noise_differs_between_the_two_noisy_starts() -> None:
    starts = [row for row in TABLE.rows if row.startswith("encoder.3: pre-trained with ")]
    assert len(starts) == 2
    plans = []
    for row in starts:
        cell = TABLE.at(row, "8")
        assert cell is not None
        plans.append(cell.jobs[0].after[0].settings)
    assert {name for name in plans[0] if plans[0][name] != plans[1][name]} == {"least_noise"}
