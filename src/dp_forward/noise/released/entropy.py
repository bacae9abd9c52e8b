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
    return _stretch(os.urandom(32), os.urandom(16))


def cipher_is_right() -> bool:
    """Whether the cipher of `keystream` gives the test vector of NIST SP 800-38A, F.5.5."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain, sealed = "6bc1bee22e409f96e93d7e117393172a", "601ec313775789a5b7a7f504bbf3d228"
    known = (int(plain, 16) ^ int(sealed, 16)).to_bytes(16, "big")
    return _stretch(key, bytes(range(0xF0, 0x100)))(16) == known


def _stretch(key: bytes, counter: bytes) -> Entropy:
    encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()

    def fresh(size: int) -> bytes:
        return encryptor.update(bytes(size))

    return fresh
