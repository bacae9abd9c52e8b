"""Which noise a cell asks for, and from which stream."""

from reproduction.model_setup import TASKS, Subject
from reproduction.tables.catalogue import tables
from reproduction.tables.noise import asked, through

SUBJECT = Subject()


def test_every_question_has_a_stream_of_noise_of_its_own() -> None:
    queries = {step for table in tables(SUBJECT).values() for step in table.steps() if step.kind == "queries"}
    assert len(queries) > 100
    assert len({step.settings["noise_seed"] for step in queries}) == len(queries)


def test_one_question_is_one_step_and_the_noise_of_the_run_is_no_question() -> None:
    run = through(SUBJECT, TASKS["sst2"], "encoder.5", 8.0)
    assert asked(run, 8.0) is run
    assert asked(run, 4.0) == asked(run, 4.0) != asked(run, 5.0)
    assert asked(run, 8.0, cut="encoder.1").settings["cut"] == "encoder.1"
