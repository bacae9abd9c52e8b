"""All tables, by name: `tables(subject)`."""

from __future__ import annotations

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


def tables(setup: ModelSetup | None = None) -> dict[str, Table]:
    """Every table for a model, in the order of the paper."""
    made = [make(setup or ModelSetup()) for make in _MAKERS]
    return {table.name: table for table in made}
