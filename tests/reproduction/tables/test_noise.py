"""Which noise a cell asks for, and from which stream."""

import pytest

from reproduction.model_setup import TASKS, ModelSetup
from reproduction.tables.catalogue import tables
from reproduction.tables.noise import finetune_job, query_job

SETUP = ModelSetup()


@pytest.mark.slow
def test_every_question_has_a_stream_of_noise_of_its_own() -> None:
    queries = {job for table in tables(SETUP).values() for job in table.jobs() if job.kind == "queries"}
    assert len(queries) > 100
    assert len({job.settings["noise_seed"] for job in queries}) == len(queries)


def test_one_question_is_one_job_and_the_noise_of_the_run_is_no_question() -> None:
    run = finetune_job(SETUP, TASKS["sst2"], "encoder.5", 8.0)
    assert query_job(run, 8.0) is run
    assert query_job(run, 4.0) == query_job(run, 4.0) != query_job(run, 5.0)
    assert query_job(run, 8.0, cut="encoder.1").settings["cut"] == "encoder.1"
