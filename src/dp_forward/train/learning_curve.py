"""Figures: the learning curve of a run, and accuracies side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dp_forward.storage.files import draft_of

__all__ = ["draw_accuracies", "draw_curve"]


def draw_curve(stages: Mapping[str, Mapping[str, Any]], path: Path, *, title: str) -> bool:
    """Loss (left) and evaluation accuracy (right) over the steps of every stage; False without matplotlib."""
    figure = _figure(8, 3)
    if figure is None:
        return False
    left, right = figure.subplots(1, 2)
    for name, stage in stages.items():
        history = stage["history"]
        loss = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
        accuracy = [(entry["step"], entry["accuracy"]) for entry in history if "accuracy" in entry]
        if loss:
            left.plot(*zip(*loss, strict=True), label=name)
        if accuracy:
            right.plot(*zip(*accuracy, strict=True), marker="o", label=name)
    left.set(xlabel="step", ylabel="training loss", title=title)
    right.set(xlabel="step", ylabel="accuracy, one draw of the noise", title="held-out texts")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if len(stages) > 1:
            axes.legend()
    _save(figure, path)
    return True


def draw_accuracies(
    bars: Sequence[tuple[str, float, float, float]], path: Path, *, title: str, chance: float
) -> bool:
    """(name, accuracy, low, high) as bars with intervals; False without matplotlib."""
    figure = _figure(6, 3.2)
    if figure is None:
        return False
    axes = figure.subplots()
    names = [name for name, *_ in bars]
    heights = [accuracy for _, accuracy, *_ in bars]
    below = [accuracy - low for _, accuracy, low, _ in bars]
    above = [high - accuracy for _, accuracy, _, high in bars]
    drawn = axes.bar(names, heights, yerr=[below, above], capsize=4, color=["#999999", "#c46a4a", "#3b7ea1"])
    axes.bar_label(drawn, labels=[f"{height:.3f}" for height in heights], label_type="center", color="white")
    axes.axhline(chance, color="black", linewidth=0.8, linestyle=":", label="a guess")
    axes.set(ylim=(0, 1), ylabel="accuracy on held-out texts", title=title)
    axes.legend(loc="upper right")
    _save(figure, path)
    return True


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> None:
    with draft_of(path) as draft:
        figure.savefig(draft, dpi=110, format="png")
