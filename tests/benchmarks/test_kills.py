"""A few kills of each party, and controls: carelessness is seen."""

from __future__ import annotations

import pytest

from benchmarks.charge_kills import kill_client, kill_quota
from benchmarks.kills import kill_collector, kill_server, run, wrong


@pytest.mark.slow
def test_kills_lose_nothing_and_double_nothing(place: str) -> None:
    numbers = iter(range(9))
    rows = run(lambda: place if "://" in place else f"{place}-{next(numbers)}", 37)
    assert wrong(rows) == 0
    assert [row["kills"] for row in rows] == [8, 8, 7, 7, 7]
    assert all(row["acknowledged"] for row in rows)
    quota, client = rows[3:]
    assert quota["at_their_cap"] > 0
    assert client["interrupted"] > 0


@pytest.mark.slow
def test_an_acknowledgement_before_the_commit_is_seen(tmp_path: object) -> None:
    assert kill_collector(f"{tmp_path}/c", 10, careless=True)["lost"] > 0


@pytest.mark.slow
def test_an_answer_of_ones_own_is_seen(tmp_path: object) -> None:
    assert kill_server(f"{tmp_path}/s", 5, careless=True)["twice"] > 0


@pytest.mark.slow
def test_an_answer_beyond_a_quota_is_seen(tmp_path: object) -> None:
    assert kill_quota(f"{tmp_path}/q", 5, careless=True)["lost"] > 0


@pytest.mark.slow
def test_a_client_that_does_not_know_its_texts_is_seen(tmp_path: object) -> None:
    assert kill_client(f"{tmp_path}/c", 5, careless=True)["twice"] > 0
