"""A frame holds one release and nothing else; whatever bytes come in, a frame or a `WireError` comes out."""

import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.noise import Released, Sanitizer, release, release_labels
from dp_forward.privacy import NoiseSpec, RandomizedResponse
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.protocol.frame import (
    HEADER_BYTES,
    MECHANISMS,
    MOST_ENTRIES,
    Frame,
    Header,
    WireError,
    frame_of,
    parse_frame,
)
from dp_forward.service.protocol.manifest import Manifest

FRONT = bytes(range(32)).hex()
REQUEST = bytes(range(0xA0, 0xB0))
TIME = 1_700_000_000
ABOUT = {"cut": "encoder.6", "front": FRONT, "request": REQUEST, "time": TIME}
HIDDEN = np.array([[0.5, -0.25, 0.125], [1.0, 0.0, -2.0]])
MATRICES = ("privunit", "matrix-gaussian", "gaussian")
CHOICES = {name: NoiseSpec(mechanism=name, epsilon=4.0) for name in MATRICES}
DECISION = NoiseSpec(mechanism="k-ary-response", epsilon=4.0, columns=3)

RESPONSE = RandomizedResponse(1.0, 2)

MIDDLE = (
    "656e636f6465722e36000000000000000000000000000000"
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf 00f1536500000000 0000000000000000"
)
DELTA = "f168e388b5f8e43e"
GOLDEN = {
    # mechanism -> bits, all before the step, the step, all after epsilon
    "privunit": (
        8,
        "44504657 01080100 02000000 03000000",
        0.08247353794890562,
        "0000000000000000" + MIDDLE + "fd000510f8f8",
    ),
    "matrix-gaussian": (
        16,
        "44504657 01100200 02000000 03000000",
        0.25,
        DELTA + MIDDLE + "faff 0000 0600 1000 fcff f2ff",
    ),
    "gaussian": (8, "44504657 01080300 02000000 03000000", 0.25, DELTA + MIDDLE + "fa000610fcf2"),
}

CUTS = (
    "embeddings",
    "output",
    "encoder.1",
    "encoder.12.attention",
    "encoder.48.attention_norm",
    "encoder.999999.attention_norm",
    "encoder.3.ffn",
    "encoder.3.ffn_norm",
    "encoder.1.qkv",
)


def _stub(size: int) -> bytes:
    """Entropy that is the same everywhere: 37, 94, 151, ..."""
    return bytes((37 + 57 * i) % 256 for i in range(size))


def _released(mechanism: str = "privunit", *, bits: int = 8, hidden: np.ndarray = HIDDEN) -> Released:
    return release(hidden, CHOICES[mechanism].build(), bits=bits, entropy=_stub)


def _header(**changes: object) -> Header:
    good: dict[str, object] = {
        "bits": 8,
        "mechanism": "matrix-gaussian",
        "rows": 2,
        "width": 3,
        "step": 0.125,
        "epsilon": 8.0,
        "delta": 2.0**-17,
        "cut": "encoder.6",
        "front": bytes.fromhex(FRONT),
        "request": REQUEST,
        "time": TIME,
    }
    return Header(**(good | changes))


# The bytes themselves


def test_the_golden_header_has_these_bytes() -> None:
    golden = (
        "44504657 01 08 02 00 02000000 03000000"
        "000000000000c03f 0000000000002040 000000000000e03e"
        "656e636f6465722e36000000000000000000000000000000"
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf 00f1536500000000 0000000000000000"
    )
    assert _header().pack() == bytes.fromhex(golden)
    assert Header.unpack(bytes.fromhex(golden)) == _header()


def test_the_example_of_the_format_page_is_a_frame() -> None:
    page = Path(__file__).parents[3] / "docs" / "wire-format.md"
    hexes = page.read_text(encoding="utf-8").split("```hex")[1].split("```")[0]
    frame = parse_frame(bytes.fromhex(hexes))
    assert frame.header == _header()
    assert frame.values.tolist() == [[1, -1, 2], [-2, 127, -128]]


@pytest.mark.parametrize("mechanism", GOLDEN)
def test_the_golden_frames_have_these_bytes(mechanism: str) -> None:
    bits, before, step, after = GOLDEN[mechanism]
    frame = frame_of(_released(mechanism, bits=bits), **ABOUT)
    assert frame[:16] == bytes.fromhex(before)
    # The last digits of a calibration may differ between machines; nothing else may.
    assert struct.unpack_from("<d", frame, 16)[0] == pytest.approx(step, rel=1e-12)
    assert struct.unpack_from("<d", frame, 24)[0] == pytest.approx(4.0, rel=1e-9)
    assert frame[32:] == bytes.fromhex(after)


def test_the_golden_frame_of_a_decision_has_these_bytes() -> None:
    released = release(np.array([[0.5, -0.25, 2.0]]), DECISION.build(), bits=8, entropy=_stub)
    about = ABOUT | {"cut": "output"}
    golden = (
        "44504657 01080400 01000000 03000000"
        "000000000000f03f 0000000000001040 0000000000000000"
        "6f7574707574 000000000000000000000000000000000000"
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf 00f1536500000000 0000000000000000"
        "000001"
    )
    assert frame_of(released, **about) == bytes.fromhex(golden)
    header = parse_frame(bytes.fromhex(golden)).header
    assert (header.mechanism, header.rows, header.width, header.step) == ("k-ary-response", 1, 3, 1.0)
    spec = {"noise": DECISION, "rows": 7, "cut": "output"}
    assert _manifest(**spec).offer_for(header, refusal="not asked for").mechanism == DECISION.build()


def test_every_number_of_a_mechanism_stays_as_it_is() -> None:
    assert MECHANISMS == {"privunit": 1, "matrix-gaussian": 2, "gaussian": 3, "k-ary-response": 4}


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("mechanism", MATRICES)
def test_a_frame_is_a_header_and_the_integers(mechanism: str, bits: int) -> None:
    released = _released(mechanism, bits=bits)
    frame = frame_of(released, **ABOUT)
    assert len(frame) == HEADER_BYTES + 6 * bits // 8
    assert frame[HEADER_BYTES:] == released.to_bytes()
    header = parse_frame(frame).header
    assert (header.step, header.epsilon) == (released.step, released.guarantee.epsilon)
    assert (header.delta, header.mechanism) == (released.guarantee.delta, mechanism)


def test_the_length_does_not_depend_on_the_text() -> None:
    texts = (np.zeros((2, 3)), np.full((2, 3), np.nan), np.full((2, 3), 1e300), HIDDEN)
    assert len({len(frame_of(_released(hidden=text), **ABOUT)) for text in texts}) == 1


@pytest.mark.parametrize("cut", CUTS)
def test_every_kind_of_cut_fits_and_comes_back(cut: str) -> None:
    assert Header.unpack(_header(cut=cut).pack()).cut == cut


def test_received_values_cannot_be_written_or_seen_in_a_repr() -> None:
    released = _released(bits=16)
    frame = parse_frame(frame_of(released, **ABOUT))
    assert frame.values.dtype == np.dtype("<i2")
    with pytest.raises(ValueError):
        frame.values[0, 0] = 1
    with pytest.raises(ValueError):
        frame.values.setflags(write=True)
    assert repr(frame) == ("Frame(header=Header(2 x 3 int16 at encoder.6, privunit, epsilon=4, delta=0))")


# Only a release becomes a frame


def _simulated() -> torch.Tensor:
    sanitizer = Sanitizer(CHOICES["privunit"].build(), seed=0)
    return sanitizer(torch.tensor(HIDDEN, dtype=torch.float32)[None])[0]


def _parsed() -> Frame:
    return parse_frame(frame_of(_released(), **ABOUT))


class _Duck:
    """Everything that a release has, without being one."""

    def __init__(self) -> None:
        true = _released()
        self.values, self.step, self.guarantee = true.values, true.step, true.guarantee
        self.shape, self.bits, self.to_bytes = true.shape, true.bits, true.to_bytes


@pytest.mark.parametrize(
    "make",
    [
        lambda: HIDDEN,
        lambda: HIDDEN.astype(np.int8),
        lambda: torch.tensor(HIDDEN),
        _simulated,
        _Duck,
        _parsed,
        lambda: _parsed().values,
        lambda: _released().to_bytes(),
        lambda: release_labels([0, 1], RESPONSE),
        lambda: None,
    ],
    ids=[
        "array",
        "integers",
        "tensor",
        "simulated",
        "duck",
        "frame",
        "frame values",
        "bytes",
        "labels",
        "nothing",
    ],
)
def test_only_a_release_becomes_a_frame(make) -> None:
    with pytest.raises(InvalidInput, match="be a Released"):
        frame_of(make(), **ABOUT)


def test_a_frame_is_made_of_a_release() -> None:
    assert np.array_equal(_parsed().values, _released().values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cut", "encoder.0"),
        ("cut", "encoder.2.attn_norm"),
        ("cut", "encoder." + "1" * 5000),
        ("cut", "\N{SNOWMAN}"),
        ("cut", None),
        ("front", FRONT.upper()),
        ("front", FRONT[:-1]),
        ("front", FRONT[:-2] + " a"),
        ("front", bytes.fromhex(FRONT)),
        ("request", REQUEST[:-1]),
        ("request", REQUEST.hex()[:16]),
        ("time", -1),
        ("time", 1 << 40),
        ("time", 1.5),
        ("time", True),
    ],
)
def test_what_the_format_cannot_hold_is_named(name: str, value: object) -> None:
    with pytest.raises(WireError) as caught:
        frame_of(_released(), **(ABOUT | {name: value}))
    assert caught.value.code == name
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


# What a receiver refuses


@pytest.mark.parametrize(
    ("place", "layout", "value", "code"),
    [
        (0, "4s", b"DPFX", "magic"),
        (4, "<B", 2, "version"),
        (5, "<B", 32, "dtype"),
        (6, "<B", 0, "mechanism"),
        (6, "<B", 5, "mechanism"),
        (7, "<B", 1, "reserved"),
        (8, "<I", 0, "shape"),
        (12, "<I", 0, "shape"),
        (8, "<I", 0xFFFFFFFF, "shape"),
        (12, "<I", MOST_ENTRIES // 2 + 1, "shape"),
        (16, "<d", 0.0, "step"),
        (16, "<d", -0.125, "step"),
        (16, "<d", math.nan, "step"),
        (16, "<d", math.inf, "step"),
        (16, "<d", 5e-324, "step"),
        (24, "<d", 0.0, "budget"),
        (24, "<d", -8.0, "budget"),
        (24, "<d", math.inf, "budget"),
        (24, "<d", math.nan, "budget"),
        (32, "<d", 1.0, "budget"),
        (32, "<d", -1e-5, "budget"),
        (32, "<d", -0.0, "budget"),
        (32, "<d", math.nan, "budget"),
        (32, "<d", 0.0, "budget"),  # Gaussian noise has no pure promise
        (6, "<B", 1, "budget"),  # and privunit no delta
        (6, "<B", 4, "budget"),  # nor has a response
        (40, "24s", b"", "cut"),
        (40, "24s", b"encoder.6\0\0x", "cut"),
        (40, "24s", b"encoder.6 ", "cut"),
        (40, "24s", b"encoder.06", "cut"),
        (40, "24s", b"Encoder.6", "cut"),
        (40, "24s", b"encoder.2.qkv", "cut"),
        (40, "24s", b"encoder.2.attention_norm", "cut"),  # written attn_norm: one way only
        (40, "24s", b"\xff" * 24, "cut"),
        (112, "<Q", 1 << 63, "time"),
        (120, "8s", b"\0\0\0\0\0\0\0\1", "reserved"),
    ],
)
def test_every_broken_rule_has_its_word(place: int, layout: str, value: object, code: str) -> None:
    frame = bytearray(_header().pack() + bytes(6))
    struct.pack_into(layout, frame, place, value)
    with pytest.raises(WireError) as caught:
        parse_frame(bytes(frame))
    assert caught.value.code == code


def test_zero_has_one_spelling() -> None:
    assert Header.unpack(_header(mechanism="privunit", delta=0.0).pack()).delta == 0
    with pytest.raises(WireError, match="delta"):
        _header(mechanism="privunit", delta=-0.0)


@pytest.mark.parametrize("change", [-134, -133, -7, -6, -1, 1, 6, 1000])
def test_a_frame_has_exactly_its_length(change: int) -> None:
    frame = _header().pack() + bytes(6)
    assert parse_frame(frame)
    longer = frame + bytes(max(0, change))
    with pytest.raises(WireError) as caught:
        parse_frame(longer[: len(frame) + change])
    assert caught.value.code == "length"


@pytest.mark.parametrize("data", [None, "DPFW", bytearray(134), memoryview(bytes(134)), 134, [1]])
def test_only_bytes_are_parsed(data: object) -> None:
    for parse in (parse_frame, Header.unpack):
        with pytest.raises(WireError) as caught:
            parse(data)
        assert caught.value.code == "type"


def test_a_large_shape_is_refused_before_anything_is_allocated() -> None:
    assert parse_frame(_header(rows=1, width=1).pack() + b"\0").values.shape == (1, 1)
    data = _header(rows=4096, width=4096).pack()
    with pytest.raises(WireError) as caught:
        parse_frame(data)
    assert caught.value.code == "length"


# Properties


_HEADERS = st.builds(
    lambda privunit, bits, shape, step, epsilon, delta, cut, front, request, time: _header(
        bits=bits,
        mechanism="privunit" if privunit else "gaussian",
        rows=shape[0],
        width=shape[1],
        step=step,
        epsilon=epsilon,
        delta=0.0 if privunit else delta,
        cut=cut,
        front=front,
        request=request,
        time=time,
    ),
    st.booleans(),
    st.sampled_from((8, 16)),
    st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
    st.floats(2.0**-120, 2.0**100),
    st.floats(5e-324, 1e308),
    st.floats(5e-324, 1.0, exclude_max=True),
    st.sampled_from(CUTS),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
    st.integers(0, (1 << 40) - 1),
)


@pytest.mark.slow
@given(header=_HEADERS)
def test_a_header_comes_back_as_it_was(header: Header) -> None:
    data = header.pack()
    assert len(data) == HEADER_BYTES
    assert Header.unpack(data) == header
    assert Header.unpack(data).pack() == data


@pytest.mark.slow
@settings(max_examples=50)
@given(
    hidden=arrays.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 7))),
    mechanism=st.sampled_from(MATRICES),
    bits=st.sampled_from((8, 16)),
    cut=st.sampled_from(CUTS),
)
def test_a_release_comes_back_as_it_was(hidden: np.ndarray, mechanism: str, bits: int, cut: str) -> None:
    released = release(hidden, CHOICES[mechanism].build(), bits=bits)
    data = frame_of(released, **(ABOUT | {"cut": cut}))
    frame = parse_frame(data)
    assert np.array_equal(frame.values, released.values)
    assert frame.values.dtype == released.values.dtype
    assert frame.header.pack() + frame.values.tobytes() == data
    assert (frame.header.cut, frame.header.front.hex(), frame.header.request) == (cut, FRONT, REQUEST)


def _outcome(data: bytes) -> str:
    """The code of the refusal, or `parsed`; any other exception goes on and fails the test."""
    try:
        frame = parse_frame(data)
    except WireError as error:
        return error.code
    assert frame.header.pack() == data[:HEADER_BYTES]
    return "parsed"


@pytest.mark.slow
def test_every_change_of_one_byte_gives_a_refusal_or_a_sound_header() -> None:
    honest = _header(cut="encoder.12.attention_norm").pack()
    seen = set()
    for place in range(HEADER_BYTES):
        for other in range(256):
            data = honest[:place] + bytes([other]) + honest[place + 1 :]
            try:
                header = Header.unpack(data)
            except WireError as error:
                seen.add(error.code)
                continue
            assert header.pack() == data
            assert (header == _header(cut="encoder.12.attention_norm")) == (data == honest)
    assert seen == {
        *("magic", "version", "dtype", "mechanism", "reserved", "shape", "step"),
        *("budget", "cut", "time"),
    }


@pytest.mark.slow
def test_twenty_thousand_fuzzed_frames_give_frames_or_refusals() -> None:
    rng = np.random.default_rng(5)
    honest = np.frombuffer(_header().pack() + bytes(6), dtype=np.uint8)
    count, size = 20_000, len(honest)
    random = rng.integers(0, 256, (count, size), dtype=np.uint8)
    # A quarter is noise throughout; the others are honest frames with ever fewer bytes replaced.
    share = np.array([1.0, 0.2, 0.02, 0.005])[np.arange(count) % 4, None]
    frames = np.where(rng.random((count, size)) < share, random, honest)
    lengths = np.where(rng.random(count) < 0.9, size, rng.integers(0, size, count))
    seen = {_outcome(row[:length].tobytes()) for row, length in zip(frames, lengths, strict=True)}
    assert seen >= {"parsed", "length", "magic", "version", "dtype", "mechanism", "reserved", "shape"}
    assert seen >= {"step", "budget", "cut", "time"}


@given(data=st.binary(max_size=200), honest_start=st.integers(0, HEADER_BYTES))
def test_any_bytes_give_a_frame_or_a_refusal(data: bytes, honest_start: int) -> None:
    _outcome(data)
    _outcome(_header().pack()[:honest_start] + data)


# What a server compares


def _manifest(mechanism: str = "privunit", **changes: object) -> Manifest:
    good: dict[str, object] = {
        "noise": CHOICES[mechanism],
        "rows": 2,
        "matrix_rows": 2,
        "width": 3,
        "bits": 8,
        "cut": "encoder.6",
        "front": FRONT,
        "labels": ("negative", "positive"),
    }
    good |= changes
    good.pop("matrix_rows", None)
    return Manifest(release=ReleaseSpec(**good))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("mechanism", MATRICES)
def test_an_honest_frame_fits_its_manifest(mechanism: str, bits: int) -> None:
    header = parse_frame(frame_of(_released(mechanism, bits=bits), **ABOUT)).header
    offer = _manifest(mechanism, bits=bits).offer_for(header, refusal="not asked for")
    assert (offer.epsilon, offer.step) == (header.epsilon, header.step)


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("bits", {"bits": 16}),
        ("rows", {"rows": 4, "matrix_rows": 4}),
        ("rows", {"cut": "output", "matrix_rows": 1}),
        ("width", {"width": 4}),
        ("mechanism", {"mechanism": "gaussian"}),
        ("cut", {"cut": "encoder.5"}),
        ("front", {"front": "00" * 32}),
        ("front", {"front": FRONT[:-1] + "0"}),
        ("epsilon", {"noise": NoiseSpec(epsilon=3.999)}),
        ("epsilon", {"noise": NoiseSpec(epsilon=4.001)}),
        ("step", {"noise": NoiseSpec(epsilon=4.0, norm=1.001)}),
        ("step", {"noise": NoiseSpec(epsilon=4.0, threshold_share=0.9)}),
    ],
)
def test_the_first_disagreement_with_a_manifest_is_named(word: str, changes: dict[str, object]) -> None:
    header = parse_frame(frame_of(_released(), **ABOUT)).header
    _manifest().offer_for(header, refusal="not asked for")
    with pytest.raises(WireError, match=f"^not asked for: {word}: the frame has"):
        _manifest(**changes).offer_for(header, refusal="not asked for")


def test_another_delta_is_told() -> None:
    header = parse_frame(frame_of(_released("gaussian"), **ABOUT)).header
    other = _manifest("gaussian", noise=NoiseSpec(mechanism="gaussian", epsilon=4.0, delta=1e-6))
    with pytest.raises(WireError, match=r"^not asked for: delta: .*[(]budget[)]$"):
        other.offer_for(header, refusal="not asked for")


@pytest.mark.parametrize("name", ["epsilon", "step"])
def test_last_digits_are_forgiven_and_no_more(name: str) -> None:
    data = bytearray(frame_of(_released(), **ABOUT))
    place = {"step": 16, "epsilon": 24}[name]
    value = struct.unpack_from("<d", data, place)[0]
    struct.pack_into("<d", data, place, math.nextafter(value, 0))
    _manifest().offer_for(parse_frame(bytes(data)).header, refusal="not asked for")
    struct.pack_into("<d", data, place, value * (1 - 1e-8))
    with pytest.raises(WireError, match=f"^not asked for: {name}: "):
        _manifest().offer_for(parse_frame(bytes(data)).header, refusal="not asked for")


# Around it


@pytest.mark.slow
def test_importing_the_wire_loads_no_torch() -> None:
    modules = "dp_forward.service.protocol.frame, dp_forward.service.protocol.manifest"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_wire_error_is_one_of_ours() -> None:
    error = WireError("length", "Too short")
    assert isinstance(error, DpForwardError)
    assert str(error) == "Too short (length)"
