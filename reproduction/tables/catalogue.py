"""All tables, by name: `tables(setup)`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from reproduction.model_setup import ModelSetup
from reproduction.tables.attacks import attacks, tokens
from reproduction.tables.efficiency import efficiency
from reproduction.tables.noise import columns, mechanisms, rows, sublayers
from reproduction.tables.proved_training import proved_training
from reproduction.tables.table import Table
from reproduction.tables.training import clean_queries, noisy_queries, positions, pretraining

__all__ = ["tables"]

_MAKERS = (
    rows,
    columns,
    sublayers,
    mechanisms,
    positions,
    proved_training,
    noisy_queries,
    clean_queries,
    pretraining,
    efficiency,
    attacks,
    tokens,
)


def tables(setup: ModelSetup | None = None) -> Mapping[str, Table]:
    """Every table for a model, in the order of the paper."""
    return _made(setup or ModelSetup())


@lru_cache(maxsize=4)
def _made(setup: ModelSetup) -> Mapping[str, Table]:
    """Made once for a model: the digests of several hundred jobs take a second."""
    found = [make(setup) for make in _MAKERS]
    return MappingProxyType({table.name: table for table in found})
