"""Options that several verbs share, with one wording."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = [
    "Columns",
    "Delta",
    "Device",
    "Epsilon",
    "HowBounded",
    "Json",
    "LabelCount",
    "MechanismName",
    "MechanismOption",
    "Norm",
    "Paper",
    "Releases",
    "Rows",
    "UnitText",
]


class MechanismName(StrEnum):
    """The mechanisms by their names on the command line."""

    MATRIX_GAUSSIAN = "matrix-gaussian"
    GAUSSIAN = "gaussian"
    CLASSICAL_GAUSSIAN = "classical-gaussian"
    MVG = "mvg"
    PRIVUNIT = "privunit"
    RANDOMIZED_RESPONSE = "randomized-response"


class HowBounded(StrEnum):
    """What happens to a hidden matrix before the noise."""

    NORMALISE = "normalise"
    CLIP = "clip"


MechanismOption = Annotated[MechanismName, typer.Option("--mechanism", "-m", help="Which noise.")]
Epsilon = Annotated[float, typer.Option("--epsilon", "-e", help="The budget; less is more private.")]
Delta = Annotated[
    float | None,
    typer.Option("--delta", "-d", help="The budget's delta [1e-5 for Gaussian noise, 0 for pure]."),
]
UnitText = Annotated[
    str, typer.Option("--unit", help="What is protected: text, token, or phrase:c (c tokens).")
]
Norm = Annotated[float, typer.Option("--norm", help="C, the norm that matrices are bounded to.")]
Releases = Annotated[int, typer.Option("--releases", "-k", help="How many fresh releases of the same text.")]
Rows = Annotated[int | None, typer.Option("--rows", help="n, the fixed public length.")]
Columns = Annotated[int | None, typer.Option("--cols", help="d, the hidden width.")]
LabelCount = Annotated[
    int | None, typer.Option("--labels", help="K, the number of labels, for randomized response.")
]
Paper = Annotated[bool, typer.Option("--paper", help="Print the paper's convention beside the right one.")]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or cuda:K [the GPU where there is one].")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
