"""Where released noise gets its bits: AES-256 in counter mode, keyed anew from the system for every release.

The system's own generator gives 150 MB/s on a small machine, and a release of 128 x 768 entries wants 0.8 MB.
The keystream gives forty times that, from 48 bytes of the system's.

Guarantees:
    No state outlives a release: a key is drawn when a release begins and dropped when it ends. So nothing is
    shared by threads, by the two sides of a fork, or by copies of a machine saved between two releases.
Edges:
    The noise is as secret as the system's random numbers, and as uniform as AES-256 is a good cipher: the
    guarantee of a release names both. (The system's generator rests on a cipher as well.)
"""

from __future__ import annotations

import os
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dp_forward.noise.released.exact_normal import Entropy

__all__ = ["ENTROPY_IS_SECRET", "keystream"]

ENTROPY_IS_SECRET: Final = (
    "the random numbers of the operating system are uniform and secret, "
    "and AES-256 in counter mode stretches them"
)
"""What the guarantee of every release rests on."""


def keystream() -> Entropy:
    """A stream of fresh bytes for one release."""
    cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16)))
    encryptor = cipher.encryptor()

    def fresh(size: int) -> bytes:
        return encryptor.update(bytes(size))

    return fresh
