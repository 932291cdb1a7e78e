"""Random generators keyed by purpose: no draw depends on the order, or shifts another draw.

There are two, and recorded runs depend on the bits of both, so neither can replace the other:

- ``keyed_rng`` (SHA-256, PCG64) makes the data: partitions, splits, skews, synthetic samples, and
  which clients are left out to choose a round by. Run folders hold fingerprints of the data.
- ``stream`` (BLAKE2, Philox) is for training and everything after it: initial models, batches,
  noise, sampled clients. It starts several times faster, which matters because there is one for
  each client and round.
"""

from __future__ import annotations

from hashlib import blake2b, sha256

import numpy as np

from fedskew.errors import ConfigError
from fedskew.types import Indices


def keyed_rng(seed: int, *key: str) -> np.random.Generator:
    """The generator for making data under one key, e.g. ``keyed_rng(seed, "rotation", client)``."""
    if seed < 0:
        raise ConfigError(f"seed must be at least 0, not {seed}.")
    digest = sha256("\0".join(key).encode()).digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    return np.random.default_rng([seed, *words])


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """The generator for one purpose in training, e.g. ``stream(seed, "batches", client, round)``.

    >>> ann, again, bob = (stream(0, "batches", name, 3) for name in ("ann", "ann", "bob"))
    >>> ann.integers(1000) == again.integers(1000), ann.integers(1000) == bob.integers(1000)
    (np.True_, np.False_)
    """
    text = "\x1f".join([str(seed), *map(str, purpose)])
    key = blake2b(text.encode(), digest_size=16).digest()
    # Philox takes the key as it is: about five times faster to start than a SeedSequence.
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype=np.uint64)))


def torch_seed(seed: int, *purpose: str | int) -> int:
    """A seed for code that can only draw from torch's own generator (model initialisation)."""
    return int(stream(seed, *purpose).integers(2**63 - 1))


def thinned(rows: Indices, most: int, seed: int, *purpose: str) -> Indices:
    """At most ``most`` of the rows, drawn at random but the same every time."""
    if len(rows) <= most:
        return rows
    return np.sort(stream(seed, "thinned", *purpose).choice(rows, most, replace=False))
