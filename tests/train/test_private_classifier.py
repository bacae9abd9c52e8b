"""PrivateClassifier: scikit-learn's interface, and a budget that no second fit, clone or process passes."""

from __future__ import annotations

import json
import pickle
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_forward as dpf
import tiny_task
from command import caller
from dp_forward.cli.main import run
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.data.own_data import columns_of
from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.ledger.text_register import TextRegister
from dp_forward.split.artifacts import load_provider_side, load_user_side
from dp_forward.train.private_classifier import _find_classes, _read_classes

RECORDS = tiny_task.sentences(300, seed=1)
TEXTS, LABELS = [text for text, _ in RECORDS], [("dull", "lovely")[label] for _, label in RECORDS]
OTHERS = tiny_task.sentences(200, seed=2)
OTHER_TEXTS, OTHER_LABELS = [text for text, _ in OTHERS], [("dull", "lovely")[label] for _, label in OTHERS]

# One fit scores 0.85 with a deviation of 0.046, the mean of eight fits of meaningless labels 0.5 with 0.046:
# four deviations on either side.
LEARNT = 0.67


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_task.write_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=64))


@pytest.fixture(scope="module")
def fitted(model: str) -> dpf.PrivateClassifier:
    """Nothing changes it."""
    return dpf.PrivateClassifier(model, epsilon=8.0).fit(TEXTS, LABELS)


def _released() -> int:
    with TextRegister() as register:
        return int(register.summary()["released"]["entries"])


@pytest.mark.slow
def test_it_learns_from_releases_and_decides_here(fitted: dpf.PrivateClassifier) -> None:
    assert fitted.classes_.tolist() == ["dull", "lovely"]
    assert fitted.score(OTHER_TEXTS, OTHER_LABELS) > LEARNT
    odds = fitted.predict_proba(OTHER_TEXTS)
    np.testing.assert_allclose(odds.sum(axis=1), 1.0)
    np.testing.assert_array_equal(fitted.classes_[odds.argmax(axis=1)], fitted.predict(OTHER_TEXTS))
    right = fitted.predict(OTHER_TEXTS) == np.array(OTHER_LABELS)
    assert fitted.score(OTHER_TEXTS, OTHER_LABELS) == pytest.approx(right.mean())
    weights = np.where(right, 1.0, 0.0)
    assert fitted.score(OTHER_TEXTS, OTHER_LABELS, sample_weight=weights) == 1.0
    # No noise: one text alone, or among others, is told the same.
    np.testing.assert_allclose(fitted.predict_proba(OTHER_TEXTS[:3]), odds[:3], atol=1e-5)


@pytest.mark.slow
def test_labels_that_mean_nothing_are_not_learnt(model: str) -> None:
    """The negative control of the score above: half of each class is called by the other one's name."""
    order = np.argsort(LABELS, kind="stable")
    shuffled = np.empty(len(LABELS), dtype=object)
    shuffled[order] = np.resize(["dull", "lovely"], len(LABELS))

    settings: dict[str, Any] = {"epsilon": 8.0, "budget": 64.0}

    def score() -> float:
        classifier = dpf.PrivateClassifier(model, descriptions={"dull": "a", "lovely": "a"}, **settings)
        return classifier.fit(TEXTS, shuffled).score(OTHER_TEXTS, OTHER_LABELS)

    assert np.mean([score() for _ in range(8)]) < LEARNT


def test_it_promises_what_the_releases_promise(fitted: dpf.PrivateClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    corpus = ReleasedCorpus.open(tmp_path / "run" / "releases")
    assert corpus.spec.labels == "folded"
    assert len(corpus) == len(TEXTS)
    assert str(fitted.guarantee.mechanism.unit) == "record"
    assert fitted.guarantee.epsilon == corpus.spec.guarantee().epsilon == pytest.approx(8.0)
    assert fitted.guarantee_of_query.epsilon == pytest.approx(8.0)
    assert not any("measured" in assumed for assumed in fitted.guarantee.as_dict()["assumptions"])
    assert any("likely" in said for said in fitted.outlook_)
    with Ledger.open(tmp_path / "run" / "releases.private" / "ledger") as ledger:
        assert ledger.spent() == pytest.approx(8.0)


@pytest.mark.slow
def test_delta_means_gaussian_noise(model: str) -> None:
    found = dpf.PrivateClassifier(model, epsilon=8.0, delta=1e-6).fit(TEXTS, LABELS).guarantee
    assert (found.delta, found.mechanism.name) == (1e-6, "matrix-gaussian")
    assert found.epsilon == pytest.approx(8.0)


def _kinds() -> dict[str, tuple[Any, np.ndarray]]:
    import datasets
    import pandas

    numbers = [label == "lovely" for label in LABELS]
    made = datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS})
    return {
        "int64": (np.array(numbers, dtype=np.int64) - 1, np.array([-1, 0])),
        "bool": (numbers, np.array([False, True])),
        "float32": (np.array(numbers, dtype=np.float32) / 2, np.array([0.0, 0.5], dtype=np.float32)),
        "pandas words": (pandas.Series(LABELS, dtype=object), np.array(["dull", "lovely"], dtype=object)),
        "pandas categories": (pandas.Series(LABELS, dtype="category"), np.array(["dull", "lovely"])),
        "numbers as words": (np.where(numbers, "10", "9"), np.array(["10", "9"])),
        "a column of datasets": (made["label"], np.array(["dull", "lovely"])),
    }


def test_labels_of_every_kind_are_read_as_they_were_given() -> None:
    for kind, (given, classes) in _kinds().items():
        task, found = _find_classes(columns_of(TEXTS, given)[1], getattr(given, "dtype", None))
        for labels in (found, _read_classes(task.labels, found.dtype.str)):
            np.testing.assert_array_equal(labels, classes, err_msg=kind)
            assert labels.dtype == classes.dtype, kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "pandas words"])
def test_labels_come_back_as_they_were_given(kind: str, model: str, tmp_path: Path) -> None:
    labels, classes = _kinds()[kind]
    classifier = dpf.PrivateClassifier(model, epsilon=8.0).fit(np.array(TEXTS), labels)
    classifier.save(tmp_path / "run")
    for found in (classifier, dpf.PrivateClassifier.load(tmp_path / "run")):
        np.testing.assert_array_equal(found.classes_, classes)
        assert found.classes_.dtype == classes.dtype
        assert found.predict(TEXTS).dtype == classes.dtype
        assert found.score(TEXTS, labels) > 0.6


@pytest.mark.slow
def test_a_data_set_is_taken_as_it_is(model: str) -> None:
    import datasets

    words = datasets.ClassLabel(names=["dull", "lovely"])
    features = datasets.Features({"sentence": datasets.Value("string"), "label": words})
    made = datasets.Dataset.from_dict({"sentence": TEXTS, "label": LABELS}, features=features)
    classifier = dpf.PrivateClassifier(model, epsilon=8.0).fit(made)
    assert classifier.classes_.tolist() == ["dull", "lovely"]
    assert classifier.score(made) == classifier.score(TEXTS, LABELS)


@pytest.mark.slow
def test_a_saved_one_is_a_run_that_goes_on_with_its_ledger(
    fitted: dpf.PrivateClassifier, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "run")
    user, provider = load_user_side(tmp_path / "run/front"), load_provider_side(tmp_path / "run/back")
    assert user.spec.noise == provider.spec.noise
    assert user.spec.mechanism().name == "k-ary-response"
    assert dpf.Run.load(tmp_path / "run").plan.labels == ("dull", "lovely")
    again = dpf.PrivateClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(OTHER_TEXTS), fitted.predict(OTHER_TEXTS))
    assert again.get_params() == fitted.get_params() | {"seed": 0, "model": again.model}
    again.save(tmp_path / "copy")
    assert dpf.PrivateClassifier.load(tmp_path / "copy").guarantee.epsilon == pytest.approx(8.0)
    again.fit(TEXTS, LABELS)  # `fitted` is another owner's
    again.save(tmp_path / "other")
    with pytest.raises(BudgetExhausted, match="k folds cost k epsilon"):
        dpf.PrivateClassifier.load(tmp_path / "other").fit(TEXTS, LABELS)
    with pytest.raises(InvalidInput, match="new or empty"):
        fitted.save(tmp_path / "run")
    stored = "".join(path.read_text("utf-8") for path in (tmp_path / "run").rglob("*.json"))
    assert not any(text in stored for text in TEXTS)


@pytest.mark.slow
def test_a_saved_one_is_evaluated_by_the_command(
    fitted: dpf.PrivateClassifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dpf_command = caller(run, capsys)
    fitted.save(tmp_path / "run")
    rows = [f"{text},{label}" for text, label in zip(OTHER_TEXTS, OTHER_LABELS, strict=True)]
    (tmp_path / "test.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    data = f"records={tmp_path / 'test.csv'}"
    found = dpf_command("evaluate", str(tmp_path / "run"), "--data", data, "--split", "test", "--json")
    assert found.json["accuracy_without_noise"] == pytest.approx(fitted.score(OTHER_TEXTS, OTHER_LABELS))
    missing = dpf_command("evaluate", str(tmp_path / "run"))
    assert missing.code == 2
    assert "records that were in memory only" in missing.err


@pytest.mark.slow
def test_a_second_fit_is_refused_beyond_the_budget(model: str) -> None:
    classifier = dpf.PrivateClassifier(model, epsilon=8.0, budget=16.0)
    first = classifier.fit(TEXTS, LABELS).predict_proba(OTHER_TEXTS)
    second = classifier.fit(TEXTS, LABELS).predict_proba(OTHER_TEXTS)
    assert np.abs(first - second).max() > 1e-3  # fresh noise, so it must be charged
    with pytest.raises(BudgetExhausted, match=r"epsilon 24\.0.* Nothing was charged.* Give budget=k"):
        classifier.fit(TEXTS, LABELS)
    np.testing.assert_array_equal(classifier.predict_proba(OTHER_TEXTS), second)


@pytest.mark.slow
def test_classifiers_with_one_ledger_share_its_budget(model: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    dpf.PrivateClassifier(model, epsilon=8.0, ledger=ledger).fit(TEXTS, LABELS)
    with pytest.raises(BudgetExhausted):
        dpf.PrivateClassifier(model, epsilon=1.0, ledger=ledger).fit(TEXTS, LABELS)
    # The negative control: another ledger that was asked for knows of no other. By default the register does.
    dpf.PrivateClassifier(model, epsilon=1.0, ledger=tmp_path / "other").fit(TEXTS, LABELS)
    with pytest.raises(BudgetExhausted, match=r"budget=10\.0"):
        dpf.PrivateClassifier(model, epsilon=1.0).fit(TEXTS, LABELS)


@pytest.mark.slow
def test_other_records_do_not_add_up(model: str) -> None:
    classifier = dpf.PrivateClassifier(model, epsilon=8.0).fit(TEXTS, LABELS)
    news = [(text, label) for text, label in zip(OTHER_TEXTS, OTHER_LABELS, strict=True) if text not in TEXTS]
    classifier.fit(*map(list, zip(*news, strict=True)))
    with pytest.raises(BudgetExhausted, match="5 of 25 texts were released before"):
        classifier.fit([*news[0][:1], *"abcd"] * 5, list("ababa") * 5)


@pytest.mark.slow
def test_folds_are_refused_unless_they_are_paid_for(model: str, tmp_path: Path) -> None:
    from sklearn.model_selection import cross_val_score

    for ledger in (None, tmp_path / "ledger"):
        one = dpf.PrivateClassifier(model, epsilon=8.0, ledger=ledger)
        with pytest.raises(ValueError, match=r"Nothing was charged. .* k folds cost k epsilon"):
            cross_val_score(one, TEXTS, LABELS, cv=3)
        assert _released() == 0
    one.fit(TEXTS, LABELS)  # it has not spent anything before
    with pytest.raises(ValueError, match="k folds cost k epsilon"):
        cross_val_score(one, TEXTS, LABELS, cv=3)
    paid = dpf.PrivateClassifier(model, epsilon=8.0, budget=24.0)
    assert cross_val_score(paid, TEXTS, LABELS, cv=3).shape == (3,)
    with pytest.raises(BudgetExhausted, match=r"epsilon 32\.0"):
        paid.fit(TEXTS, LABELS)


@pytest.mark.slow
def test_clones_in_other_processes_share_the_budget_too(model: str) -> None:
    from sklearn.base import clone

    one = dpf.PrivateClassifier(model, epsilon=8.0, budget=8.0)
    here, there = clone(one), pickle.loads(pickle.dumps(clone(clone(one))))  # as joblib sends it
    there.fit(TEXTS, LABELS)
    with pytest.raises(BudgetExhausted, match=r"epsilon 16\.0"):
        here.fit(TEXTS, LABELS)


def test_what_was_learnt_is_saved_and_never_pickled(fitted: dpf.PrivateClassifier) -> None:
    with pytest.raises(InvalidInput, match="stored by save"):
        pickle.dumps(fitted)


@pytest.mark.slow
def test_its_own_folder_goes_with_it(model: str) -> None:
    classifier = dpf.PrivateClassifier(model, epsilon=8.0).fit(TEXTS, LABELS)
    folder = classifier._folder
    assert folder.is_dir()
    del classifier
    assert not folder.exists()


PUBLIC = [text for text, _ in tiny_task.sentences(200, seed=3)]
PUBLIC_LABELS = [("dull", "lovely")[label] for _, label in tiny_task.sentences(200, seed=3)]


@pytest.mark.slow
def test_public_texts_are_a_file_a_list_or_have_labels(model: str, tmp_path: Path) -> None:
    (tmp_path / "open.txt").write_text("\n".join(PUBLIC), encoding="utf-8")
    assumed = {}
    for name, public in {
        "list": PUBLIC,
        "pair": (PUBLIC, PUBLIC_LABELS),
        "file": tmp_path / "open.txt",
    }.items():
        classifier = dpf.PrivateClassifier(model, epsilon=8.0, public=public, budget=24.0).fit(TEXTS, LABELS)
        assert classifier.score(OTHER_TEXTS, OTHER_LABELS) > 0.6
        assumed[name] = classifier.guarantee.as_dict()["assumptions"]
        assert all(text not in repr(classifier) for text in PUBLIC)
    assert "the texts given as public are public" in assumed["list"]
    assert "the texts given as public are public" in assumed["pair"]
    assert "the texts of open.txt are public" in assumed["file"]


@pytest.mark.slow
def test_a_public_front_learns_from_public_labels_first(model: str) -> None:
    settings: dict[str, Any] = {"epsilon": 8.0, "regime": "public-front"}
    classifier = dpf.PrivateClassifier(model, public=(PUBLIC, PUBLIC_LABELS), **settings).fit(TEXTS, LABELS)
    assert classifier.score(OTHER_TEXTS, OTHER_LABELS) > 0.6
    assert classifier.guarantee.epsilon == pytest.approx(8.0)
    with pytest.raises(InvalidInput, match=r"\(texts, labels\) in public-front"):
        dpf.PrivateClassifier(model, public=PUBLIC, **settings).fit(TEXTS, LABELS)


@pytest.mark.slow
def test_descriptions_decide_where_records_say_nothing(model: str) -> None:
    numbers = [int(label == "lovely") for label in LABELS]
    found = {}
    for swap in (False, True):
        phrases = [list(tiny_task.BAD), list(tiny_task.GOOD)]
        described = dict(enumerate(phrases[::-1] if swap else phrases))
        classifier = dpf.PrivateClassifier(model, epsilon=0.01, descriptions=described, budget=1.0)
        found[swap] = classifier.fit(TEXTS, numbers).score(TEXTS, numbers)
    assert found[False] > 0.5 > found[True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "records", "rule"),
    [
        ({"regime": "end-to-end"}, {}, "be release-once or public-front"),
        ({"regime": "public-front"}, {}, "`public` must be given"),
        ({"epsilon": -1.0}, {}, "`epsilon`"),
        ({"descriptions": {"secretlabel": "x"}}, {}, "name one of"),
        ({"public": TEXTS}, {}, "have other texts"),
        ({}, {"labels": None}, "`labels` must be given"),
        ({}, {"labels": LABELS[1:]}, "299 for 300 texts"),
        ({}, {"labels": ["one"] * 300}, "two labels or more"),
        ({}, {"labels": ["secretlabel", *LABELS[1:]]}, "5 records of every label"),
        ({}, {"labels": [float("nan"), *LABELS[1:]]}, "be a word or a number each"),
        ({}, {"labels": np.array([LABELS]).T}, "be one for every text"),
        ({}, {"texts": [3.0, *TEXTS[1:]]}, "a float at record 0"),
        ({}, {"texts": [" ", *TEXTS[1:]]}, "an empty one at record 0"),
        ({}, {"texts": "one text"}, "be a list"),
    ],
)
def test_bad_input_is_refused_before_a_charge_and_tells_nothing(
    settings: dict[str, Any], records: dict[str, Any], rule: str, model: str
) -> None:
    classifier = dpf.PrivateClassifier(model, **{"epsilon": 8.0} | settings)
    with pytest.raises(InvalidInput, match=rule.replace("(", r"\(")) as refused:
        classifier.fit(**{"texts": TEXTS, "labels": LABELS} | records)
    assert _released() == 0
    told = f"{refused.value}{classifier!r}"
    assert not any(text in told for text in TEXTS if " " in text)
    assert "secretlabel" not in told or "descriptions" in settings  # a description is public


def test_settings_are_read_and_changed_by_name(fitted: dpf.PrivateClassifier) -> None:
    new = dpf.PrivateClassifier("minilm", epsilon=2.0)
    assert new.set_params(epsilon=3.0, seed=1) is new
    assert (new.get_params()["epsilon"], new.get_params()["seed"]) == (3.0, 1)
    with pytest.raises(InvalidInput, match="be of model, epsilon"):
        new.set_params(epsilom=3.0)
    assert repr(new) == "PrivateClassifier('minilm', epsilon=3.0, regime='release-once') -> not fitted"
    assert repr(fitted).endswith("-> Guarantee(8.0-LDP per record)")
    with pytest.raises(InvalidInput, match="be fitted"):
        new.predict(["a text"])


def test_it_is_a_classifier_of_texts_to_scikit_learn() -> None:
    from sklearn.base import is_classifier
    from sklearn.utils import get_tags

    tags = get_tags(dpf.PrivateClassifier())
    assert is_classifier(dpf.PrivateClassifier())
    assert (tags.input_tags.string, tags.input_tags.two_d_array, tags.non_deterministic) == (
        True,
        False,
        True,
    )


FAILS_AND_SHOULD = {
    "check_estimators_pickle": "what was learnt is stored by save(), never pickled",
    "check_fit_idempotent": "every fit draws fresh noise",
    "check_classifier_data_not_an_array": "labels must have a length, and two fits draw different noise",
    "check_classifiers_one_label": "one label is refused: there is nothing to tell apart",
    "check_classifiers_regression_target": "refused, but as labels with too few records",
    "check_supervised_y_2d": "labels in rows are refused, not flattened with a warning",
    "check_requires_y_none": "refused, but in our words",
    "check_fit2d_1sample": "refused, but in our words",
    "check_fit2d_1feature": "refused, but in our words: it has too few records",
}
"""Checks of scikit-learn that do not hold, and why; docs/how-to/use-your-own-data.md has the same list."""
DOES_NOT_APPLY = {"check_pipeline_consistency", "check_array_api_input"}
"""Skipped by scikit-learn itself: the estimator is not deterministic, and no array library is asked for."""


@pytest.mark.slow
def test_it_passes_the_checks_of_scikit_learn_that_make_sense_for_texts(model: str) -> None:
    """They give arrays of numbers: each number becomes a word, each row a text."""
    from sklearn.utils import InputTags
    from sklearn.utils.estimator_checks import check_estimator
    from sklearn.utils.validation import validate_data

    words = tiny_task.WORDS[5:]

    class OfNumbers(dpf.PrivateClassifier):
        def _texts(self, X: Any, *, reset: bool = False) -> list[str]:
            rows = np.clip(validate_data(self, X, reset=reset) * 2 + 9, 0, len(words) - 1).astype(int)
            return [" ".join(words[number] for number in row) for row in rows]

        def fit(self, X: Any, y: Any) -> Any:
            return super().fit(self._texts(X, reset=True), y)

        def predict(self, X: Any) -> Any:
            return super().predict(self._fitted._texts(X))

        def predict_proba(self, X: Any) -> Any:
            return super().predict_proba(self._fitted._texts(X))

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            return super().score(self._fitted._texts(X), y, sample_weight)

        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.input_tags = InputTags()
            return tags

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the estimator does not inherit from scikit-learn's
        found = check_estimator(
            OfNumbers(model, epsilon=1.0, budget=1000.0),
            expected_failed_checks=FAILS_AND_SHOULD,
            on_fail=None,
            on_skip=None,
        )
    by_status: dict[str, set[str]] = {}
    for check in found:
        by_status.setdefault(check["status"], set()).add(check["check_name"])
    assert by_status.get("failed", set()) == set()
    assert by_status["xfail"] == set(FAILS_AND_SHOULD)
    assert by_status["skipped"] == DOES_NOT_APPLY
    assert len(by_status["passed"]) >= 30


@pytest.mark.slow
def test_a_real_encoder_learns_sentiment_from_two_hundred_sentences() -> None:
    from dp_forward.data import find_task, read_records

    records = list(islice(read_records(find_task("rotten-tomatoes"), "train"), 350))
    texts, labels = [record.text for record in records], [record.label for record in records]
    described = {
        0: ["a bad film", "boring and dull", "a waste of time"],
        1: ["a good film", "moving and funny", "a joy to watch"],
    }
    classifier = dpf.PrivateClassifier(epsilon=8.0, descriptions=described).fit(texts[:200], labels[:200])
    assert classifier.score(texts[200:], labels[200:]) > 0.58
    assert json.loads((classifier._folder / "plan.json").read_text("utf-8"))["plan"]["model"] == "minilm"
