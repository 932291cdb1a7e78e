"""What a client computes from its own training rows and sends, and nothing else leaves."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedskew.data.federation import Federation
from fedskew.diagnosis.basis import VERSION, WIDTH, Basis, Floats, Singles
from fedskew.diagnosis.duplicates import HASHES, sketch
from fedskew.diagnosis.privacy import NONE, Noise
from fedskew.engine.arithmetic import one_order
from fedskew.errors import DataError
from fedskew.rng import stream
from fedskew.types import Indices

UPPER = np.triu_indices(WIDTH)
DECLARED = {
    "rows": "how many training rows a client has",
    "counts": "its rows of each class; a class of fewer rows than the cell size counts as 0",
    "joined": "where classes are small, its rows of random groups of them, counted likewise",
    "sums": "for each of these classes the sum of the features φ(x)",
    "products": "the sum of φ(x)φ(x)ᵀ over the rows of these classes",
    "spread": "one number: how widely rows of a class spread, as tr Σ² by class and row",
    "hashes": "128 minima of keyed hashes of rows, to notice rows that two clients share",
}
"""All that a summary holds of a client's rows."""


@dataclass(frozen=True, eq=False)
class Summary:
    """One client in sums. ``hidden`` is how many classes it has that were too small to be sent."""

    client: str
    rows: int
    counts: Floats
    sums: Singles
    products: Singles
    hashes: NDArray[np.uint64]
    hidden: int
    spread: float
    joined: Floats
    """Rows of each group of classes, if the basis joins any."""
    basis: str
    """The seal of the basis it was made under."""
    noise: Noise = NONE
    version: int = VERSION

    @property
    def bytes(self) -> int:
        """What is sent, without names: numbers as they are stored."""
        shown = int((self.counts > 0).sum())
        sent = [self.counts.nbytes, shown * self.sums[0].nbytes, self.products.nbytes]
        return int(sum(sent) + self.hashes.nbytes + self.joined.nbytes + 16)

    @property
    def gram(self) -> Floats:
        """The sum of φφᵀ as a matrix."""
        full = np.zeros((WIDTH, WIDTH))
        full[UPPER] = self.products
        return full + np.triu(full, 1).T


def most_bytes(classes: int) -> int:
    """What a summary holds at most: all its classes are large enough to be sent."""
    return 16 * classes + 4 * WIDTH * classes + 4 * len(UPPER[0]) + 8 * HASHES + 16


def summarise(
    federation: Federation,
    basis: Basis,
    noise: Noise = NONE,
    key: str = "",
    secret: int | None = None,
) -> list[Summary]:
    """The summary of each client that trains, under a basis.

    ``key`` is what sites hash rows with. Noise must not be known to who receives the sums: its
    seed is drawn by the operating system unless ``secret`` gives it, for a release that can be
    repeated without telling more.
    """
    if not noise.is_none and not basis.public:
        raise DataError("epsilon counts what a summary tells, but this basis was made from rows.")
    with one_order():
        return [
            _summarised(federation, client.name, basis, noise, key, secret)
            for client in federation.clients
        ]


def _summarised(
    federation: Federation, name: str, basis: Basis, noise: Noise, key: str, secret: int | None
) -> Summary:
    if federation.sample_shape != basis.shape:
        raise DataError(
            f"samples of {name!r} are {list(federation.sample_shape)}, but the basis is of "
            f"{list(basis.shape)}."
        )
    seed = secrets.randbits(63) if secret is None else secret
    rows = federation.by_name[name].train
    x = federation.x.numpy()[rows]
    labels = basis.labels(federation.y.numpy()[rows])
    counts = np.bincount(labels, minlength=basis.classes).astype(np.float64)
    described = basis.describe(x)
    if noise.is_none:
        shown = counts >= basis.cell
    else:
        counts = np.round(counts + _drawn(noise.counts, counts.shape, seed, name, "counts"))
        shown = counts >= basis.cell
    # What is hidden leaves no trace in any sum, unless noise hides it there.
    kept = shown[labels] if noise.is_none else np.ones(len(labels), bool)
    one_hot = np.zeros((len(labels), basis.classes))
    one_hot[np.arange(len(labels)), labels] = 1.0
    sums = one_hot.T @ described
    gram = (described[kept].T @ described[kept])[UPPER]
    if not noise.is_none:
        sums = sums + _drawn(noise.sums, sums.shape, seed, name, "sums")
        # Off the diagonal an entry stands for two: √2 of them is what counts for the length.
        scale = np.where(UPPER[0] == UPPER[1], 1.0, np.sqrt(0.5))
        gram = gram + _drawn(noise.products, gram.shape, seed, name, "products") * scale
    hidden = int(((counts > 0) & ~shown).sum())
    sums[~shown] = 0.0
    return Summary(
        client=name,
        rows=len(rows) if noise.is_none else int(max(0.0, counts.sum())),
        counts=np.where(shown, counts, 0.0),
        sums=sums.astype(np.float32),
        products=gram.astype(np.float32),
        hashes=sketch(x, key or str(basis.seed)) if noise.is_none else np.zeros(0, np.uint64),
        hidden=hidden,
        joined=_joined(counts, basis),
        spread=_spread(described, labels, shown) if noise.is_none else 0.0,
        basis=basis.seal,
        noise=noise,
    )


def _joined(counts: Floats, basis: Basis) -> Floats:
    """Rows by group, of classes that are sent, and of the others if they are a cell together."""
    if not basis.groups:
        return np.zeros(0)
    small = np.where(counts >= basis.cell, 0.0, counts)
    whole, rest = (np.bincount(basis.groups, each) for each in (counts, small))
    return np.asarray(np.where(rest >= basis.cell, whole, whole - rest))


def _spread(described: Floats, labels: Indices, shown: NDArray[np.bool_]) -> float:
    """Σ_c n_c·tr Σ_c² over the classes that are sent, without bias for normal rows.

    The covariance pooled over classes would not do: the square of a mean is below the mean square.
    """
    total = 0.0
    for c in np.flatnonzero(shown):
        rows = described[labels == c]
        n = len(rows)
        if n < 3:
            continue
        rest = rows - rows.mean(axis=0)
        products = rest @ rest.T if n < WIDTH else rest.T @ rest
        first = float(np.trace(products)) / (n - 1)
        second = float((products**2).sum()) / (n - 1) ** 2
        total += n * (n - 1) ** 2 / ((n - 2) * (n + 1)) * (second - first**2 / (n - 1))
    return total


def _drawn(sigma: float, shape: tuple[int, ...], seed: int, *purpose: str) -> Floats:
    return sigma * stream(seed, "diagnosis", *purpose).standard_normal(shape)
