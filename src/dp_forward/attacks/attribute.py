"""Attribute inference: a genre, an author or a place of a text, learned from releases and guessed.

The attacker has the front, which is public, and texts of its own whose attribute it knows. It trains a
network of three linear layers with ReLU on what crosses for those texts, and applies it to what crosses for
others.

* *Undefended*: on the hidden matrices as they are.
* *Defended*: on noisy matrices. The attacker draws fresh (simulated) noise for its own texts in every epoch,
  as anybody with the front can, which is stronger than one release for each. What it is judged on are real
  releases, one for each text.

How a matrix becomes the vector that the first layer reads (``pool``): "flatten" takes all rows * width
numbers; "mean" takes the mean row. Flattened matrices of many rows have more numbers than the attacker has
texts, and the network learns its own texts by heart; so unless told, matrices of up to 4,096 numbers are
flattened and larger ones are averaged.

The network that is judged is that of the epoch with the best guesses on a tenth of the attacker's own texts.

Paper: Section 6.4 and Table 9. It does not say how a review got its genre; `keyword_genres` follows the code.
"""

import copy
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_forward.attacks.attack_result import AttackResult, require_texts
from dp_forward.attacks.ceiling import attribute_ceiling
from dp_forward.attacks.observations import each_batch, hidden_rows, kind_of_noise, observe_texts
from dp_forward.data import EncodedTexts, Record
from dp_forward.data.row_files import read_rows
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.noise import Sanitizer
from dp_forward.privacy import Mechanism
from dp_forward.privacy.checks import count
from dp_forward.progress import Count
from dp_forward.split.device import pick_device
from dp_forward.split.halves import AnyFront

__all__ = ["GENRES", "attribute_attack", "keyword_genres", "read_labelled"]

GENRES: Final = ("action", "comedy", "drama", "horror")
"""The four genres of Table 9; a label is a place in this tuple."""

Pool = Literal["flatten", "mean"]

_INNER = 256
_BATCH = 128


def keyword_genres(texts: Iterable[str]) -> Iterator[Record]:
    """Genres by keyword: the first of the four words that stands in a text. Texts without one are left out.

    As in the authors' code, a word may be part of a longer one ("actions", "melodrama") and is written small:
    so 16,214 of the 50,000 IMDb reviews have a label. Of several words that code takes the first of `GENRES`.
    """
    for text in texts:
        if found := re.search("|".join(GENRES), text):
            yield Record(text, None, GENRES.index(found.group()))


def read_labelled(
    path: str | os.PathLike[str], *, text: str = "text", attribute: str = "attribute"
) -> tuple[tuple[str, ...], list[Record]]:
    """The values of the column ``attribute``, and the texts of the column ``text``, of a file of rows.

    Edges:
        A row without an attribute is left out, one without a text is an error. Values are compared as words
        and numbered in alphabetical order.
    """
    rows: list[tuple[str, str]] = []
    for row in read_rows(Path(path)):
        for name in (text, attribute):
            rule = f"have a column `{name}`"
            refuse_if(name not in row.fields, "data", rule, f"none at {row.place}", "Name another column.")
        words, value = row.fields[text], row.fields[attribute]
        if value is None or not str(value).strip():
            continue
        if not isinstance(words, str) or not words.strip():
            raise InvalidInput("data", "have a text in every row", f"none at {row.place}", "Mend the row.")
        rows.append((words, str(value).strip()))
    values = tuple(sorted({value for _, value in rows}))
    rule = "have 2 to 1000 different values"
    refuse_if(not 2 <= len(values) <= 1000, "attribute", rule, len(values), "Name another column.")
    numbers = {value: number for number, value in enumerate(values)}
    return values, [Record(words, None, numbers[value]) for words, value in rows]


def attribute_attack(
    front: AnyFront,
    mechanism: Mechanism | None,
    train: EncodedTexts,
    test: EncodedTexts,
    *,
    epochs: int = 20,
    seed: int = 0,
    pool: Pool | None = None,
    device: torch.device | str | None = None,
    progress: Count | None = None,
) -> AttackResult:
    """Learn the labels of ``train`` from what crosses, and guess those of ``test`` in the same way.

    ``chance`` is the share of the most frequent label in ``test``; the ceiling is `attribute_ceiling` at it.
    The classifier reads the rows side by side or their mean (``pool``, by default by their size), and learns
    for ``epochs``. ``progress`` is called with the epochs so far, and with one more at the end.

    Edges:
        Twenty texts at least in each; a label in ``test`` that ``train`` does not have can never be guessed.
    """
    epochs = count("epochs", epochs, remedy="Use 20.")
    refuse_if(pool not in (None, "flatten", "mean"), "pool", "be flatten or mean", pool, "Leave it out.")
    known, wanted = _labels("train", train), _labels("test", test)
    place = pick_device(device)
    parts = [hidden_rows(front, batch, device=place) for batch, _ in each_batch(train, 64)]
    rows, width = parts[0].shape[1:]
    chosen: Pool = pool or ("flatten" if rows * width <= 4096 else "mean")
    # Where nothing is drawn, the vectors are all that is needed.
    inputs = torch.cat([pooled(part, chosen) for part in parts] if mechanism is None else parts)
    noise = None if mechanism is None else Sanitizer(mechanism, seed=seed)

    @torch.no_grad()
    def vectors(some: Tensor) -> Tensor:
        return inputs[some] if noise is None else pooled(noise(inputs[some]), chosen)

    labels = torch.from_numpy(np.array(known)).to(place)
    network, best_epoch = _learn(vectors, labels, epochs=epochs, seed=seed, progress=progress)
    seen = observe_texts(front, mechanism, test, device=place)
    with torch.no_grad():
        guessed = torch.cat([network(pooled(some[:, 0], chosen)).argmax(dim=1).cpu() for some in seen])
    if progress is not None:
        progress(epochs + 1)
    chance = float(np.bincount(wanted).max()) / len(wanted)
    right = guessed.numpy() == wanted
    ceiling = None if mechanism is None else attribute_ceiling(mechanism, chance)
    recalls = {str(value): float(right[wanted == value].mean()) for value in np.unique(wanted)}
    details: dict[str, Any] = {"values": int(known.max()) + 1, "recall_by_value": recalls}
    details |= {"texts_of_the_attacker": len(known), "pool": chosen, "epochs": epochs}
    details |= {"best_epoch": best_epoch, "noise": kind_of_noise(mechanism)}
    name, hits = "attribute", int(right.sum())
    return AttackResult.from_counts(name, hits, len(wanted), chance=chance, ceiling=ceiling, **details)


def pooled(matrices: Tensor, pool: Pool) -> Tensor:
    """[texts, numbers] from [texts, rows, width]."""
    return matrices.flatten(1) if pool == "flatten" else matrices.mean(dim=1)


def _learn(
    vectors: Callable[[Tensor], Tensor], labels: Tensor, *, epochs: int, seed: int, progress: Count | None
) -> tuple[nn.Module, int]:
    """Train three linear layers with ReLU on the ``vectors`` of texts: the network, and its best epoch."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=generator).to(labels.device)
    held_out = max(1, len(labels) // 10)
    held, own = shuffled[:held_out], shuffled[held_out:]
    standard = _Standard((vectors(some).double() for some in torch.split(own, _BATCH)), len(own))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second = nn.Linear(len(standard.mean), _INNER), nn.Linear(_INNER, _INNER)
        last = nn.Linear(_INNER, int(labels.max()) + 1)
        network = nn.Sequential(standard, first, nn.ReLU(), second, nn.ReLU(), last).to(labels.device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    best, best_epoch, kept = -1, 0, copy.deepcopy(network.state_dict())
    for epoch in range(epochs):
        order = own[torch.randperm(len(own), generator=generator).to(own.device)]
        for some in torch.split(order, _BATCH):
            loss = nn.functional.cross_entropy(network(vectors(some)), labels[some])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
        with torch.no_grad():
            named = torch.cat([network(vectors(some)).argmax(dim=1) for some in torch.split(held, _BATCH)])
        right = int((named == labels[held]).sum())
        if right > best:
            best, best_epoch, kept = right, epoch + 1, copy.deepcopy(network.state_dict())
        if progress is not None:
            progress(epoch + 1)
    network.load_state_dict(kept)
    return network, best_epoch


class _Standard(nn.Module):
    """Standardises vectors by the mean and deviation of so many given ones."""

    def __init__(self, batches: Iterable[Tensor], size: int) -> None:
        super().__init__()
        total, squares = torch.zeros(()), torch.zeros(())
        for some in batches:
            total, squares = total + some.sum(dim=0), squares + some.square().sum(dim=0)
        mean = total / size
        deviation = (squares / size - mean.square()).clamp_min(0).sqrt()
        # A number that never changes (a row that is always padding) tells nothing and must not blow up.
        self.scale = torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)).float()
        self.mean = mean.float()

    def forward(self, vectors: Tensor) -> Tensor:
        return (vectors - self.mean) / self.scale


def _labels(name: str, texts: EncodedTexts) -> NDArray[np.int64]:
    if texts.labels is None:
        raise InvalidInput(name, "have the attribute as labels", "none", "Label the texts.")
    require_texts(name, len(texts))
    refuse_if(int(texts.labels.min()) < 0, name, "have labels from 0 on", "others", "Number the values.")
    return texts.labels
