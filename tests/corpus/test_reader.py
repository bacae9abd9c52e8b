"""A stored corpus is what was released, or it is refused; and a back trains from it."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from torch.utils.data import DataLoader

from corpus.release_cases import ROWS, texts, user
from dp_forward.corpus import reader as shards
from dp_forward.corpus.reader import MANIFEST, ReleasedCorpus, shard_bytes, shard_name
from dp_forward.corpus.shuffle_guarantee import ShuffledBatch
from dp_forward.corpus.writer import release_corpus
from dp_forward.data import collate
from dp_forward.errors import InvalidInput
from dp_forward.noise.released.released_matrix import dequantise
from dp_forward.split import split_model
from tiny_models import tiny

RECORDS, SHARD = 50, 16


def made(out: Path, bits: int = 8) -> ReleasedCorpus:
    return release_corpus(user(), texts(RECORDS), out, bits=bits, shard_records=SHARD)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> ReleasedCorpus:
    return made(tmp_path_factory.mktemp("shards") / "corpus")


@pytest.fixture
def folder(stored: ReleasedCorpus, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored.folder, tmp_path / "corpus"))


def test_a_corpus_knows_itself(stored: ReleasedCorpus) -> None:
    assert (len(stored), stored.front_digest) == (RECORDS, "aa" * 32)
    assert stored.bytes == sum(path.stat().st_size for path in stored.folder.glob("shard-*"))
    assert stored.release.labels == ("a", "b", "c")
    assert "LDP per text" in repr(stored)
    manifest = json.loads((stored.folder / MANIFEST).read_text())
    assert manifest["guarantee"] == stored.guarantee.as_dict()
    assert "the front does not depend on the released texts" in stored.guarantee.assumptions


def test_what_a_corpus_promises_cannot_be_replaced(stored: ReleasedCorpus) -> None:
    shown, other = repr(stored), user(epsilon=0.5).spec
    weaker = replace(stored.spec, release=other)
    for owner, name, value in (
        (stored, "guarantee", weaker.guarantee()),
        (stored, "spec", weaker),
        (stored, "shuffled", (ShuffledBatch(RECORDS),)),
        (stored, "release", other),
        (stored.spec, "release", other),
        (stored.guarantee, "mechanism", other.mechanism()),
        (ShuffledBatch(7), "records", 7000),
    ):
        with pytest.raises(AttributeError):
            setattr(owner, name, value)
    assert repr(stored) == shown
    assert pickle.loads(pickle.dumps(stored)).guarantee.epsilon == stored.guarantee.epsilon


@pytest.mark.parametrize("bits", [8, 16])
def test_items_are_the_stored_integers_scaled(tmp_path: Path, bits: int) -> None:
    stored = made(tmp_path / "corpus", bits)
    form = stored.spec
    assert form.release.integers == {8: np.int8, 16: np.int16}[bits]
    shards = [load_file(stored.folder / shard_name(number)) for number in range(4)]
    values = np.concatenate([shard["values"] for shard in shards])
    assert values.dtype == form.release.integers
    assert np.array_equal(np.concatenate([shard["records"] for shard in shards]), np.arange(RECORDS))
    order = np.random.default_rng(0).permutation(RECORDS)
    batch = stored.__getitems__(order.tolist())
    floats = dequantise(values[order], form.release.mechanism(), form.release.bits)
    assert batch["hidden"].dtype == torch.float32
    assert np.array_equal(batch["hidden"].numpy(), floats)
    assert np.array_equal(batch["labels"].numpy(), texts(RECORDS).labels[order])
    raw = ReleasedCorpus.open(stored.folder, raw=True)
    scaled = raw.__getitems__(order.tolist())["values"].float() * raw.scale
    assert torch.equal(scaled, batch["hidden"])
    assert torch.equal(stored[-1]["hidden"], stored[RECORDS - 1]["hidden"])
    with pytest.raises(IndexError):
        stored[RECORDS]


def test_a_loader_gets_ready_batches_in_workers_too(stored: ReleasedCorpus) -> None:
    stored[0]  # the maps are open here, and opened anew in a worker
    assert len(pickle.dumps(stored)) < 20_000, "a worker is sent the names of the files and not their numbers"
    loader = DataLoader(stored, batch_size=7, collate_fn=collate, num_workers=1)
    batches = list(loader)
    assert torch.equal(
        torch.cat([batch["hidden"] for batch in batches]), stored.__getitems__(range(50))["hidden"]
    )


# --- what is refused ----------------------------------------------------------------------------------------


def refused(folder: Path, named: str, **how: bool) -> None:
    with pytest.raises(InvalidInput, match=named) as error:
        ReleasedCorpus.open(folder, **how)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("verify", [True, False])
def test_a_truncated_shard_is_named(folder: Path, verify: bool) -> None:
    path = folder / shard_name(2)
    path.write_bytes(path.read_bytes()[:-1])
    refused(folder, "shard-00002", verify=verify)


def test_one_flipped_bit_is_seen(folder: Path) -> None:
    path = folder / shard_name(1)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    refused(folder, "shard-00001.*digest")
    ReleasedCorpus.open(folder, verify=False)  # the control: it is the digest that sees it


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / shard_name(3)).unlink()
    refused(folder, "shard-00003")


@pytest.mark.parametrize("verify", [True, False])
def test_swapped_shards_are_seen(folder: Path, verify: bool) -> None:
    first, second = folder / shard_name(0), folder / shard_name(1)
    first.rename(folder / "aside")
    second.rename(first)
    (folder / "aside").rename(second)
    refused(folder, "shard-00000", verify=verify)


def test_a_shard_of_another_release_is_seen(folder: Path, tmp_path: Path) -> None:
    made(tmp_path / "other")
    shutil.copy(tmp_path / "other" / shard_name(0), folder / shard_name(0))
    refused(folder, "shard-00000.*digest")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m["form"].update(front="bb"), "digest"),
        (lambda m: m["form"]["release"]["noise"].update(epsilon=1.0), "digest"),
        (lambda m: m["shards"].pop(), "digest"),
        (lambda m: m.pop("corpus"), "format"),
        (lambda m: m.update(format=3), "format"),
        (lambda m: m.pop("shuffled"), "format"),
    ],
)
def test_a_changed_manifest_is_refused(folder: Path, change, named: str) -> None:
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    refused(folder, f"manifest.*{named}")


def rewritten(folder: Path, **changes) -> None:
    """A manifest that matches its own digest."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text()) | changes
    manifest["sha256"] = shards._digest(manifest)
    path.write_text(json.dumps(manifest))


def counted(stored: ReleasedCorpus) -> list[dict]:
    """The corpus as two batches."""
    labels = stored.labels.tolist()
    halves = [labels[:20], labels[20:]]
    return [{"records": len(half), "by_label": [half.count(i) for i in range(3)]} for half in halves]


def test_a_corpus_says_in_which_batches_it_was_shuffled(stored: ReleasedCorpus, folder: Path) -> None:
    assert stored.shuffled is None
    batches = counted(stored)
    rewritten(folder, shuffled=batches)
    found = ReleasedCorpus.open(folder).shuffled
    assert found is not None
    assert [batch.as_dict() for batch in found] == batches
    assert pickle.loads(pickle.dumps(ReleasedCorpus.open(folder))).shuffled == found


def test_a_corpus_of_another_format_is_refused(folder: Path) -> None:
    rewritten(folder, format=1)
    refused(folder, "manifest.*format")


@pytest.mark.parametrize(
    "change",
    [
        lambda batches: batches.pop(),
        lambda batches: batches.clear(),
        lambda batches: batches[0].update(by_label=None),
        lambda batches: batches[0].update(by_label=[20, 0]),
        lambda batches: batches[0].update(by_label=[20, 0, 0]),
        lambda batches: batches[0].update(records=21),
        lambda batches: batches[0].update(more=1),
        lambda batches: batches.append(3),
    ],
)
def test_batches_that_are_not_the_corpus_are_refused(stored: ReleasedCorpus, folder: Path, change) -> None:
    batches = counted(stored)
    change(batches)
    rewritten(folder, shuffled=batches)
    with pytest.raises(InvalidInput):
        ReleasedCorpus.open(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": 1}'])
def test_an_unreadable_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    refused(folder, "manifest")


def test_a_shard_with_other_tensors_is_refused_even_if_nobody_looks_at_digests(folder: Path) -> None:
    path = folder / shard_name(0)
    shard = load_file(path)
    size = path.stat().st_size
    shard["values"] = shard["values"].reshape(SHARD, -1, ROWS)
    save_file(shard, path, metadata={"shard": json.loads((folder / MANIFEST).read_text())["name"] + "/0"})
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    refused(folder, "shard-00000", verify=False)


def test_an_error_or_repr_never_holds_a_value(stored: ReleasedCorpus, folder: Path) -> None:
    shown = repr(stored) + repr(stored.spec.guarantee())
    assert str(stored.__getitems__([0])["hidden"].flatten()[0].item()) not in shown


# --- training -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_back_trains_from_the_shards_with_the_hugging_face_trainer(tmp_path: Path) -> None:
    # Weak noise: what is tested is the way of the data, and a hundred steps must show it.
    corpus = release_corpus(user(epsilon=300.0), texts(400), tmp_path / "corpus", bits=16, shard_records=128)
    back = split_model(tiny("bert", blocks=2), "encoder.1").back
    before = _loss(back, corpus)
    transformers.set_seed(0)
    trainer = transformers.Trainer(
        model=back,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "run"),
            num_train_epochs=8,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            remove_unused_columns=False,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
        ),
        train_dataset=corpus,
        data_collator=collate,
    )
    trainer.train()
    assert _loss(back, corpus) < 0.7 * before
    scrambled = torch.from_numpy(np.random.default_rng(0).permutation(corpus.labels))
    assert _loss(back, corpus, scrambled) > 0.9 * before, "with wrong labels it does not fit"


def _loss(back: torch.nn.Module, corpus: ReleasedCorpus, labels: torch.Tensor | None = None) -> float:
    batch = corpus.__getitems__(range(len(corpus)))
    back.train(False)
    with torch.no_grad():
        return float(back(**(batch if labels is None else {**batch, "labels": labels})).loss)


@pytest.mark.slow
def test_fetching_a_batch_takes_a_small_part_of_a_step_of_the_back(tmp_path: Path) -> None:
    corpus = release_corpus(user(), texts(256), tmp_path / "corpus", shard_records=64)
    back = split_model(tiny("bert", blocks=2), "encoder.1").back
    order = np.random.default_rng(0).permutation(256)[:64].tolist()

    def step() -> None:
        back(**batch).loss.backward()

    batch = corpus.__getitems__(order)
    seconds = {"fetch": _best(lambda: corpus.__getitems__(order)), "step": _best(step)}
    assert seconds["fetch"] < 0.5 * seconds["step"], seconds


def _best(call) -> float:
    times = []
    for _ in range(9):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def test_the_bytes_of_a_shard_are_a_function_of_its_draws(stored: ReleasedCorpus) -> None:
    shard = load_file(stored.folder / shard_name(0))
    draws = shard["values"].tobytes(), shard["labels"].tobytes()
    made = shard_bytes(stored.spec, *draws, name=stored.name, number=0)
    assert made == (stored.folder / shard_name(0)).read_bytes()
