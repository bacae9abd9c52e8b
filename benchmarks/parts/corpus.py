"""The release of a corpus: time must grow as the corpus, memory must not."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.board import Board, Part, at_most
from benchmarks.goals import say
from benchmarks.timing import Peak, in_fresh_process, slope

ROWS, WIDTH = 32, 128
SHARD = 1024
"""Records of a shard and of a piece: one of each is held in memory, and the smallest corpus has two."""
LIMITS = {
    "time_slope": at_most(1.4, "linear is 1; writing everything again for every shard would be 2"),
    "memory_held": at_most(
        0.5,
        "bytes of memory for each byte that a larger corpus adds to the release; all in memory would be 1",
    ),
}


def run(board: Board) -> None:
    """One process for each size, so that none inherits the memory of another."""
    sizes = (2048, 4096) if board.smoke else (2048, 4096, 8192, 16_384)
    times, cpu_times, peaks = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        front = make_front(Path(folder) / "user")
        for records in sizes:
            say(f"corpus: {records} records ...")
            out = Path(folder) / f"released-{records}"
            taken, cpu, peak = in_fresh_process(release_one, str(front), records, str(out))
            times.append((float(records), taken))
            cpu_times.append((float(records), cpu))
            peaks.append((float(records), peak))
    added = (peaks[-1][1] - peaks[0][1]) * 2**20 / ((sizes[-1] - sizes[0]) * ROWS * WIDTH)
    board.put("records_per_second", sizes[-1] / times[-1][1])
    board.put("peak_of_the_largest", peaks[-1][1], "MiB")
    board.put("time_slope", slope(cpu_times))
    board.put("memory_held", max(0.0, added))
    board.lines("a corpus: time", "records", "s", {"clock": times, "CPU": cpu_times})
    all_of_it = [(float(records), records * ROWS * WIDTH / 2**20) for records in sizes]
    board.lines("a corpus: memory", "records", "MiB", {"peak": peaks, "the release": all_of_it})


def make_front(folder: Path) -> Path:
    """A random BERT of two narrow blocks, cut after the first, with the tokenizer of MiniLM."""
    import torch
    import transformers

    from dp_forward.privacy import NoiseSpec
    from dp_forward.release_spec import ReleaseSpec
    from dp_forward.split import split_model
    from dp_forward.split.artifacts import save_sides
    from dp_forward.split.pretrained import model_folder

    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(num_labels=2, intermediate_size=4 * WIDTH, **shape)
    )
    pair = split_model(model, "encoder.1")
    spec = ReleaseSpec.of(
        pair.front,
        noise=NoiseSpec(mechanism="privunit", epsilon=8.0),
        rows=ROWS,
        labels=("negative", "positive"),
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder("minilm"))
    save_sides(pair, spec, tokenizer, folder)
    return folder / "front"


def release_one(front: str, records: int, out: str) -> tuple[float, float, float]:
    """Seconds, CPU seconds, and MiB beyond the front and the texts; for a process of its own."""
    from dp_forward.corpus.writer import release_corpus
    from dp_forward.data import EncodedTexts, Record
    from dp_forward.split.artifacts import load_user_side

    user = load_user_side(front)
    words = np.array(["a", "quiet", "generous", "film", "that", "never", "quite", "finds", "its", "story"])
    chosen = np.random.default_rng(0).integers(len(words), size=(records, 12))
    texts = EncodedTexts.from_records((Record(" ".join(words[row])) for row in chosen), user.tokens)
    small = EncodedTexts.from_records([Record("a quiet film")] * 64, user.tokens)
    own = {"shard_records": SHARD, "register": Path(out + ".register")}
    release_corpus(user, small, out + "-first", **own)
    peak = Peak()
    began, worked = time.perf_counter(), time.process_time()
    release_corpus(user, texts, out, **own)
    return time.perf_counter() - began, time.process_time() - worked, peak.mib()


PART = Part("corpus", "How do time and memory of a corpus release grow with the corpus?", LIMITS, run)
