"""The paper's settings beside those of the rows that have its recipe: what is the same, and what is not."""

from __future__ import annotations

from reproduction.model_setup import ModelSetup
from reproduction.render.markdown import grid
from reproduction.tables.paper_recipe import PAPER
from reproduction.tables.paper_sensitivity import DELTA

__all__ = ["differences_section"]


def differences_section(setup: ModelSetup, title: str) -> str:
    """A table of settings: the paper's, and ours."""
    same = "the same"
    pace = f"{PAPER.epochs:g} epochs, batches of {PAPER.batch}, rate {PAPER.learning_rate:g}"
    training = f"{pace}, no decay of weights or rate"
    rows = {
        "model": ("BERT-base: 12 blocks, d = 768", f"{title}: {setup.blocks} blocks, d = {setup.columns}"),
        "positions": (
            "Encoder 1, 3, 5, 7, 9, 11 (Table 5; the text does not name those of Figures 2 and 3)",
            "the block of the same relative depth, rounded up",
        ),
        "training": (training, f"{same}, AdamW"),
        "norm and delta": (f"C = {PAPER.norm:g}, {DELTA:g}", same),
        "sensitivity": (
            "C in the experiments; in the text 2C for a matrix, C for a row",
            "both, in rows of their own",
        ),
        "rows of S = 2C": ("none", "ask the models of S = C, but for `mechanisms` on SST-2"),
        "texts of n rows": (
            f"n = {PAPER.rows}",
            f"{same}; DP-SGD on SST-2 72, where the longest text has 66 tokens",
        ),
        "mask": (
            "handed to the back (authors' code)",
            "never crosses, but in rows that say so; rows of padding are zero",
        ),
        "batches": ("at random, without replacement", "of texts of like length"),
        "precision": ("not said", "float32 at `output`, mixed inside"),
        "seeds, draws of a query": (
            "not said",
            "one seed; ten draws at `output` and on SST-2, else one",
        ),
        "IMDb and QQP in `positions`": (
            "central 1, 3 and 8",
            "models of central 1, asked through the noise of 3 and 8",
        ),
        "models in `columns`": (
            "one for each cell, as we read it",
            f"one for each d', trained through the noise of 8; of {setup.columns} columns also for 2 and 4",
        ),
        "MVG": (
            "the noise of Theorem 4",
            f"{same}, one model for each task; at token level less noise and 20,000 texts",
        ),
        "labels in `positions`": (
            "kept with probability 0.9; the loss is not said to know",
            f"{same}; the loss is corrected forward",
        ),
        "QQP": (
            "363,846 pairs, test 40,320",
            "a subset: 19,055 pairs, balanced, test 20,212 (GLUE's split was not at hand)",
        ),
        "`rows`, `sublayers`": ("all 67,349 texts of SST-2", "20,000 of them, for lack of time on a GPU"),
        "DP-SGD": ("Opacus, the batch, epochs and rate above", f"{same}; the tables of tokens are frozen"),
        "membership": (
            "some tokens of non-members dropped or replaced (text); about half changed (authors' code)",
            "non-members lose 20 % of their words",
        ),
        "inversion, attribute": (
            "texts not counted; 20,000 of IMDb, 3,300 of SST-2",
            "300 texts; 16,214 of IMDb, all of SST-2 with a genre",
        ),
        "what is attacked for a genre": ("the output embedding", "what crosses at each position"),
        "tokens of an inversion": (
            "spoken of as unordered (text); counted at their place (authors' code)",
            "counted at their place",
        ),
        "token level (Figure 5)": ("accuracy on three tasks", "SST-2 only, for lack of time on a GPU"),
        "d' of 512 and 768 (Table 3)": ("printed", f"not possible: {title} has {setup.columns} columns")
        if setup.columns < 512
        else ("printed", same),
        "Q, K, V": ("rows bounded before the maps, noise for each", "one joint release, bounded behind them"),
        "pre-training": ("600 million words of Wikipedia", "2.2 million words of Wikipedia"),
    }
    body = grid("setting", ("paper", "here"), rows)
    return (
        "## Settings: the paper's, and these\n\nOf the rows with the paper's recipe. Each page says what "
        "else "
        f"to know.\n\n{body}"
    )
