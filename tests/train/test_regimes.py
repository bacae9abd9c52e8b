"""Each regime says what is true of it: nobody may read a promise where there is none."""

from types import SimpleNamespace
from typing import Any

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.privacy import Deployment, Mechanism, NoiseSpec, Notion
from dp_forward.train.defaults import effective_plan
from dp_forward.train.plan import Plan
from dp_forward.train.regimes import Promises, Regime, label_mechanism_for, promises_of

NOISE = NoiseSpec(epsilon=4.0).build()


def promises(regime: Regime, mechanism: Mechanism | None, *, label_epsilon: float | None = None) -> Promises:
    plan: Any = SimpleNamespace(
        back="gradient",
        regime=regime,
        label_epsilon=label_epsilon,
        label_prior=None,
        evaluation_split="validation",
        public_task=None,
        public=None,
        labels=None,
        validation_share=None,
    )
    spec: Any = SimpleNamespace(noise=mechanism, mechanism=lambda: mechanism, labels=("no", "yes"))
    return promises_of(plan, spec)


@pytest.mark.parametrize("regime", [Regime.RELEASE_ONCE, Regime.PUBLIC_FRONT])
def test_frozen_fronts_protect_training_texts_given_public_labels(regime: Regime) -> None:
    said = promises(regime, NOISE)
    assert said.training is not None
    assert said.training.notion is Notion.SEQ_LDP
    assert said.training.epsilon == NOISE.epsilon()
    assert "public" in said.statements["labels"]


def test_end_to_end_never_claims_anything_for_training_texts() -> None:
    for label_epsilon in (None, 2.0):
        said = promises(Regime.END_TO_END, NOISE, label_epsilon=label_epsilon)
        assert said.training is None
        assert said.statements["training_texts"].startswith("NOT protected")
        assert said.as_dict()["training"] is None
        assert said.queries is not None


def test_no_promises_can_be_made_for_raw_training_texts_by_hand() -> None:
    with pytest.raises(InvalidInput, match="raw texts"):
        Promises(Deployment(NOISE).guarantee(), Deployment(NOISE).guarantee(), None, Regime.END_TO_END)


def test_a_randomized_label_makes_the_promise_one_about_the_record() -> None:
    said = promises(Regime.RELEASE_ONCE, NOISE, label_epsilon=2.0)
    assert said.training is not None
    assert said.training.notion is Notion.RECORD_LDP
    assert said.training.epsilon == pytest.approx(6.0)
    assert "together" in said.statements["labels"]


def test_without_noise_nothing_is_promised() -> None:
    said = promises(Regime.END_TO_END, None)
    assert said.queries is None
    assert "NOT protected" in said.statements["queries"]


def test_a_baseline_outside_its_theorem_promises_nothing() -> None:
    classical = NoiseSpec(mechanism="classical-gaussian", epsilon=8.0).build()
    said = promises(Regime.RELEASE_ONCE, classical)
    assert said.queries is None
    assert said.training is None
    assert "no theorem" in said.as_dict()["statement"]


def test_a_token_level_promise_does_not_cover_the_label() -> None:
    token = NoiseSpec(mechanism="matrix-gaussian", epsilon=4.0, unit="token", rows=8).build()
    said = promises(Regime.RELEASE_ONCE, token, label_epsilon=2.0)
    assert said.training is not None
    assert said.training.notion is Notion.TOKEN_SEQ_LDP
    assert "per label" in said.statements["labels"]


def test_a_prior_has_one_number_for_each_label_and_a_budget() -> None:
    assert label_mechanism_for(None, None, labels=2) is None
    with pytest.raises(InvalidInput, match="2 numbers"):
        label_mechanism_for(1.0, [0.2, 0.3, 0.5], labels=2)
    with pytest.raises(InvalidInput, match="label_epsilon"):
        label_mechanism_for(None, [0.5, 0.5], labels=2)


def test_a_folded_release_covers_text_and_label_with_one_epsilon() -> None:
    plan = effective_plan(Plan(task="rotten-tomatoes", epsilon=4.0))
    assert plan.noise is not None
    spec: Any = SimpleNamespace(noise=plan.noise, mechanism=plan.noise.build, labels=("no", "yes"))
    made = promises_of(plan, spec)
    assert made.training is not None
    assert made.training.notion is Notion.RECORD_LDP
    assert made.training.epsilon == pytest.approx(4.0)
    assert made.queries is not None
    assert made.queries.epsilon == pytest.approx(4.0)
    assert "folded" in made.statements["labels"]
    assert not any("labels are public" in said for said in made.training.assumptions)
