"""Clients that hold the same rows, found by keyed minimum hashes of them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedskew.rng import stream

HASHES = 128
SAME = 0.1
"""Clients share rows worth a sentence from this share on (Jaccard); by chance hashes never meet."""
Hashes = NDArray[np.uint64]


def sketch(x: NDArray[np.float32], key: str) -> Hashes:
    """The least of each of 128 keyed hashes over rows: equal entries estimate the rows shared.

    >>> rows = np.arange(300, dtype=np.float32).reshape(100, 3)
    >>> bool((sketch(rows, "k") == sketch(rows[::-1], "k")).all())
    True
    """
    secret = blake2b(key.encode(), digest_size=32).digest()
    flat = np.ascontiguousarray(x.reshape(len(x), -1))
    digests = b"".join(blake2b(row.tobytes(), digest_size=8, key=secret).digest() for row in flat)
    values = np.frombuffer(digests, np.uint64)
    draw = stream(0, "diagnosis", "hashes").integers(0, 2**64, (2, HASHES), dtype=np.uint64)
    least = np.full(HASHES, np.iinfo(np.uint64).max, np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, len(values), 4096):
            mixed = values[start : start + 4096, None] ^ draw[0]
            mixed = (mixed ^ (mixed >> np.uint64(31))) * (draw[1] | np.uint64(1))
            mixed ^= mixed >> np.uint64(29)
            least = np.minimum(least, mixed.min(axis=0))
    return least


def duplicates(names: Sequence[str], hashes: Sequence[Hashes]) -> list[tuple[str, str, float]]:
    """Pairs of clients that share rows, and the share of all their rows that both hold."""
    stacked = np.stack(hashes)
    found = []
    for first in range(len(names) - 1):
        shares = (stacked[first + 1 :] == stacked[first]).mean(axis=1)
        places = np.flatnonzero(shares >= SAME).tolist()
        found += [(names[first], names[first + 1 + p], float(shares[p])) for p in places]
    return sorted(found, key=lambda pair: -pair[2])
