"""Tasks are declarations that fit together."""

import pytest

from dp_forward.data.tasks import TASKS, find_task, split_name
from dp_forward.errors import InvalidInput


def test_every_task_is_whole() -> None:
    assert set(TASKS) == {"sst2", "imdb", "qqp", "rotten-tomatoes"}
    for name, task in TASKS.items():
        assert task.name == name
        assert all(split_name(split) == split for split in (*task.splits, *task.unlabelled))
        assert [task.label_of(label) for label in task.labels] == list(range(len(task.labels)))
        assert all(word in task.labels for word in task.label_words.values())
        assert set(task.other_names) <= {*task.text_fields, task.label_field}


def test_the_known_tasks_and_the_closest_are_named() -> None:
    with pytest.raises(
        InvalidInput, match=r"sst2, imdb, qqp, rotten-tomatoes; got 'sst-2'\. Did you mean sst2"
    ):
        find_task("sst-2")
    with pytest.raises(InvalidInput, match="one of these"):
        find_task("weather")
    assert find_task("Rotten_Tomatoes") is TASKS["rotten-tomatoes"]


def test_a_label_is_a_number_or_a_word() -> None:
    task = find_task("sst2")
    for value in (1, "1", " 1 ", 1.0, True, "positive", "POS", "Positive"):
        assert task.label_of(value) == 1
    for value in (
        2,
        -1,
        "2",
        "-1",
        0.5,
        float("nan"),
        float("inf"),
        None,
        "",
        "good",
        [1],
        "1" * 400,
        "\u0661",
    ):
        assert task.label_of(value) is None


def test_dev_means_validation() -> None:
    assert [split_name(name) for name in ("dev", "VAL", "validation", "train", "test")] == [
        "validation",
        "validation",
        "validation",
        "train",
        "test",
    ]
    with pytest.raises(InvalidInput, match="train, validation, test"):
        split_name("holdout")


def test_a_report_on_qqp_must_say_that_minilm_saw_it() -> None:
    assert "MiniLM" in find_task("qqp").notes
    assert "731" in find_task("rotten-tomatoes").notes
