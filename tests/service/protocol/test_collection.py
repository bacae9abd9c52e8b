"""A training record is a frame and a label, tells no time, and never parses to anything else."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import Prior, ResponseWithPrior
from dp_forward.service.protocol.collection import (
    MOST_BODY_BYTES,
    RECORD_LABEL_BYTES,
    CollectionSpec,
    pack_record,
    parse_record,
    with_new_id,
)
from dp_forward.service.protocol.frame import HEADER_BYTES, WireError
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.request_limits import Refused
from service.collector.collect_cases import FRONT, RANDOMIZED, manifest, provider, reader, record, spec

LABELS = 3


def test_a_record_is_a_frame_and_its_label() -> None:
    data = record(label=2)
    assert len(data) == spec().record_bytes == manifest().frame_bytes + RECORD_LABEL_BYTES
    found = parse_record(data, labels=LABELS)
    assert (found.label, found.header.time, found.data) == (2, 0, data)
    assert pack_record(data[:-4], 2) == data
    assert found.noisy == data[HEADER_BYTES:-4] == found.values.tobytes()
    assert not found.values.flags.writeable
    assert parse_record(record(label=None), labels=None).label is None


@pytest.mark.parametrize(
    ("data", "labels", "code"),
    [
        (lambda: record(label=3), LABELS, "label"),
        (lambda: record(label=None), LABELS, "label"),
        (lambda: record(label=0), None, "label"),
        (lambda: record(time=1_700_000_000), LABELS, "time"),
        (lambda: record()[:-1], LABELS, "length"),
        (lambda: record() + b"\0", LABELS, "length"),
        (lambda: b"", LABELS, "length"),
        (lambda: bytearray(record()), LABELS, "type"),
        (lambda: b"X" + record()[1:], LABELS, "magic"),
    ],
)
def test_every_defect_has_its_word(data, labels: int | None, code: str) -> None:
    with pytest.raises(WireError) as error:
        parse_record(data(), labels=labels)
    assert error.value.code == code


def test_a_new_id_changes_the_id_alone() -> None:
    data, fresh = record(label=1), secrets.token_bytes(16)
    before, after = parse_record(data, labels=3), parse_record(with_new_id(data, fresh), labels=3)
    assert after.header.request == fresh != before.header.request
    assert (after.noisy, after.label) == (before.noisy, before.label)
    assert after.digest != before.digest
    assert with_new_id(with_new_id(data, fresh), before.header.request) == data


@given(st.binary(max_size=600))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with pytest.raises(WireError):
        parse_record(data, labels=LABELS)


def test_a_repr_holds_no_value() -> None:
    found = parse_record(record(label=2), labels=LABELS)
    for told in ("label", "array", found.header.request.hex()):
        assert told not in repr(found)


# --- the spec -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    ["public", "none", RANDOMIZED, ResponseWithPrior(1.0, Prior.public([0.5, 0.3, 0.2], where="a book"), 1)],
)
@pytest.mark.parametrize("least", [None, 100])
def test_a_form_survives_json(labels, least: int | None) -> None:
    made = spec(labels, shuffler_least=least)
    again = CollectionSpec.from_dict(json.loads(json.dumps(made.as_dict())))
    assert again.as_dict() == made.as_dict()
    assert again.as_dict().keys() == {"version", "manifest", "labels", "shuffler"}
    assert made.as_dict()["shuffler"] == (None if least is None else {"least": least})
    corpus = again.corpus_spec(7, 3)
    assert (corpus.release.front, corpus.release.bits, corpus.records, corpus.shards) == (FRONT, 8, 7, 3)
    assert corpus.guarantee().epsilon == made.corpus_spec(1, 1).guarantee().epsilon


def test_one_corpus_has_one_noise() -> None:
    answered = Manifest.of(provider(), FRONT)
    assert answered.epsilons  # the control: the server itself answers more noise too
    assert CollectionSpec.of(answered, "public").manifest.epsilons == ()
    with pytest.raises(InvalidInput, match="one noise"):
        CollectionSpec(manifest=answered, labels="public")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version=2),
        lambda d: d.update(version=True),
        lambda d: d.update(more=1),
        lambda d: d.pop("shuffler"),
        lambda d: d.update(shuffler={"least": 1}),
        lambda d: d.update(shuffler={"least": 10, "more": 1}),
        lambda d: d.update(shuffler=[]),
        lambda d: d.update(shuffler={"least": True}),
        lambda d: d.update(labels={"how": "guessed"}),
        lambda d: d.update(labels="public"),
        lambda d: d.update(labels={"how": "randomized", "epsilon": -1, "releases": 1}),
        lambda d: d.update(labels={"how": "randomized", "epsilon": "1", "releases": 1}),
        lambda d: d.update(labels={"how": "public", "more": 1}),
        lambda d: d["manifest"].update(front="zz"),
        lambda d: d["manifest"].update(epsilons=[1.0]),
        lambda d: d["manifest"]["noise"].update(epsilon=-3),
        lambda d: d.update(manifest=None),
    ],
)
def test_a_form_that_is_not_sound_is_a_wire_error(change) -> None:
    settings = spec().as_dict()
    change(settings)
    with pytest.raises(WireError):
        CollectionSpec.from_dict(settings)
    for other in (None, [], "x", 3):
        with pytest.raises(WireError):
            CollectionSpec.from_dict(other)


# --- bodies -------------------------------------------------------------------------------------------------


def test_a_body_is_whole_records_and_names_the_bad_one() -> None:
    read = reader()
    assert len(read.body(record() + record())) == 2
    assert read.spec.body_records * read.spec.record_bytes <= MOST_BODY_BYTES
    for body, code, place in (
        (b"", "length", "whole records"),
        (record()[:-1], "length", "whole records"),
        (record() * 257, "too_long", "at most 256 records"),
        (record() + record(label=7) + record(), "label", "Record 1"),
        (record() + record(time=5), "time", "Record 1"),
    ):
        with pytest.raises(Refused, match=place) as error:
            read.body(body)
        assert error.value.code == code


def test_a_client_without_noise_is_refused() -> None:
    honest = record()
    silent = honest[:HEADER_BYTES] + bytes(len(honest) - HEADER_BYTES - 4) + honest[-4:]
    with pytest.raises(Refused) as error:
        reader().body(honest + silent)
    assert (error.value.code, error.value.status) == ("no_noise", 422)


def test_the_page_on_the_wire_format_shows_a_record() -> None:
    page = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text(encoding="utf-8")
    shown = re.search(r"```record\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    found = parse_record(bytes.fromhex(shown[1]), labels=2)
    assert found.values.tolist() == [[1, -1, 2], [-2, 127, -128]]
    assert (found.label, found.header.cut, found.header.request.hex()[:4]) == (1, "encoder.6", "a0a1")
