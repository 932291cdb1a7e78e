"""Random streams that are told apart by what they are for."""

from __future__ import annotations

import hashlib

import numpy as np

from fedskew.errors import ConfigError


def keyed_rng(seed: int, *key: str) -> np.random.Generator:
    """A random stream of its own for each key, so that no draw shifts another."""
    if seed < 0:
        raise ConfigError(f"seed must be at least 0, not {seed}.")
    digest = hashlib.sha256("\0".join(key).encode()).digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    return np.random.default_rng([seed, *words])
