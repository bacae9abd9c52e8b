"""A plan that means nothing is refused with one line, and what was left out is filled by the rule."""

from pathlib import Path

import pytest

import tiny_models
from dp_forward.errors import InvalidInput
from dp_forward.split.pretrained import count_decoder_blocks
from dp_forward.train.defaults import effective_plan, recipe
from dp_forward.train.plan import Plan, ReleasesPlan
from dp_forward.train.plan_base import read_settings
from dp_forward.train.regimes import Regime


def _plan(**settings: object) -> Plan:
    return Plan.from_dict({"task": "sst2", "epsilon": 8.0} | settings)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('task = "sst2"\nepsilon = 8.0\ncut = "encoder.3"\n[data]\nsst2 = "here"\n')
    plan = Plan.from_dict(read_settings(path, {"epsilon": 2.0, "cut": None, "data": {"imdb": "there"}}))
    assert (plan.epsilon, plan.cut) == (2.0, "encoder.3")
    assert plan.data == {"sst2": "here", "imdb": "there"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epsilom": 8.0}, "epsilon"),
        ({"regime": "once"}, "release-once"),
        ({"epsilon": None}, "no default for a promise"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"mechanism": "laplace"}, "privunit"),
        ({"mechanism": "none"}, "epsilon"),
        ({"mechanism": "none", "epsilon": None}, "end-to-end"),
        ({"warm_up_epochs": 1}, "frozen"),
        ({"auxiliary_weight": 1.0}, "frozen"),
        ({"draws": 8}, "frozen"),
        ({"regime": "public-front"}, "public data"),
        ({"regime": "public-front", "public_task": "sst2"}, "private ones"),
        ({"public_task": "imdb", "back": "gradient"}, "public-front"),
        ({"public_epochs": 2}, "public-front"),
        ({"label_privacy": "hidden"}, "folded or public"),
        ({"label_privacy": "folded", "label_epsilon": 2.0}, "One epsilon"),
        ({"label_privacy": "public", "back": "closed-form"}, "gradient for public labels"),
        ({"label_privacy": "folded", "cut": "encoder.3"}, "Inside the model"),
        ({"back": "closed-form", "regime": "end-to-end"}, "release-once"),
        ({"back": "closed-form", "mechanism": "mvg"}, "least noise"),
        ({"back": "closed-form", "unit": "token"}, "whole record"),
        ({"back": "closed-form", "threshold_share": 0.2}, "least noise already"),
        ({"regime": "end-to-end", "public_epochs": 2}, "public-front"),
        ({"cut": "encoder"}, "cut"),
        ({"rows": 0}, "rows"),
        ({"rows": "many"}, "whole number"),
        ({"epochs": "three"}, "a number"),
        ({"label_prior": [0.5, 0.5]}, "label_epsilon"),
        ({"precision": "fp8"}, "bf16"),
        ({"early_stopping": 2}, "known keys"),
        ({"evaluation_limit": 0}, "evaluation_limit"),
        ({"task": None}, "task"),
        ({"data": "here"}, "table"),
        ({"threshold_share": 0.5, "mechanism": "gaussian"}, "privunit"),
        ({"evaluation_split": "Training"}, "another than train"),
        ({"regime": "end-to-end", "label_epsilon": 1.0, "evaluation_split": "train"}, "another than train"),
    ],
)
def test_a_plan_that_means_nothing_is_refused_in_one_line(settings: dict, named: str) -> None:
    with pytest.raises(InvalidInput, match=named) as refused:
        _plan(**settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epsilon": 8.0}, "epsilon"),
        ({"task": "sst2"}, "task"),
        ({"cut": "output"}, "cut"),
        ({"mechanism": "privunit"}, "mechanism"),
        ({"regime": "end-to-end"}, "regime"),
        ({"public_task": "imdb"}, "public-task"),
        ({"label_epsilon": 2.0}, "label-epsilon"),
        ({"evaluation_draws": 2}, "held-out records"),
        ({"epocs": 2}, "epochs"),
        ({"held_out": 1.0}, "held_out"),
        ({"central_delta": 0.0}, "central_delta"),
        ({"model": None}, "model"),
    ],
)
def test_what_the_releases_say_already_is_refused_in_a_plan_of_a_provider(settings: dict, named: str) -> None:
    with pytest.raises(InvalidInput, match=named) as refused:
        ReleasesPlan.from_dict({"releases": "corpus", "model": "run"} | settings)
    assert "\n" not in str(refused.value)


def test_where_nothing_is_protected_the_training_split_may_be_measured_on() -> None:
    assert _plan(regime="end-to-end", evaluation_split="train").evaluation_split == "train"


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("epsilon = = 8")
    with pytest.raises(InvalidInput, match="TOML"):
        read_settings(tmp_path / "broken.toml", {})
    with pytest.raises(InvalidInput, match="read"):
        read_settings(tmp_path / "missing.toml", {})


def test_a_stored_plan_with_settings_that_are_gone_is_the_same_plan() -> None:
    gone = {"average": 0.0, "lora_rank": 0, "early_stopping": 0}
    assert _plan(**gone) == _plan()
    assert gone.items() <= _plan().deciding().items(), "its digest is the one that it was stored with"
    assert gone.keys().isdisjoint(_plan().as_dict())


def test_the_digests_of_stored_plans_stay() -> None:
    """By what they were before settings came and went: the closed form had no average at all."""
    closed, trained = (effective_plan(_plan(model="minilm", **back)) for back in ({}, {"back": "gradient"}))
    assert closed.deciding()["average"] is None
    assert trained.deciding()["average"] == 0.0
    assert "schedule" not in trained.deciding()
    assert effective_plan(_plan(schedule="constant")).deciding()["schedule"] == "constant"


def test_the_digest_follows_what_decides_the_result_and_not_where_files_lie() -> None:
    plan = effective_plan(_plan())
    assert plan.digest() == effective_plan(_plan(data={"sst2": "moved"})).digest()
    assert plan.digest() != effective_plan(_plan(seed=1)).digest()


def test_a_filled_plan_leaves_nothing_open_and_survives_json() -> None:
    by_gradient = ("rows", "width", "epochs", "batch", "learning_rate")
    for settings in (
        {"label_privacy": "public"},
        {"regime": "end-to-end"},
        {"regime": "public-front", "public_task": "imdb", "label_privacy": "public"},
        {"regime": "end-to-end", "mechanism": "none", "epsilon": None},
        {},
        {"regime": "public-front", "public_task": "imdb"},
    ):
        plan = effective_plan(_plan(**settings))
        closed = "label_privacy" not in settings and plan.regime.protects_training
        assert plan.back == ("closed-form" if closed else "gradient")
        for name in ("rows", "pooling", "label_privacy") if closed else by_gradient:
            assert getattr(plan, name) is not None, name
        assert Plan.from_dict(plan.as_dict()) == plan
        assert effective_plan(plan) == plan, "filling again changes nothing"


def test_the_default_folds_text_and_label_and_asks_by_the_decision() -> None:
    plan = effective_plan(_plan())
    assert plan.noise is not None
    assert plan.release_noise is not None
    assert (plan.noise.mechanism, plan.noise.columns) == ("k-ary-response", 2)
    assert (plan.release_noise.mechanism, plan.release_noise.unit) == ("privunit", "record")


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 2.0},
        {"label_epsilon": 2.0},
        {"threshold_share": 0.2},
        {"cut": "encoder.3"},
        {"unit": "token"},
    ],
)
def test_whoever_asks_for_what_only_a_trained_back_has_gets_one(settings: dict[str, object]) -> None:
    more = {"cut": "embeddings"} if "unit" in settings else {}
    assert effective_plan(_plan(**settings, **more)).back == "gradient"


def test_what_was_said_is_kept() -> None:
    plan = effective_plan(_plan(regime="end-to-end", width=0, threshold_share=1.0, draws=3, epochs=1.5))
    assert (plan.width, plan.threshold_share, plan.draws, plan.epochs) == (0, 1.0, 3, 1.5)


def test_a_frozen_front_gets_no_recipe_for_training_it() -> None:
    plan = effective_plan(_plan())
    assert plan.regime is Regime.RELEASE_ONCE
    assert plan.draws is None
    assert plan.auxiliary_weight is None


def test_rows_that_are_bounded_one_by_one_have_a_rule_of_their_own() -> None:
    text, token = (
        recipe("embeddings", epsilon=8.0, mechanism="privunit", unit=unit) for unit in ("text", "token")
    )
    names = ("width", "norm", "learning_rate")
    assert [text[name] for name in names] == [4, 8.0, 2e-4]
    assert [token[name] for name in names] == [2, 1.0, 5e-5]
    plan = {"task": "sst2", "cut": "embeddings", "regime": "end-to-end", "epsilon": 8.0, "unit": "token"}
    assert effective_plan(Plan.from_dict(plan)).learning_rate == 5e-5


def test_the_rule_puts_the_label_before_the_cut_only_inside_the_model() -> None:
    inside, outside = (recipe(cut, epsilon=8.0, mechanism="privunit") for cut in ("encoder.3", "output"))
    assert inside["auxiliary_weight"] > 0
    assert outside["auxiliary_weight"] == 0
    assert "threshold_share" not in recipe("output", epsilon=8.0, mechanism="matrix-gaussian")


def _pace(cut: str, **settings: object) -> tuple[object, ...]:
    rule = recipe(cut, epsilon=8.0, mechanism="privunit", decoder_blocks=30, **settings)  # type: ignore[arg-type]
    names = ("learning_rate", "epochs", "width", "auxiliary_alone", "warm_up_epochs")
    return tuple(rule[name] for name in names)


def test_a_decoder_has_a_rule_of_its_own_by_the_share_of_its_blocks_before_the_cut() -> None:
    assert _pace("encoder.1") == _pace("encoder.15") == (2e-4, 3, 8, False, 0.0)
    assert _pace("encoder.16") == (5e-5, 2, 8, False, 0.0)
    assert _pace("output") == (5e-5, 1, 4, False, 2)
    assert recipe("output", epsilon=None, mechanism="none", decoder_blocks=30)["learning_rate"] == 5e-5
    assert "threshold_share" not in recipe(
        "encoder.9", epsilon=8.0, mechanism="matrix-gaussian", decoder_blocks=30
    )


def test_the_rule_finds_out_whether_the_model_is_a_decoder(tmp_path: Path) -> None:
    for family in ("llama", "bert"):
        tiny_models.tiny(family, "bare", blocks=4).save_pretrained(tmp_path / family)
    plan = {"regime": "end-to-end", "cut": "encoder.3"}
    rates = {
        name: effective_plan(_plan(model=str(tmp_path / model), **(plan | more))).learning_rate
        for name, model, more in (
            ("late", "llama", {}),
            ("early", "llama", {"cut": "encoder.2"}),
            ("only three blocks", "llama", {"cut": "encoder.2", "blocks": 3}),
            ("encoder", "bert", {}),
        )
    }
    assert rates == {"late": 5e-5, "early": 2e-4, "only three blocks": 5e-5, "encoder": 2e-4}
    settings = tiny_models.tiny("llama", blocks=4).config.to_dict()
    assert count_decoder_blocks(settings) == 4
    assert count_decoder_blocks(tiny_models.tiny("bert").config.to_dict()) is None
