"""What an argument is: from the docstring of its object, or from the words that mean the same everywhere.

The reference shows `COMMON` where a docstring does not say more. `tests/docs/test_arguments.py` checks that
every argument of every public object is described by one of the two.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["COMMON", "described"]

COMMON: Final = {
    "at_delta": "the delta at which its repr states the promise.",
    "audit": "the log of an operator's events.",
    "back": "the provider's half of a model.",
    "bits": "how many bits a released integer has: 8 or 16.",
    "bound": "the bound of what crosses; it knows the sensitivity.",
    "budget": "the wanted epsilon and delta.",
    "cut": "where the model is cut, such as `encoder.6`.",
    "delta": "the delta of the promise.",
    "device": "the torch device to compute on.",
    "entropy": "a source of random bytes, for tests alone; by default the operating system.",
    "epsilon": "the epsilon of the promise.",
    "folder": "the folder that is read or written.",
    "front": "the user's half of a model.",
    "hidden": "hidden matrices at the cut, one row for each token.",
    "label_epsilon": "the epsilon of a label's randomized response.",
    "level": "the confidence of the lower bounds.",
    "mechanism": "bound and noise, with what they prove.",
    "mu": "sensitivity over sigma of one Gaussian release.",
    "pair": "front and back of one model.",
    "path": "a file.",
    "place": "a folder, or the URL of a Postgres database.",
    "plan": "the settings of the run.",
    "progress": "called with how much is done.",
    "records": "records, as `read_records` gives them.",
    "register": "the register of the owner's texts; by default the owner's own.",
    "releases": "how many fresh releases of one input the promise covers.",
    "resume": "whether to continue what the folder holds.",
    "rows": "how many rows cross: the tokens of a text.",
    "seed": "of all that is random here, but for released noise.",
    "sensitivity": "how far two neighbours can lie apart.",
    "server": "the address of a server.",
    "settings": "what `as_dict` gave.",
    "spec": "the description of what is released.",
    "task": "a task, as `find_task` gives it.",
    "texts": "the texts, in order.",
    "tokenizer": "a tokenizer of Hugging Face.",
    "tokens": "the tokenizer, held to a fixed length.",
    "unit": "what is protected: `TEXT`, `TOKEN`, `phrase(c)` and others.",
    "user": "the user's side: front, tokenizer and spec.",
    "users": "how many users send releases.",
    "width": "how many columns cross.",
    "with_estimate": "whether to compute the authors' estimate too.",
}
"""Arguments that mean the same wherever a docstring does not say otherwise."""


def described(docstring: str) -> set[str]:
    """The names that a docstring describes: quoted in its prose, or as an entry of a list of arguments."""
    quoted = re.findall(r"`{1,2}(\w+)(?:`|[ .=(\[])", docstring)
    listed = re.findall(r"^ +\*{0,2}(\w+): ", docstring, flags=re.MULTILINE)
    return {*quoted, *listed}
