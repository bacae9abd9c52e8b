r"""Public statistics of a front at `output`: the mean and the leading directions of its rows on public text.

They are made from public, unlabelled text of any kind, and decide the projection in which records are
released: few directions carry most of what a front says, and noise is added to those alone.

The covariance is kept as its leading directions and one variance for all others,
``U diag(v) U^T + rho (I - U U^T)``: a few dozen kilobytes. Statistics belong to the weights of one encoder,
known by their digest, to one pooling and to one prompt. Those of `minilm`, and of `smollm2` with the prompt
for reviews, are part of the package; benchmarks/front_statistics.py and benchmarks/decoder.py made them.

Guarantees:
    What `find_shipped` gives was made with exactly these weights and this pooling; anything else is None.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn import functional

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.split.halves import Front
from dp_forward.storage.files import draft_of

__all__ = [
    "NO_TEXT",
    "FrontStatistics",
    "fixed_statistics",
    "require_enough_texts",
    "rows_of",
    "statistics_of_rows",
]

MOST_DIRECTIONS: Final = 160
"""That are kept; beyond them a projection gains little."""
NO_TEXT: Final = "no text: random directions"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FrontStatistics:
    """Mean [d], orthonormal directions [r, d] by falling variance [r], and the variance of every other one.

    Of rows at norm 1. ``encoder`` is the digest of the weights, ``source`` says from which text.
    """

    encoder: str
    pooling: str | None
    source: str
    texts: int
    mean: Floats
    directions: Floats
    variances: Floats
    remainder: float

    @property
    def covariance(self) -> Floats:
        """The covariance [d, d] that these say."""
        inside = self.directions.T @ (self.directions * (self.variances - self.remainder)[:, None])
        return np.asarray(inside + self.remainder * np.eye(len(self.mean)))

    def save(self, path: Path) -> None:
        """Write one safetensors file; each direction as 8-bit numbers, which is near enough."""
        peaks = np.abs(self.directions).max(axis=1, keepdims=True)
        tensors: dict[str, NDArray[Any]] = {
            "mean": self.mean.astype(np.float32),
            # The format stores memory as it lies, and an array may lie otherwise than it reads.
            "directions": np.rint(self.directions / peaks * 127).astype(np.int8, order="C"),
            "variances": self.variances.astype(np.float32),
            "remainder": np.array([self.remainder], dtype=np.float32),
        }
        about = {"encoder": self.encoder, "pooling": self.pooling or "", "source": self.source}
        with draft_of(path) as draft:
            save_file(tensors, draft, metadata={**about, "texts": str(self.texts)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; the directions are made orthonormal again."""
        try:
            with safe_open(path, framework="numpy") as file:
                about: dict[str, str] = file.metadata() or {}
                parts = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}  # noqa: SIM118
            directions = np.linalg.qr(parts["directions"].T)[0].T
            signs = np.sign(np.sum(directions * parts["directions"], axis=1, keepdims=True))
            return cls(
                encoder=about["encoder"],
                pooling=about["pooling"] or None,
                source=about["source"],
                texts=int(about["texts"]),
                mean=parts["mean"],
                directions=directions * signs,
                variances=parts["variances"],
                remainder=float(parts["remainder"][0]),
            )
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            found = type(error).__name__
            raise InvalidInput("statistics", "be a file of statistics", found, "Make it again.") from None

    def __repr__(self) -> str:
        return f"FrontStatistics({len(self.variances)} directions of {len(self.mean)}, from {self.source})"


def require_enough_texts(count: int, front: Front) -> None:
    """Refuse fewer public texts than the statistics of a front need."""
    rule = f"hold {2 * front.width} texts or more"
    refuse_if(count < 2 * front.width, "public", rule, count, "Any public text will do: name more of it.")


def statistics_of_rows(rows: Iterator[Tensor], front: Front, *, source: str) -> FrontStatistics:
    """The statistics of a front from batches of its rows [batch, 1, d]; only sums are held in memory."""
    count, total = 0, np.zeros(front.width)
    square = np.zeros((front.width, front.width))
    for batch in rows:
        unit = functional.normalize(batch[:, 0].double(), dim=-1).cpu().numpy()
        count, total, square = count + len(unit), total + unit.sum(axis=0), square + unit.T @ unit
    require_enough_texts(count, front)
    mean = total / count
    covariance = square / count - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    kept = min(MOST_DIRECTIONS, front.width - 1)
    variances, directions = values[::-1][:kept], vectors[:, ::-1][:, :kept].T
    # The sign of an eigenvector is arbitrary: fix it, so that the same text gives the same statistics.
    peaks = directions[np.arange(kept), np.argmax(np.abs(directions), axis=1)]
    rest = max(0.0, float(values[: front.width - kept].mean()))
    return FrontStatistics(
        encoder=encoder_digest(front),
        pooling=front.pooling,
        source=source,
        texts=count,
        mean=mean,
        directions=directions * np.sign(peaks)[:, None],
        variances=np.maximum(variances, rest),
        remainder=rest,
    )


def fixed_statistics(front: Front) -> FrontStatistics:
    """The statistics where no public text is given: those that come with the package, or random ones."""
    return find_shipped(front) or random_statistics(front)


def random_statistics(front: Front) -> FrontStatistics:
    """What stands in where there is no public text: random directions around zero, all alike."""
    kept = min(MOST_DIRECTIONS, front.width - 1)
    return FrontStatistics(
        encoder=encoder_digest(front),
        pooling=front.pooling,
        source=NO_TEXT,
        texts=0,
        mean=np.zeros(front.width),
        directions=np.linalg.qr(np.random.default_rng(0).standard_normal((front.width, kept)))[0].T,
        variances=np.full(kept, 1 / front.width),
        remainder=1 / front.width,
    )


def find_shipped(front: Front) -> FrontStatistics | None:
    """The statistics of this encoder, pooling and prompt that come with the package, if there are any."""
    digest = encoder_digest(front)
    with resources.as_file(resources.files("dp_forward.split") / "statistics") as folder:
        every = [FrontStatistics.load(path) for path in sorted(folder.glob("*.safetensors"))]
    return next((one for one in every if (one.encoder, one.pooling) == (digest, front.pooling)), None)


def encoder_digest(front: Front) -> str:
    """SHA-256 over names and float32 values of the weights that make a front's rows, and over its prompt."""
    digest = hashlib.sha256()
    state: dict[str, Any] = front.model.state_dict()
    for name in sorted(state):
        if state[name].is_floating_point():
            digest.update(name.encode())
            digest.update(state[name].detach().float().cpu().contiguous().numpy().tobytes())
    if front.prompt is not None:
        digest.update(f"prompt:{front.prompt}".encode())
    return digest.hexdigest()


@torch.inference_mode()
def rows_of(front: Front, batches: Iterator[dict[str, Tensor]], device: torch.device) -> Iterator[Tensor]:
    """The rows of a front on a device, batch by batch."""
    front.to(device).train(False)
    for batch in batches:
        yield front(**{name: value.to(device) for name, value in batch.items() if name != "labels"})
