"""What the protocol is made of: Flower's own functions, and one that takes the place of Flower's.

Flower stretches every secret of 32 bytes to a mask by ``pseudo_rand_gen``, which folds it to 32
bits first and seeds numpy's Mersenne Twister with them. Whoever has a masked vector can try all
2³² seeds: ``benchmarks/secure_attack.py`` does it in minutes. Masks are made by ChaCha20 here, from
``cryptography``, the library that makes Flower's keys.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedskew.errors import RunError

Ints = npt.NDArray[np.int64]
Vector = list[Ints]
"""A weight, and what it weighs: the form in which Flower's functions take both."""
MODULUS = 2**32
"""All sums of masked vectors are taken modulo this (Flower's default)."""
SEED_BYTES = 32


def key_pair() -> tuple[bytes, bytes]:
    """A new private key and its public one."""
    from flwr.supercore.primitives.asymmetric import (
        generate_key_pairs,
        private_key_to_bytes,
        public_key_to_bytes,
    )

    private, public = generate_key_pairs()
    return private_key_to_bytes(private), public_key_to_bytes(public)


def agreed_key(private: bytes, public: bytes) -> bytes:
    """The secret that two sites share, each from its own private key and the other's public one."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

    key: bytes = generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))
    return key


def sealed(key: bytes, source: int, target: int, seed_share: bytes, key_share: bytes) -> str:
    """A site's shares for another, so that only that one can read them."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat

    text = share_keys_plaintext_concat(source, target, seed_share, key_share)
    return str(encrypt(key, text).decode())


def opened(key: bytes, token: str) -> tuple[int, int, bytes, bytes]:
    """The contrary of ``sealed``: source, target, and the two shares."""
    from cryptography.fernet import InvalidToken
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate

    try:
        found: tuple[int, int, bytes, bytes] = share_keys_plaintext_separate(
            decrypt(key, token.encode())
        )
    except InvalidToken as error:
        raise RunError("a letter from another site cannot be opened.") from error
    return found


def split(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """Shamir shares of a secret, of which ``threshold`` bring it back and fewer tell nothing."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    shares: list[bytes] = create_shares(secret, threshold, number)
    return shares


def joined(shares: Sequence[bytes]) -> bytes:
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    secret: bytes = combine_shares(list(shares))
    return secret


def seed_key(seed: bytes) -> bytes:
    """A site's own seed in the form in which ``agreed_key`` returns keys."""
    return base64.urlsafe_b64encode(seed)


def pair_key(private: bytes, public: bytes, about: bytes) -> bytes:
    """The secret of two sites for masks of one task: masks cancel only if both do the same."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derive = HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=about)
    return seed_key(derive.derive(base64.urlsafe_b64decode(agreed_key(private, public))))


def mask(key: bytes, like: Vector) -> Vector:
    """Numbers below the modulus that look random to all who lack the key, in a vector's shape.

    Every key is used once, so the cipher's nonce need not change.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = Cipher(algorithms.ChaCha20(base64.urlsafe_b64decode(key), bytes(16)), mode=None)
    sizes = [part.size for part in like]
    stream = cipher.encryptor().update(bytes(4 * sum(sizes)))
    numbers = np.frombuffer(stream, "<u4").astype(np.int64)
    return np.split(numbers, np.cumsum(sizes)[:-1])


def added(one: Vector, other: Vector, sign: int = 1) -> Vector:
    """The sum or difference of two vectors, modulo the modulus."""
    from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic

    combine: Any = arithmetic.parameters_addition
    if sign < 0:
        combine = arithmetic.parameters_subtraction
    found: Vector = arithmetic.parameters_mod(combine(one, other), MODULUS)
    return found


def weighted(weight: int, numbers: Ints) -> Vector:
    from flwr.common.secure_aggregation.ndarrays_arithmetic import factor_combine

    vector: Vector = factor_combine(weight, [numbers])
    return vector


def unweighted(vector: Vector) -> tuple[int, Ints]:
    from flwr.common.secure_aggregation.ndarrays_arithmetic import factor_extract

    weight, (numbers,) = factor_extract(vector)
    return int(weight), numbers
