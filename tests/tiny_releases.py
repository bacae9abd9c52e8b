"""A provider's starting point and releases for it: a front that tells, a back that knows nothing."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dp_forward.corpus import reader as shards
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.shuffle_guarantee import ShuffledBatch
from dp_forward.corpus.writer import release_corpus
from dp_forward.data import read_texts
from dp_forward.data.tasks import find_task
from dp_forward.privacy import RandomizedResponse
from dp_forward.split import Split, split_model
from dp_forward.split.artifacts import load_user_side, save_sides
from dp_forward.split.pretrained import load_model
from dp_forward.train.finetune import finetune
from dp_forward.train.plan import ReleasesPlan
from tiny_task import TinyWorld

RECORDS = 256
PACE: dict[str, Any] = {"epochs": 4.0, "batch": 16, "learning_rate": 5e-3, "held_out": 0.3}


@dataclass(frozen=True)
class TinyReleases:
    """Where they lie."""

    start: Path
    """front/ and back/ as handed over; the back is new."""
    public: Path
    """Releases with their labels as they are."""
    randomized: Path
    """Releases whose labels were randomized at epsilon 2."""
    world: TinyWorld

    def plan(self, releases: Path | None = None, **settings: Any) -> ReleasesPlan:
        """A plan that takes a second."""
        given = {"releases": str(releases or self.public), "model": str(self.start), **PACE, **settings}
        return ReleasesPlan.from_dict(given)

    def release(
        self, out: Path, *, shuffle_labels: bool = False, limit: int | None = None, **how: Any
    ) -> Path:
        """Release the training texts once more; as another owner, for the front has seen them raw."""
        how = {"register": out.with_name(f"{out.name}.register"), **how}
        user = load_user_side(self.start / "front")
        texts = read_texts(find_task("sst2"), "train", user.tokens, source=str(self.world.task), limit=limit)
        if shuffle_labels:
            texts = texts.with_labels(np.random.default_rng(5).permutation(texts.labels))
        release_corpus(user, texts, out, **how)
        return out

    @classmethod
    @cache
    def shared(cls) -> TinyReleases:
        """One for all tests of a session: it takes seconds, and nothing changes it."""
        folder = tempfile.TemporaryDirectory(prefix="tiny-releases-")
        atexit.register(folder.cleanup)
        return cls.under(Path(folder.name))

    @classmethod
    def under(cls, root: Path) -> TinyReleases:
        """Train a front end to end, put an untrained back beside it, and release."""
        world = TinyWorld.under(root / "world")
        run = finetune(world.plan(regime="end-to-end", warm_up_epochs=2, draws=4, epochs=2.0))
        torch.manual_seed(3)
        fresh = split_model(load_model(str(world.model), labels=2), str(run.pair.cut), width=4)
        save_sides(Split(run.pair.front, fresh.back), run.spec, run.tokens.tokenizer, root / "start")
        made = cls(root / "start", root / "public", root / "randomized", world)
        made.release(made.public)
        made.release(made.randomized, label_mechanism=RandomizedResponse(2.0, 2))
        return made


def in_batches(corpus: Path, out: Path, *, batches: int = 2) -> Path:
    """The same corpus as if its records had come through a shuffler."""
    shutil.copytree(corpus, out)
    found = ReleasedCorpus.open(corpus)
    parts = np.array_split(np.arange(len(found)), batches)
    public = found.spec.labels == "public"
    listed = [
        ShuffledBatch(
            len(part), tuple(np.bincount(found.labels[part], minlength=2).tolist()) if public else None
        )
        for part in parts
    ]
    manifest = json.loads((out / "manifest.json").read_bytes())
    manifest["shuffled"] = [batch.as_dict() for batch in listed]
    manifest["sha256"] = shards._digest(manifest)
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out
