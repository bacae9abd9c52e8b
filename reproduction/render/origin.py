"""Where the numbers of a table come from: steps, time, commits, hardware and versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from reproduction.jobs import in_order
from reproduction.tables.table import Table

__all__ = ["origin"]

_VERSIONS: Final = {
    "dp_forward": "dp-forward",
    "python": "Python",
    "torch": "torch",
    "transformers": "transformers",
}


def origin(table: Table, lines: Mapping[str, Mapping[str, Any]], results: str) -> str:
    """The section, from the lines of the table's steps and of those they build on; empty without any."""
    steps = in_order(table.steps())
    mine = [lines[step.digest] for step in steps if step.digest in lines]
    if not mine:
        return ""
    told = [line.get("provenance") or {} for line in mine]
    seconds = sum(float(line.get("seconds") or 0.0) for line in mine)
    hardware = Counter(str(entry.get("hardware") or "unknown") for entry in told)
    facts = {
        "steps": f"{len(mine)} of {len(steps)} (with those that they build on)",
        "time": f"{seconds:,.0f} s, summed over the steps",
        "hardware": ", ".join(
            f"{name} ({count} {'step' if count == 1 else 'steps'})"
            for name, count in sorted(hardware.items())
        ),
        "commits": ", ".join(f"`{name}`" for name in _distinct(told, "commit")),
        "versions": "; ".join(f"{name} {', '.join(_distinct(told, key))}" for key, name in _VERSIONS.items()),
    }
    taken = sorted({str(line["taken_from"]) for line in mine if line.get("taken_from")})
    if taken:
        del facts["time"]
        named = ", ".join(f"`{name}`" for name in taken)
        facts["taken over"] = f"from an earlier benchmark with these settings, not by this command: {named}"
    weights = sorted({str(entry["weights"]) for entry in told if entry.get("weights")})
    if weights:
        facts["weights"] = ", ".join(f"`{name}`" for name in weights)
    listed = "\n".join(f"* {name}: {fact}" for name, fact in facts.items())
    return (
        f"## Where the numbers come from\n\n{listed}\n\nEvery step with its plan and its promise: "
        f"[{results}](../../{results})."
    )


def _distinct(told: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    return sorted({str(entry.get(key) or "unknown") for entry in told})
