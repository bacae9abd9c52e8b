"""A choice makes the mechanism that its words say, and nothing else."""

import json

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    MVG,
    TEXT,
    TOKEN,
    AnalyticGaussian,
    Budget,
    ClassicalGaussian,
    KaryResponse,
    MatrixGaussian,
    NoiseSpec,
    PrivUnit,
    calibrate,
    normalise,
    normalise_rows,
)
from dp_forward.privacy.privunit import best_threshold


def test_the_default_is_privunit_for_a_text() -> None:
    made = NoiseSpec(epsilon=4.0).build()
    assert made == calibrate(PrivUnit, Budget(4.0), bound=normalise(1.0), unit=TEXT)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("matrix-gaussian", MatrixGaussian), ("gaussian", AnalyticGaussian), ("mvg", MVG)],
)
def test_gaussian_choices_meet_their_budget_at_the_default_delta(name: str, kind: type) -> None:
    made = NoiseSpec(mechanism=name, epsilon=2.0, rows=4, columns=8).build()
    assert type(made) is kind
    assert made.delta(2.0) <= 1e-5


def test_the_classical_formula_is_a_baseline_from_epsilon_one_on() -> None:
    made = NoiseSpec(mechanism="classical-gaussian", epsilon=4.0).build()
    assert isinstance(made, ClassicalGaussian)
    assert not made.guaranteed


def test_a_threshold_is_a_share_of_the_best_one_and_costs_no_privacy() -> None:
    made = NoiseSpec(epsilon=2.0, threshold_share=0.3).build()
    assert isinstance(made, PrivUnit)
    assert made.threshold == pytest.approx(0.3 * best_threshold(2.0))
    assert made.epsilon() <= 2.0


def test_a_token_is_bounded_row_by_row() -> None:
    choice = NoiseSpec(mechanism="matrix-gaussian", epsilon=2.0, unit="token", rows=16)
    direct = calibrate(MatrixGaussian, Budget(2.0, 1e-5), bound=normalise_rows(1.0), unit=TOKEN)
    assert choice.build().sigma == direct.sigma  # type: ignore[attr-defined]
    assert NoiseSpec(epsilon=2.0, unit="token", threshold_share=1.0).build().epsilon() <= 2.0


def test_a_response_needs_its_number_of_labels_and_nothing_else() -> None:
    choice = NoiseSpec(mechanism="k-ary-response", epsilon=2.0, columns=4)
    assert choice.build() == KaryResponse(2.0, 4)
    assert (choice.delta, choice.protects) == (0.0, TEXT)
    assert choice.bound == choice.build().bound  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "choice",
    [
        NoiseSpec(mechanism="privunit", epsilon=3.0, threshold_share=0.5, norm=2.0),
        NoiseSpec(mechanism="k-ary-response", epsilon=3.0, columns=5),
    ],
)
def test_a_choice_survives_json(choice: NoiseSpec) -> None:
    again = NoiseSpec.from_dict(json.loads(json.dumps(choice.as_dict())))
    assert again == choice
    assert again.build() == choice.build()


@pytest.mark.parametrize(
    "settings",
    [
        {"mechanism": "laplace"},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"how": "squash"},
        {"delta": 1e-5},
        {"mechanism": "gaussian", "threshold_share": 0.5},
        {"threshold_share": -0.1},
        {"unit": "chapter"},
        {"mechanism": "mvg"},
        {"how": "clip"},
        {"mechanism": "k-ary-response"},
        {"mechanism": "k-ary-response", "columns": 1},
        {"mechanism": "k-ary-response", "columns": 2.5},
        {"mechanism": "k-ary-response", "columns": 3, "delta": 1e-5},
        {"mechanism": "k-ary-response", "columns": 3, "unit": "token"},
        {"mechanism": "k-ary-response", "columns": 3, "norm": 2.0},
        {"mechanism": "k-ary-response", "columns": 3, "how": "clip"},
        {"mechanism": "k-ary-response", "columns": 3, "threshold_share": 1.0},
    ],
)
def test_a_choice_that_means_nothing_is_refused(settings: dict) -> None:
    with pytest.raises(InvalidInput):
        NoiseSpec(**settings).build()


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sigma"):
        NoiseSpec.from_dict({"mechanism": "privunit", "sigma": 0.1})
