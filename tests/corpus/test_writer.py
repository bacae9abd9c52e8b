"""One release per record, charged once, whatever happens in between."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # also when this file runs as the script that is killed

from corpus.release_cases import ROWS, files_of, folded_front, folding_user, same_text, texts, user
from dp_forward.corpus import corpus_spec
from dp_forward.corpus.draw_log import DrawLog
from dp_forward.corpus.reader import MANIFEST, ReleasedCorpus, shard_name
from dp_forward.corpus.writer import ledger_of, private_folder, release_corpus
from dp_forward.data import EncodedTexts
from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.ledger import Cap, Ledger, State
from dp_forward.ledger.text_register import TextRegister
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.privacy import TEXT, Notion, Prior, RandomizedResponse, ResponseWithPrior
from warm_process import Script

SHARD, PIECE, RECORDS = 8, 3, 22
FLIP = RandomizedResponse(2.0, 3)


def release(out: Path, **settings: Any) -> ReleasedCorpus:
    return release_corpus(user(), texts(RECORDS), out, **{"shard_records": SHARD, **settings})


def spent(out: Path) -> float:
    with Ledger.open(ledger_of(out)) as ledger:
        ledger.verify()
        return ledger.spent()


def entered() -> int:
    """Releases that the register knows."""
    with TextRegister() as register:
        return int(register.summary()["released"]["entries"])


def in_order(corpus: ReleasedCorpus) -> np.ndarray:
    """All values, as one array."""
    raw = ReleasedCorpus.open(corpus.folder, raw=True)
    return raw.__getitems__(range(len(raw)))["values"].numpy()


# --- what is killed, and when -------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(call: Callable[..., Any], *, at: int, after: bool) -> Callable[..., Any]:
    """The same function, but its ``at``-th call is the last thing that the process does."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not after:
            die()
        result = call(*args, **kwargs)
        if calls == at:
            die()
        return result

    return wrapped


def forked(out: Path, prepare: Callable[[], None]) -> int:
    """The number of a child process that releases into ``out``."""
    child = os.fork()
    if child == 0:
        try:
            corpus_spec._PIECE_RECORDS = PIECE
            prepare()
            release(out, label_mechanism=FLIP, resume=True)
        finally:
            os._exit(1)
    return child


def killed(out: Path, owner: Any, name: str, *, at: int, after: bool) -> None:
    """A child process that releases into ``out`` and is killed with signal 9 at that call."""
    last = dying(getattr(owner, name), at=at, after=after)
    _, status = os.waitpid(forked(out, lambda: setattr(owner, name, last)), 0)
    assert os.WIFSIGNALED(status), "the process came to its end before it could be killed"
    assert os.WTERMSIG(status) == signal.SIGKILL


POINTS = {
    "after the plan, before the register": (TextRegister, "charge", 1, False),
    "in the register, before the charge": (Ledger, "reserve", 1, False),
    "after the charge": (Ledger, "reserve", 1, True),
    "before the first piece": (DrawLog, "add", 1, False),
    "in the middle of shard 0": (DrawLog, "add", 2, True),
    "in the middle of shard 1, a piece drawn and not committed": (DrawLog, "add", 5, False),
    "a shard written under its draft name": (os, "replace", 2, False),
    "a shard named and not noted": (os, "replace", 2, True),
    "a shard noted": (DrawLog, "finish", 2, True),
    "all shards there, before ready": (Ledger, "ready", 1, False),
    "after ready": (Ledger, "ready", 1, True),
    "the manifest under its draft name": (os, "replace", 4, False),
    "the manifest named": (os, "replace", 4, True),
    "delivered": (Ledger, "delivered", 1, True),
}


def committed(out: Path) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """What the store holds of the unfinished shard: noisy bytes and labels by first record."""
    with contextlib.closing(sqlite3.connect(private_folder(out) / "draws")) as store:
        pieces = store.execute("SELECT first, noisy, labels FROM pieces").fetchall()
    return {first: noisy for first, noisy, _ in pieces}, {first: labels for first, _, labels in pieces}


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_release_goes_on_and_draws_no_record_again(tmp_path: Path, point: str) -> None:
    out = tmp_path / "corpus"
    owner, name, at, after = POINTS[point]
    killed(out, owner, name, at=at, after=after)
    named = {name: data for name, data in files_of(out).items() if not name.endswith(".new")}
    noisy, labels = committed(out)
    assert entered() == (owner is not TextRegister), "before the ledger, and before any draw"

    corpus = release(out, label_mechanism=FLIP, resume=True)

    assert entered() == 1
    now = files_of(out)
    assert sorted(now) == [MANIFEST, *(shard_name(number) for number in range(3))]
    assert {name: now[name] for name in named} == named, "what had its name is never written again"
    values = in_order(corpus)
    assert corpus.labels is not None
    for first, data in noisy.items():
        assert values[first : first + len(data) // values[0].nbytes].tobytes() == data, "drawn once, kept"
        assert corpus.labels[first : first + len(labels[first]) // 8].tobytes() == labels[first]
    assert len(corpus) == len(values) == RECORDS
    assert len({record.tobytes() for record in values}) == RECORDS, "no draw stands for two records"
    assert spent(out) == 6.0, "one text and one label, once"
    with Ledger.open(ledger_of(out)) as ledger:
        assert (ledger.releases, ledger.pending()) == (1, ())


@pytest.mark.slow
def test_kills_at_every_turn_of_one_release_add_up_to_one_release(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    kept: dict[str, bytes] = {}
    for _ in range(4):
        killed(out, DrawLog, "add", at=2, after=True)
        assert kept.items() <= files_of(out).items()
        kept = {name: data for name, data in files_of(out).items() if not name.endswith(".new")}
    corpus = release(out, label_mechanism=FLIP, resume=True)
    assert kept.items() <= files_of(out).items()
    assert len(corpus) == RECORDS
    assert spent(out) == 6.0


@pytest.mark.slow
def test_kills_at_any_moment_change_nothing_that_was_kept(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    moments = iter(np.random.default_rng().uniform(0.0, 0.25, size=1000))
    kept: dict[str, bytes] = {}
    draws: dict[int, bytes] = {}
    for _ in range(8):
        child = forked(out, lambda: None)
        time.sleep(next(moments))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        named = {name: data for name, data in files_of(out).items() if not name.endswith(".new")}
        assert kept.items() <= named.items()
        kept = named
        if (private_folder(out) / "draws").exists():
            draws |= {first: draws.get(first, data) for first, data in committed(out)[0].items()}
    values = in_order(release(out, label_mechanism=FLIP, resume=True))
    for first, data in draws.items():
        assert values[first : first + len(data) // values[0].nbytes].tobytes() == data
    assert kept.items() <= files_of(out).items()
    assert spent(out) == 6.0


@pytest.mark.slow
def test_a_real_process_killed_from_outside_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    process = Script(Path(__file__), [str(out)], log=tmp_path / "log", OMP_NUM_THREADS="1")
    until = time.monotonic() + 120
    while process.running and "waits" not in process.output and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    assert process.finish() == -signal.SIGKILL, "killed before its end"
    before, (noisy, _), paid = files_of(out), committed(out), spent(out)
    assert MANIFEST not in before
    with pytest.raises(InvalidInput, match="manifest"):
        ReleasedCorpus.open(out)

    corpus = release(out, resume=True)

    assert {
        name: files_of(out)[name] for name in before if not name.endswith(".new")
    }.items() <= before.items()
    values = in_order(corpus)
    for first, data in noisy.items():
        assert values[first : first + len(data) // values[0].nbytes].tobytes() == data
    assert (paid, spent(out)) == (4.0, 4.0)


# --- asked again --------------------------------------------------------------------------------------------


def test_a_complete_release_asked_again_costs_nothing_and_gives_the_same_bytes(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    release(out)
    before = files_of(out)
    for resume in (False, True):
        release(out, resume=resume)
        release(out, resume=resume, shard_records=None)
        assert files_of(out) == before
    assert spent(out) == 4.0


@pytest.mark.slow
def test_an_unfinished_release_is_refused_without_resume(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    killed(out, DrawLog, "finish", at=1, after=True)
    before = files_of(out)
    with pytest.raises(InvalidInput, match="resume"):
        release(out, label_mechanism=FLIP)
    assert files_of(out) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"user": user(digest="bb" * 32)}, "other front"),
        ({"user": user(epsilon=3.0)}, "other release"),
        ({"texts": texts(RECORDS, seed=1)}, "another corpus"),
        ({"texts": texts(RECORDS).with_labels(np.zeros(RECORDS, dtype=int))}, "another corpus"),
        ({"bits": 16}, "other bits"),
        ({"label_mechanism": FLIP}, "other labels"),
        ({"publish_labels": False}, "other labels"),
        ({"shard_records": 5}, "other shard_records"),
    ],
)
def test_a_folder_with_another_release_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    out = tmp_path / "corpus"
    if named in ("another corpus", "other front"):
        release(out)
    else:
        with pytest.raises(KeyboardInterrupt):
            release(out, progress=_interrupt)
    before, paid = files_of(out), spent(out)
    asked = {"user": user(), "texts": texts(RECORDS), "shard_records": SHARD, **change}
    with pytest.raises(InvalidInput, match=named):
        release_corpus(asked.pop("user"), asked.pop("texts"), out, resume=True, budget=100.0, **asked)
    assert files_of(out) == before
    assert spent(out) == paid


def _interrupt(_: int) -> None:
    raise KeyboardInterrupt


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match="new or empty"):
        release(tmp_path / "corpus", resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"], "nothing is left beside it"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "one bit"])
def test_a_finished_shard_that_is_lost_is_never_drawn_again(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "corpus"
    killed(out, DrawLog, "finish", at=2, after=True)
    data = bytearray((out / shard_name(0)).read_bytes())
    data[-1] ^= 1
    (out / shard_name(0)).unlink()
    if damage == "one bit":
        (out / shard_name(0)).write_bytes(data)
    before = files_of(out)
    with pytest.raises(InvalidInput, match=r"shard-00000.*never drawn again"):
        release(out, label_mechanism=FLIP, resume=True)
    assert files_of(out) == before


def test_two_processes_at_once_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "corpus"

    def again(_: int) -> None:
        with pytest.raises(InvalidInput, match="another process"):
            release(out, resume=True)

    release(out, progress=again)
    assert spent(out) == 4.0


# --- the budget ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_release_of_a_corpus_is_charged_again_and_refused_beyond_the_cap(tmp_path: Path) -> None:
    ledger = tmp_path / "corpus.ledger"
    release(tmp_path / "one", ledger=ledger, budget=8.0)
    release(tmp_path / "two", ledger=ledger)
    assert files_of(tmp_path / "one") != files_of(tmp_path / "two")
    with pytest.raises(BudgetExhausted) as refused:
        release(tmp_path / "three", ledger=ledger)
    assert refused.value.exit_code == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "corpus.ledger", "one", "one.private", "two", "two.private"
    ]  # fmt: skip
    with Ledger.open(ledger) as book:
        book.verify()
        assert book.spent() == 8.0
        assert book.summary().remaining == 0.0


def test_the_cap_is_one_release_unless_said_otherwise(tmp_path: Path) -> None:
    release(tmp_path / "one")
    with Ledger.open(ledger_of(tmp_path / "one")) as book:
        assert (book.cap, book.spent()) == (Cap.pure(4.0), 4.0)
        assert book.find(b"0" * 16) is None
    with pytest.raises(BudgetExhausted):
        release(tmp_path / "two", ledger=ledger_of(tmp_path / "one"))


@pytest.mark.parametrize("noise", ["privunit", "matrix-gaussian"])
def test_a_release_fits_under_a_cap_of_its_own_epsilon(tmp_path: Path, noise: str) -> None:
    corpus = release_corpus(user("output", mechanism=noise), texts(9), tmp_path / "corpus", budget=4.0)
    assert corpus.guarantee.epsilon <= 4.0
    with Ledger.open(ledger_of(tmp_path / "corpus")) as book:
        assert book.cap is not None
        assert (book.cap.epsilon, book.cap.delta) == (4.0, corpus.guarantee.delta)
        assert book.charged().epsilon(corpus.guarantee.delta) == pytest.approx(4.0)


@pytest.mark.slow
def test_a_gaussian_text_with_a_randomized_label_has_a_share_for_each(tmp_path: Path) -> None:
    """In the proportion of one record, so that as many whole records fit as the budget allows."""
    side, labels = user("output", mechanism="matrix-gaussian"), RandomizedResponse(2.0, labels=3)
    released = {"label_mechanism": labels, "ledger": tmp_path / "book"}
    with pytest.raises(BudgetExhausted, match=r"5\.0 .* costs 5\.\d+ for every record"):
        release_corpus(side, texts(9), tmp_path / "none", budget=5.0, **released)
    corpus = release_corpus(side, texts(9), tmp_path / "one", budget=9.0, **released)
    with Ledger.open(tmp_path / "book") as book:
        assert book.cap is not None
        record, shares = corpus.spec.charge(), book.cap.shares
        assert book.charged() == record
        assert shares.epsilon(1e-5) == pytest.approx(9.0)
        assert shares.mu2_units * record.epsilon_units == pytest.approx(
            record.mu2_units * shares.epsilon_units
        )
        assert book.spent() is None
    alone = release_corpus(
        side, texts(9), tmp_path / "alone", label_mechanism=labels, register=tmp_path / "other"
    )
    with Ledger.open(ledger_of(tmp_path / "alone")) as book:
        assert book.cap is not None
        assert book.cap.shares == record
        assert alone.guarantee.epsilon <= book.cap.epsilon <= 1.02 * alone.guarantee.epsilon


def test_a_release_by_token_is_promised_per_token(tmp_path: Path) -> None:
    side = user("embeddings", unit="token", mechanism="matrix-gaussian")
    corpus = release_corpus(side, texts(9), tmp_path / "corpus")
    assert corpus.guarantee.notion is Notion.TOKEN_SEQ_LDP
    with pytest.raises(InvalidInput, match="protect one unit"):
        release_corpus(side, texts(9), tmp_path / "flipped", label_mechanism=FLIP)


@pytest.mark.slow
def test_corpora_of_two_units_do_not_share_a_ledger(tmp_path: Path) -> None:
    """Texts alone, texts with randomized labels, tokens: nothing is drawn or charged for the others."""
    shared: dict[str, Any] = {"ledger": tmp_path / "ledger", "budget": 50.0}
    release(tmp_path / "text", publish_labels=False, **shared)
    others: dict[str, Any] = {
        "record": (user(), {"label_mechanism": FLIP}),
        "token": (user("embeddings", unit="token"), {"publish_labels": False}),
    }
    for name, (side, settings) in others.items():
        with pytest.raises(InvalidInput, match="charges are per text") as refused:
            release_corpus(side, texts(9), tmp_path / name, **shared, **settings)
        assert refused.value.exit_code == 2
        assert f"got {name}." in str(refused.value)
        assert not (tmp_path / name).exists()
        assert not (tmp_path / f"{name}.private").exists()
    with Ledger.open(tmp_path / "ledger") as book:
        assert (book.releases, book.summary().unit) == (1, "text")
    release(tmp_path / "alone", label_mechanism=FLIP, register=tmp_path / "register")
    with Ledger.open(ledger_of(tmp_path / "alone")) as book:
        assert book.summary().unit == "record"


@pytest.mark.slow
def test_some_texts_again_are_charged_again_in_whatever_corpus(tmp_path: Path) -> None:
    release(tmp_path / "one")
    parts = texts(2).columns, texts(9, seed=5).columns
    mixed = EncodedTexts(
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, pads_left=False
    )
    with pytest.raises(BudgetExhausted, match=r"2 of 11 texts were released before.*budget=8\.0"):
        release_corpus(user(), mixed, tmp_path / "two")
    assert not (tmp_path / "two").exists()
    assert entered() == 1
    said: list[str] = []
    release_corpus(user(), mixed, tmp_path / "two", budget=8.0, say=said.append)
    assert said == [
        "2 of 11 texts were released before, 0 more nearly; with this one up to epsilon 8.0 is charged to "
        "one of them in all ledgers."
    ]
    # Charged before the register was there, or in another one: it is resumed, and refused nothing.
    release_corpus(user(), mixed, tmp_path / "two", register=tmp_path / "other")


def test_a_budget_below_one_release_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BudgetExhausted, match=r"costs 4\.0 for every record"):
        release(tmp_path / "corpus", budget=3.9)
    assert not list(tmp_path.iterdir())
    assert entered() == 0, "what the ledger refuses is withdrawn"


@pytest.mark.slow
def test_a_release_is_resumed_with_its_own_ledger_only(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    killed(out, DrawLog, "finish", at=1, after=True)
    Ledger.create(tmp_path / "other", cap=Cap.pure(50.0)).close()
    with pytest.raises(InvalidInput, match="charged in"):
        release(out, label_mechanism=FLIP, resume=True, ledger=tmp_path / "other")
    assert len(release(out, label_mechanism=FLIP, resume=True)) == RECORDS


def test_a_ledger_that_would_be_handed_over_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="outside of out"):
        release(tmp_path / "corpus", ledger=tmp_path / "corpus" / "ledger")
    assert not list(tmp_path.iterdir())


def test_the_ledger_holds_the_manifest_and_the_charge_of_one_record(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    seen: list[tuple[State, float]] = []

    def look(_: int) -> None:
        with Ledger.open(ledger_of(out)) as book:
            (pending,) = book.pending()
            seen.append((pending.state, book.spent()))

    release(out, progress=look)
    assert set(seen) == {(State.RESERVED, 4.0)}, "charged before the first draw is kept"
    with Ledger.open(ledger_of(out)) as book:
        assert book.payload(1) == (out / MANIFEST).read_bytes()


# --- what is handed over ------------------------------------------------------------------------------------


def test_no_digest_of_the_texts_is_handed_over(tmp_path: Path) -> None:
    corpus = texts(RECORDS)
    release_corpus(user(), corpus, tmp_path / "one")
    release_corpus(user(), corpus, tmp_path / "two", budget=8.0)
    first, second = (json.loads((tmp_path / name / MANIFEST).read_text()) for name in ("one", "two"))
    plain = corpus.fingerprint().encode()
    for data in (*files_of(tmp_path / "one").values(), *files_of(tmp_path / "one.private").values()):
        assert plain not in data
        assert bytes.fromhex(plain.decode()) not in data
    assert first["corpus"] != second["corpus"], "a keyed digest, with a secret for each release"
    assert private_folder(tmp_path / "one").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_labels_are_public_randomized_or_absent_and_the_guarantee_says_so(tmp_path: Path) -> None:
    public = release(tmp_path / "public")
    assert np.array_equal(public.labels, texts(RECORDS).labels)
    assert public.guarantee.notion is Notion.SEQ_LDP
    assert public.guarantee.epsilon == pytest.approx(4.0)
    assert public.label_transition is None

    flipped = release(tmp_path / "flipped", label_mechanism=FLIP, ledger=tmp_path / "ledger")
    assert flipped.guarantee.notion is Notion.RECORD_LDP
    assert flipped.guarantee.epsilon == pytest.approx(6.0)
    assert np.array_equal(flipped.label_transition, FLIP.transition())

    bare = release(tmp_path / "bare", publish_labels=False, ledger=tmp_path / "other")
    assert bare.labels is None
    assert "labels" not in bare[0]
    assert (bare.guarantee.notion, bare.guarantee.unit) == (Notion.LDP, TEXT)


def test_a_prior_survives_the_manifest(tmp_path: Path) -> None:
    prior = Prior.public([0.6, 0.3, 0.1], where="a published balance")
    corpus = release(tmp_path / "corpus", label_mechanism=ResponseWithPrior(1.0, prior))
    assert np.array_equal(corpus.label_transition, ResponseWithPrior(1.0, prior).transition())
    assert ReleasedCorpus.open(corpus.folder).guarantee.epsilon == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"bits": 7}, "bits"),
        ({"label_mechanism": RandomizedResponse(1.0, 2)}, "3 labels"),
        ({"label_mechanism": FLIP, "publish_labels": False}, "label_mechanism"),
        ({"texts": texts(9, labelled=False), "label_mechanism": FLIP}, "labels to randomize"),
        ({"texts": texts(9).with_labels(np.full(9, 3))}, "a label outside"),
        ({"texts": texts(9).with_labels(np.full(9, -1))}, "a label outside"),
        ({"user": user(mechanism="classical-gaussian", epsilon=9.0)}, "no guarantee"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    asked = {"user": user(), "texts": texts(9), **settings}
    with pytest.raises(Exception, match=named) as refused:
        release_corpus(asked.pop("user"), asked.pop("texts"), tmp_path / "corpus", **asked)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


# --- what is drawn ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("noise", ["privunit", "matrix-gaussian"])
def test_the_mean_of_many_releases_is_the_bounded_hidden(tmp_path: Path, noise: str, bits: int) -> None:
    side = user("output", mechanism=noise)
    copies = same_text(1500)
    corpus = release_corpus(side, copies, tmp_path / "corpus", bits=bits)
    batch = copies.batch([0])
    batch.pop("labels")
    with torch.inference_mode():
        hidden = side.front(**batch)[0].double().numpy()
    bounded = hidden / np.linalg.norm(hidden)
    noisy = corpus.__getitems__(range(len(copies)))["hidden"].double().numpy()
    z = (noisy.mean(axis=0) - bounded) / (noisy.std(axis=0) / math.sqrt(len(copies)))
    assert np.sum(z**2) < 85, "chi-square with 32 degrees of freedom: beyond 85 in 1e-6"
    wrong = noisy.mean(axis=0) / (noisy.std(axis=0) / math.sqrt(len(copies)))
    assert np.sum(wrong**2) > 85, "a front that gave nothing would be seen"
    sigma = side.spec.mechanism().sigma
    assert np.median(noisy.std(axis=0)) == pytest.approx(sigma, rel=0.05)


@pytest.mark.slow
def test_randomized_labels_flip_as_often_as_they_should(tmp_path: Path) -> None:
    records = 3000
    corpus = release_corpus(
        user("output"), same_text(records, label=1), tmp_path / "corpus", label_mechanism=FLIP
    )
    assert corpus.labels is not None
    found = np.bincount(corpus.labels, minlength=3)

    def distance(mechanism: RandomizedResponse) -> float:
        expected = records * mechanism.transition()[1]
        return float(np.sum((found - expected) ** 2 / expected))

    assert distance(FLIP) < 28, "chi-square with 2 degrees of freedom: beyond 28 in 1e-6"
    assert distance(RandomizedResponse(1.3, 3)) > 28
    assert distance(RandomizedResponse(3.0, 3)) > 28


def test_pad_rows_and_lengths_do_not_show_in_the_shape(tmp_path: Path) -> None:
    corpus = release(tmp_path / "corpus")
    assert corpus[0]["hidden"].shape == (ROWS, 32)
    sizes = {path.stat().st_size for path in (tmp_path / "corpus").glob("shard-0000[01]*")}
    assert len(sizes) == 1


# --- folded records ------------------------------------------------------------------------------------


def test_a_folded_corpus_promises_text_and_label_together_and_stores_no_label(tmp_path: Path) -> None:
    corpus = release_corpus(folding_user(), texts(RECORDS), tmp_path / "out", shard_records=SHARD)
    assert corpus.spec.labels == "folded"
    assert corpus.labels is None
    assert corpus.release.shape == (1, 3 * (4 + 1))
    assert corpus.guarantee.notion is Notion.RECORD_LDP
    assert corpus.guarantee.epsilon == pytest.approx(4.0)
    assert "text and label together" in corpus.guarantee.statement
    assert spent(tmp_path / "out") == pytest.approx(4.0)
    names = {name for number in range(3) for name in _tensors_of(tmp_path / "out" / shard_name(number))}
    assert names == {"values", "records"}


def _tensors_of(path: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return set(file.keys())


@pytest.mark.slow
def test_the_mean_of_folded_releases_says_the_label_and_the_direction(tmp_path: Path) -> None:
    """And one that folded another label would say something else."""
    many, code = same_text(6000, label=2), FoldedCode(3, 4)
    corpus = release_corpus(folding_user(), many, tmp_path / "out")
    mean = np.mean(
        [corpus.__getitems__(range(at, at + 1000))["hidden"].numpy() for at in range(0, 6000, 1000)], 1
    )
    found, limit = mean.mean(axis=0)[0], 5 * corpus.release.mechanism().sigma / math.sqrt(6000)
    with torch.no_grad():
        batch = many.batch(range(1))
        labels = batch.pop("labels").numpy()
        direction = folded_front().eval()(**batch)[:, 0].numpy()
    right = code.fold(direction, labels)[0]
    assert np.abs(found - right).max() < limit
    assert np.abs(found - code.fold(direction, (labels + 1) % 3)[0]).max() > limit


@pytest.mark.parametrize(
    "settings",
    [{"label_mechanism": FLIP}, {"publish_labels": False}, {"texts": texts(RECORDS, labelled=False)}],
)
def test_a_folding_front_has_one_way_for_labels(tmp_path: Path, settings: dict[str, Any]) -> None:
    records = settings.pop("texts", texts(RECORDS))
    with pytest.raises(InvalidInput, match="folded into the release"):
        release_corpus(folding_user(), records, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_promise_for_records_needs_the_label_in_the_release(tmp_path: Path) -> None:
    """A corpus that says it protects records, and stores labels beside them, cannot be described."""
    spec = release(tmp_path / "out").spec
    with pytest.raises(InvalidInput, match="folded"):
        replace(spec, labels="folded")
    folding = folding_user().spec
    with pytest.raises(InvalidInput, match="folded"):
        replace(spec, release=folding)
    with pytest.raises(InvalidInput, match="unit"):
        user("encoder.1", unit="record")


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_killed_folded_release_goes_on_and_draws_no_record_again(tmp_path: Path, at: int) -> None:
    out = tmp_path / "out"
    if os.fork() == 0:
        corpus_spec._PIECE_RECORDS = PIECE
        DrawLog.add = dying(DrawLog.add, at=at, after=True)  # type: ignore[method-assign]
        release_corpus(folding_user(), texts(RECORDS), out, shard_records=SHARD)
        os._exit(9)
    assert os.wait()[1] == signal.SIGKILL
    with DrawLog(private_folder(out) / "draws") as log:
        before, _ = log.draws()
        kept = log.next_record - sum(shard.records for shard in log.shards)
    corpus = release_corpus(folding_user(), texts(RECORDS), out, shard_records=SHARD, resume=True)
    values, first = in_order(corpus), SHARD * (0 if not kept else (at * PIECE - kept) // SHARD)
    assert values[first : first + kept].tobytes() == before
    assert spent(out) == pytest.approx(4.0)


def wait_to_be_killed(done: int) -> None:
    if done >= SHARD + PIECE:
        print("waits", flush=True)
        time.sleep(120)


if __name__ == "__main__":  # the process that is killed from outside
    corpus_spec._PIECE_RECORDS = PIECE
    release(Path(sys.argv[1]), progress=wait_to_be_killed)


def test_shards_of_no_records_are_refused_and_not_the_default(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="shard_records"):
        release(tmp_path / "out", shard_records=0)
    assert not list(tmp_path.rglob("*.ledger"))
