"""The user's policy: what a server may ask for."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_user
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.protocol.policy import Policy, ProtocolMismatch, shown
from dp_forward.split.artifacts import load_user_side

GAUSSIAN = NoiseSpec(mechanism="matrix-gaussian", epsilon=4.0, delta=1e-5)


def policy(noise: NoiseSpec) -> Policy:
    spec = ReleaseSpec(
        noise=noise,
        rows=12,
        width=4,
        bits=8,
        cut="encoder.1",
        front="ab" * 32,
        labels=("bad", "good"),
    )
    return Policy(release=spec)


def said(mine: Policy, **noise: Any) -> dict[str, Any]:
    """The honest manifest with some of its noise changed."""
    found = tiny_user.manifest_of(mine)
    found["noise"] |= noise
    return found


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    return tiny_user.write_user(folder, noise=NoiseSpec(epsilon=2.0)) / "front"


def test_a_policy_is_what_the_front_folder_says(front: Path) -> None:
    user = load_user_side(front)
    found = Policy.of(user)
    spec = found.release
    assert (found.epsilon, found.noise.delta, spec.rows, spec.cut) == (2.0, 0.0, 12, "encoder.1")
    assert (spec.shape, spec.bits) == ((12, 4), 8)
    assert (spec.front, spec.labels) == (user.digest, ("bad", "good"))


def test_a_decision_is_compared_as_any_noise_is() -> None:
    spec = ReleaseSpec(
        noise=NoiseSpec(mechanism="k-ary-response", epsilon=4.0, columns=3),
        **{"rows": 12, "width": 3, "bits": 8, "cut": "output", "front": "ab" * 32, "labels": ("a", "b", "c")},
    )
    mine = Policy(release=spec)
    assert mine.read(said(mine)).charge.epsilon(0.0) == 4.0
    assert mine.with_epsilon(1.0).terms().charge.epsilon(0.0) == 1.0
    with pytest.raises(ProtocolMismatch, match="less noise"):
        mine.read(said(mine, epsilon=8.0))
    with pytest.raises(ProtocolMismatch, match="mechanism"):
        mine.read(said(mine, mechanism="privunit"))
    with pytest.raises(ProtocolMismatch, match="not one of this version"):
        mine.read(said(mine, columns=4))


def test_bits_are_16_where_the_noise_does_not_fit_into_8(front: Path) -> None:
    user = load_user_side(front)
    wide = replace(user.spec, noise=NoiseSpec(epsilon=60.0))
    assert Policy.of(replace(user, spec=wide)).release.bits == 16
    with pytest.raises(InvalidInput):
        Policy.of(replace(user, spec=wide), bits=8)
    assert Policy.of(user, bits=16).release.bits == 16


def test_a_front_without_noise_has_no_policy(front: Path) -> None:
    user = load_user_side(front)
    with pytest.raises(InvalidInput, match="noise"):
        Policy.of(replace(user, spec=replace(user.spec, noise=None)))


def test_a_promise_per_token_is_refused_where_rows_mix(front: Path) -> None:
    user = load_user_side(front)
    noise = NoiseSpec(mechanism="matrix-gaussian", epsilon=4.0, unit="token", rows=12)
    with pytest.raises(InvalidInput, match="token"):
        Policy.of(replace(user, spec=replace(user.spec, noise=noise)))


@pytest.mark.parametrize("noise", [NoiseSpec(epsilon=2.0), GAUSSIAN])
def test_an_honest_server_gets_the_users_own_terms(noise: NoiseSpec) -> None:
    mine = policy(noise)
    terms = mine.read(tiny_user.manifest_of(mine))
    assert terms.noise == noise
    assert terms.charge == noise.build().charge()


@pytest.mark.parametrize(
    ("noise", "changed"),
    [
        (GAUSSIAN, {"epsilon": 4.000001}),
        (GAUSSIAN, {"epsilon": 8.0}),
        (GAUSSIAN, {"delta": 1e-4}),
        (GAUSSIAN, {"epsilon": 3.0, "delta": 1e-4}),
        (GAUSSIAN, {"epsilon": 8.0, "delta": 1e-9}),
        (GAUSSIAN, {"mechanism": "gaussian"}),
        (GAUSSIAN, {"norm": 0.5}),
        (GAUSSIAN, {"norm": 2.0}),
        (GAUSSIAN, {"how": "clip"}),
        (GAUSSIAN, {"rows": 12}),
        (GAUSSIAN, {"columns": 4}),
        (NoiseSpec(epsilon=2.0), {"threshold_share": 0.5}),
        (NoiseSpec(epsilon=2.0), {"threshold_share": 1.0, "epsilon": 1.0}),
        (NoiseSpec(epsilon=2.0), {"epsilon": 2.0000001}),
    ],
)
def test_less_or_other_noise_is_refused(noise: NoiseSpec, changed: dict[str, Any]) -> None:
    mine = policy(noise)
    with pytest.raises(ProtocolMismatch) as refused:
        mine.read(said(mine, **changed))
    assert refused.value.exit_code == 4


@pytest.mark.parametrize(
    ("noise", "changed"),
    [
        (NoiseSpec(epsilon=2.0), {"epsilon": 1.0}),
        (GAUSSIAN, {"epsilon": 2.0}),
        (GAUSSIAN, {"delta": 1e-7}),
        (GAUSSIAN, {"epsilon": 2.0, "delta": 1e-7}),
    ],
)
def test_more_noise_needs_the_users_word_and_costs_less(noise: NoiseSpec, changed: dict[str, Any]) -> None:
    mine = policy(noise)
    with pytest.raises(ProtocolMismatch, match="more noise"):
        mine.read(said(mine, **changed))
    if "delta" in changed:
        return  # only an epsilon can be asked for
    terms, own = mine.with_epsilon(changed["epsilon"]).read(said(mine, **changed)), mine.terms()
    assert terms.noise == replace(noise, **changed)
    assert terms.charge != own.charge
    assert terms.charge.epsilon_units <= own.charge.epsilon_units
    assert terms.charge.mu2_units <= own.charge.mu2_units


@pytest.mark.parametrize("noise", [NoiseSpec(epsilon=2.0), GAUSSIAN])
def test_a_user_may_want_more_noise_where_the_server_lists_it(noise: NoiseSpec) -> None:
    mine, half = policy(noise), noise.epsilon / 2
    manifest = tiny_user.manifest_of(mine) | {"epsilons": [half]}
    assert mine.offered(manifest) == (noise.epsilon, half)
    assert mine.with_epsilon(half).offered(manifest) == (half,)
    terms = mine.with_epsilon(half).read(manifest)
    assert terms.noise == replace(noise, epsilon=half)
    assert terms.mechanism.epsilon(terms.noise.delta or 0.0) <= half
    assert mine.read(manifest).noise == noise
    with pytest.raises(ProtocolMismatch, match="less noise"):
        mine.with_epsilon(half / 2).read(manifest)
    with pytest.raises(
        ProtocolMismatch, match=f"answers epsilon {noise.epsilon}, {half}, and not {1.5 * half}"
    ):
        mine.with_epsilon(1.5 * half).read(manifest)


@pytest.mark.parametrize("epsilon", [2.1, 0.0, -1.0, float("nan"), float("inf")])
def test_a_user_cannot_want_less_noise_than_the_front_says(epsilon: float) -> None:
    with pytest.raises(InvalidInput, match="at most the front's"):
        policy(NoiseSpec(epsilon=2.0)).with_epsilon(epsilon)


@pytest.mark.parametrize("epsilons", ["2", None, {}, ["1"], [True], [1e308], [3.0], [1.0] * 40])
def test_a_list_of_epsilons_that_makes_no_sense_is_refused(epsilons: Any) -> None:
    mine = policy(NoiseSpec(epsilon=2.0))
    with pytest.raises(ProtocolMismatch):
        mine.read(tiny_user.manifest_of(mine) | {"epsilons": epsilons})


def test_a_huge_shape_is_refused_before_anything_of_its_size_is_made() -> None:
    mine = policy(NoiseSpec(epsilon=2.0))
    hostile = tiny_user.manifest_of(mine) | {"rows": 1 << 24, "matrix_rows": 1 << 24, "width": 1}
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolMismatch, match="rows"):
            mine.read(hostile)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-12, 1e300, 1e16])
def test_an_absurd_epsilon_ends_soon(epsilon: float) -> None:
    for noise in (NoiseSpec(epsilon=2.0), GAUSSIAN):
        mine = policy(noise)
        began = time.perf_counter()
        with pytest.raises(ProtocolMismatch):
            mine.read(said(mine, epsilon=epsilon))
        assert time.perf_counter() - began < 2


@pytest.mark.parametrize("name", ["rows", "matrix_rows", "width", "bits"])
@pytest.mark.parametrize("kind", [float, str, bool, lambda value: None, lambda value: [value]])
def test_a_number_of_another_type_is_not_the_same_number(name: str, kind: Any) -> None:
    mine = policy(NoiseSpec(epsilon=2.0))
    found = tiny_user.manifest_of(mine)
    with pytest.raises(ProtocolMismatch):
        mine.read(found | {name: kind(found[name])})


def test_what_a_server_says_is_shown_on_one_short_printable_line() -> None:
    mine = policy(NoiseSpec(epsilon=2.0))
    evil = "\x1b[2J\n\r" + "x" * 10_000 + "\u202e"
    for name in ("cut", "front", "labels"):
        value = [evil] * 100 if name == "labels" else evil
        with pytest.raises(ProtocolMismatch) as refused:
            mine.read(tiny_user.manifest_of(mine) | {name: value})
        line = str(refused.value)
        assert line.isascii()
        assert line.isprintable()
        assert len(line) < 400
    assert shown("a\nb") == "a?b"


def test_a_front_that_releases_records_asks_nothing() -> None:
    noise = NoiseSpec(epsilon=4.0, unit="record")
    spec = ReleaseSpec(
        noise=noise, rows=12, width=10, bits=8, cut="output", front="ab" * 32, labels=("bad", "good")
    )
    with pytest.raises(InvalidInput, match="be one that asks"):
        Policy(release=spec)
