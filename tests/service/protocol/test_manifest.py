"""A manifest says what a server wants, soundly or not at all; its numbers are always calibrated anew."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.noise import release
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.protocol.frame import WireError, frame_of, parse_frame
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.split import split_model
from dp_forward.split.artifacts import ProviderSide
from tiny_models import LABELS, WIDTH, tiny

FRONT = "0123456789abcdef" * 4
ROWS = 6
NAMES = tuple("abc"[:LABELS])
MATRICES = ("privunit", "matrix-gaussian", "gaussian")
DECISION = {"mechanism": "k-ary-response", "epsilon": 4.0, "columns": LABELS}
ABOUT: dict[str, Any] = {"front": FRONT, "request": bytes(16), "time": 1_700_000_000}


def _manifest(**changes: Any) -> Manifest:
    good: dict[str, Any] = {
        "noise": NoiseSpec(epsilon=4.0),
        "rows": 16,
        "width": 384,
        "bits": 8,
        "cut": "encoder.6",
        "front": FRONT,
        "labels": ("negative", "positive"),
    }
    epsilons = changes.pop("epsilons", ())
    return Manifest(release=ReleaseSpec(**(good | changes)), epsilons=epsilons)


def _provider(cut: str = "encoder.1", *, width: int | None = None, **noise: Any) -> ProviderSide:
    back = split_model(tiny("bert", blocks=2), cut, width=width).back
    spec = ReleaseSpec.of(back, noise=NoiseSpec(**noise), rows=ROWS, labels=NAMES)
    return ProviderSide(back, spec, "bb" * 32)


# From a provider


@pytest.mark.parametrize(("cut", "matrix_rows"), [("encoder.1", ROWS), ("output", 1)])
def test_a_provider_asks_for_what_its_back_takes(cut: str, matrix_rows: int) -> None:
    manifest = Manifest.of(_provider(cut, epsilon=4.0), FRONT)
    assert (manifest.release.rows, manifest.release.matrix_rows, manifest.release.width) == (
        ROWS,
        matrix_rows,
        WIDTH,
    )
    assert (manifest.release.cut, manifest.release.front, manifest.release.labels) == (cut, FRONT, NAMES)
    assert manifest.release.noise == NoiseSpec(epsilon=4.0)
    assert manifest.frame_bytes == 128 + matrix_rows * WIDTH


def test_a_map_makes_the_frame_narrow() -> None:
    assert Manifest.of(_provider(width=4), FRONT).release.width == 4


@pytest.mark.parametrize("cut", ["encoder.1", "output"])
@pytest.mark.parametrize("mechanism", MATRICES)
def test_a_release_made_as_the_manifest_says_fits_it(mechanism: str, cut: str) -> None:
    manifest = Manifest.of(_provider(cut, mechanism=mechanism, epsilon=4.0), FRONT)
    hidden = np.ones((manifest.release.matrix_rows, manifest.release.width))
    released = release(hidden, manifest.mechanism(), bits=manifest.release.bits)
    frame = frame_of(released, cut=manifest.release.cut, **ABOUT)
    assert len(frame) == manifest.frame_bytes
    manifest.offer_for(parse_frame(frame).header, refusal="not asked for")


def test_a_decision_is_asked_for_at_output_with_a_score_for_each_label() -> None:
    manifest = Manifest.of(_provider("output", width=LABELS, **DECISION), FRONT)
    assert (manifest.release.shape, manifest.release.bits) == ((1, LABELS), 8)
    assert manifest.frame_bytes == 128 + LABELS
    assert (manifest.step, manifest.epsilon, manifest.delta) == (1.0, 4.0, 0.0)
    assert manifest.epsilons == (2.0, 1.0)
    for offer in manifest.offers:
        made = release(np.ones((1, LABELS)), offer.noise.build(), bits=8)
        header = parse_frame(frame_of(made, cut="output", **ABOUT)).header
        assert manifest.offer_for(header, refusal="not asked for") is offer
    again = Manifest.from_dict(json.loads(json.dumps(manifest.as_dict())))
    assert again == manifest
    for name, value in (("width", LABELS + 1), ("cut", "encoder.1"), ("rows", 0)):
        with pytest.raises(WireError, match="not sound"):
            Manifest.from_dict(manifest.as_dict() | {name: value, "matrix_rows": 1})
    for change in (
        {"columns": LABELS + 1},
        {"columns": None},
        {"columns": 1},
        {"delta": 1e-5},
        {"norm": 2.0},
    ):
        hostile = manifest.as_dict()
        hostile["noise"] |= change
        with pytest.raises(WireError, match="not sound"):
            Manifest.from_dict(hostile)


def test_a_decision_has_no_manifest_elsewhere() -> None:
    for cut, width in (("encoder.1", LABELS), ("output", LABELS + 1), ("output", None)):
        with pytest.raises(InvalidInput, match="width"):
            _provider(cut, width=width, **DECISION)


def test_eight_bits_are_asked_for_where_they_hold_the_noise_and_sixteen_elsewhere() -> None:
    assert Manifest.of(_provider(epsilon=8.0), FRONT).release.bits == 8
    assert Manifest.of(_provider(epsilon=200.0), FRONT).release.bits == 16
    assert Manifest.of(_provider(epsilon=8.0), FRONT, bits=16).release.bits == 16
    with pytest.raises(InvalidInput, match="8 bits"):
        Manifest.of(_provider(epsilon=200.0), FRONT, bits=8)


def test_an_undefended_model_has_no_manifest() -> None:
    bare = dataclasses.replace(_provider(), spec=dataclasses.replace(_provider().spec, noise=None))
    with pytest.raises(InvalidInput, match="come with noise"):
        Manifest.of(bare, FRONT)


@pytest.mark.parametrize("mechanism", ["mvg", "classical-gaussian"])
def test_noise_that_cannot_be_released_has_no_manifest(mechanism: str) -> None:
    with pytest.raises(InvalidInput, match="can be released"):
        Manifest.of(_provider(mechanism=mechanism, epsilon=0.5, rows=ROWS, columns=WIDTH), FRONT)


def test_noise_per_token_needs_a_cut_where_rows_are_local() -> None:
    per_token = NoiseSpec(mechanism="gaussian", epsilon=4.0, unit="token", rows=16)
    assert _manifest(noise=per_token, cut="embeddings").step > 0
    with pytest.raises(InvalidInput, match="where rows mix"):
        _manifest(noise=per_token)
    with pytest.raises(InvalidInput, match="have 8 rows"):
        _manifest(noise=dataclasses.replace(per_token, rows=8), cut="embeddings")


# More noise than the back was trained for


@pytest.mark.parametrize("mechanism", MATRICES)
def test_a_half_and_a_quarter_of_its_epsilon_are_answered_too(mechanism: str) -> None:
    manifest = Manifest.of(_provider(mechanism=mechanism, epsilon=4.0), FRONT)
    assert manifest.epsilons == (2.0, 1.0)
    for offer in manifest.offers:
        released = release(np.ones((ROWS, WIDTH)), offer.noise.build(), bits=manifest.release.bits)
        header = parse_frame(frame_of(released, cut=manifest.release.cut, **ABOUT)).header
        assert manifest.offer_for(header, refusal="not asked for") is offer
        assert offer.step == released.step
    assert Manifest.of(_provider(epsilon=4.0), FRONT, epsilons=()).epsilons == ()


def test_a_frame_with_noise_that_is_not_offered_or_with_anothers_step_does_not_fit() -> None:
    manifest = Manifest.of(_provider(epsilon=4.0), FRONT, epsilons=(2.0,))
    for epsilon in (8.0, 3.0, 1.0):
        released = release(np.ones((ROWS, WIDTH)), NoiseSpec(epsilon=epsilon).build(), bits=8)
        header = parse_frame(frame_of(released, cut=manifest.release.cut, **ABOUT)).header
        with pytest.raises(WireError, match=r"^not asked for: epsilon: .*[(]budget[)]$"):
            manifest.offer_for(header, refusal="not asked for")
    mixed = dataclasses.replace(header, epsilon=manifest.epsilon, step=manifest.offers[1].step)
    with pytest.raises(WireError, match=r"^not asked for: step: "):
        manifest.offer_for(mixed, refusal="not asked for")


@pytest.mark.parametrize(
    "epsilons", [(4.0,), (8.0,), (1.0, 2.0), (2.0, 2.0), (0.0,), (-1.0,), (math.nan,), (3.0,) * 16, [2.0]]
)
def test_only_smaller_epsilons_that_fall_are_offered(epsilons: Any) -> None:
    with pytest.raises(InvalidInput, match="never less"):
        _manifest(epsilons=epsilons)


# Its numbers


@pytest.mark.parametrize("mechanism", MATRICES)
def test_the_numbers_are_those_of_a_release(mechanism: str) -> None:
    manifest = _manifest(noise=NoiseSpec(mechanism=mechanism, epsilon=4.0))
    released = release(np.ones((16, 384)), manifest.mechanism(), bits=8)
    assert (manifest.step, manifest.epsilon) == (released.step, released.guarantee.epsilon)
    assert manifest.delta == released.guarantee.delta
    assert manifest.epsilon <= 4.0


def test_no_number_of_the_promise_can_be_handed_in() -> None:
    for name in ("step", "epsilon", "delta", "sigma"):
        with pytest.raises(TypeError):
            _manifest(**{name: 1.0})
        with pytest.raises(WireError):
            Manifest.from_dict(_manifest().as_dict() | {name: 1.0})


def test_the_repr_says_what_is_promised() -> None:
    shown = repr(_manifest())
    assert shown == "Manifest(16 x 384 int8 at encoder.6, front 0123456789ab...) -> 4.0-LDP per text"


# Over the wire


@pytest.mark.parametrize("cut", ["encoder.1", "output"])
@pytest.mark.parametrize("mechanism", MATRICES)
def test_a_manifest_survives_json(mechanism: str, cut: str) -> None:
    manifest = Manifest.of(_provider(cut, mechanism=mechanism, epsilon=4.0), FRONT)
    again = Manifest.from_dict(json.loads(json.dumps(manifest.as_dict())))
    assert again == manifest
    assert (again.step, again.epsilon, again.delta) == (manifest.step, manifest.epsilon, manifest.delta)


HOSTILE: dict[str, tuple[str, Any]] = {
    "another version": ("version", 2),
    "true as version": ("version", True),
    "no rows": ("rows", 0),
    "half a row": ("rows", 15.5),
    "rows that are true": ("rows", True),
    "more rows than cross": ("matrix_rows", 17),
    "width as text": ("width", "384"),
    "width beyond a frame": ("width", 1 << 21),
    "an endless width": ("width", 10**400),
    "four bits": ("bits", 4),
    "bits as float": ("bits", 8.0),
    "no such cut": ("cut", "encoder.0"),
    "a long cut": ("cut", "encoder." + "1" * 5000),
    "a cut of null": ("cut", None),
    "a short digest": ("front", FRONT[:-1]),
    "a digest in capitals": ("front", FRONT.upper()),
    "no labels": ("labels", []),
    "labels as a word": ("labels", "ab"),
    "numbers as labels": ("labels", [0, 1]),
    "the same label twice": ("labels", ["a", "a"]),
    "terminal codes": ("labels", ["\x1b[2Jgood", "bad"]),
    "two lines": ("labels", ["good\nnews", "bad"]),
    "a book as a label": ("labels", ["a" * 201, "b"]),
    "no noise": ("noise", None),
    "noise as a list": ("noise", []),
}
HOSTILE_NOISE: dict[str, tuple[str, Any]] = {
    "a sigma": ("sigma", 0.001),
    "a mechanism of its own": ("mechanism", "trust-me"),
    "mvg": ("mechanism", "mvg"),
    "epsilon 0": ("epsilon", 0),
    "epsilon NaN": ("epsilon", math.nan),
    "epsilon without end": ("epsilon", math.inf),
    "epsilon beyond floats": ("epsilon", 10**400),
    "epsilon as text": ("epsilon", "8"),
    "epsilon of true": ("epsilon", True),
    "a delta for privunit": ("delta", 0.5),
    "delta of null": ("delta", None),
    "norm 0": ("norm", 0.0),
    "norm out of range": ("norm", 1e300),
    "norm NaN": ("norm", math.nan),
    "clip for privunit": ("how", "clip"),
    "a unit of its own": ("unit", "nobody"),
    "a label as unit": ("unit", "label"),
    "tokens where rows mix": ("unit", "token"),
    "a far threshold": ("threshold_share", 5),
    "rows of text": ("rows", "16"),
}


def _refused(settings: object) -> str:
    with pytest.raises(WireError) as caught:
        Manifest.from_dict(settings)
    return f"{caught.value.code}: {caught.value}"


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_refused(case: str) -> None:
    name, value = HOSTILE[case]
    told = _refused(_manifest().as_dict() | {name: value})
    assert told.startswith(("manifest: ", "version: "))
    assert "\n" not in told
    assert len(told) < 200


@pytest.mark.parametrize("case", HOSTILE_NOISE)
def test_hostile_noise_is_refused(case: str) -> None:
    name, value = HOSTILE_NOISE[case]
    settings = _manifest().as_dict()
    settings["noise"] = settings["noise"] | {name: value}
    assert _refused(settings).startswith("manifest: ")


@pytest.mark.parametrize("name", sorted(_manifest().as_dict()))
def test_a_missing_key_is_refused(name: str) -> None:
    settings = _manifest().as_dict()
    del settings[name]
    assert _refused(settings).startswith("manifest: ")


@pytest.mark.parametrize("name", sorted(_manifest().as_dict()["noise"]))
def test_a_missing_key_of_the_noise_is_refused(name: str) -> None:
    settings = _manifest().as_dict()
    del settings["noise"][name]
    assert _refused(settings).startswith("manifest: ")


@pytest.mark.parametrize("thing", [None, [], "manifest", 1, {}, {"detail": "not found"}])
def test_what_is_no_manifest_is_refused(thing: object) -> None:
    assert _refused(thing).startswith("manifest: ")


def test_a_refusal_repeats_nothing_that_the_server_wrote() -> None:
    word = "click_here_to_win"
    for name in ("cut", "front", "labels", "bits", "rows", "width", word):
        assert word not in _refused(_manifest().as_dict() | {name: word})
    for name in ("mechanism", "unit", "how", word):
        settings = _manifest().as_dict()
        settings["noise"] = settings["noise"] | {name: word}
        assert word not in _refused(settings)


_JSON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["token", "text", "phrase:3", "gaussian", "privunit", "embeddings", "output", "clip"]),
    st.lists(st.integers(0, 3), max_size=3),
)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    mechanism=st.sampled_from(MATRICES),
    outer=st.dictionaries(st.sampled_from(sorted(_manifest().as_dict())), _JSON, max_size=2),
    inner=st.dictionaries(st.sampled_from(sorted(_manifest().as_dict()["noise"])), _JSON, max_size=3),
)
def test_any_json_gives_a_sound_manifest_or_a_refusal(
    mechanism: str, outer: dict[str, Any], inner: dict[str, Any]
) -> None:
    given_settings = _manifest(noise=NoiseSpec(mechanism=mechanism, epsilon=4.0)).as_dict()
    given_settings["noise"] |= inner
    try:
        manifest = Manifest.from_dict(given_settings | outer)
    except WireError:
        return
    assert 0 < manifest.step < math.inf
    assert 0 < manifest.epsilon <= manifest.release.noise.epsilon
    assert Manifest.from_dict(manifest.as_dict()) == manifest
