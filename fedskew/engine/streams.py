"""Random numbers keyed by what they are for, so neither order nor resuming changes them."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """The generator of one purpose, e.g. ``stream(seed, "batches", client, round)``.

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
