"""Whole shares of whole numbers of samples, and dealing samples out by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedskew.errors import ConfigError
from fedskew.types import Indices

Labels = NDArray[np.integer]


def number_of_clients(partition: str, clients: int | None) -> int:
    """How many share, for a partition that cannot tell by itself."""
    if clients is None:
        raise ConfigError(f"partition {partition!r} needs the number of clients: set clients.")
    return clients


def largest_remainder(total: int, weights: Labels, rng: np.random.Generator) -> Indices:
    """Whole shares of a total in proportion to whole weights; ties fall by lot."""
    exact = total * weights.astype(np.int64)
    shares: Indices = exact // weights.sum()
    remainders = exact - shares * weights.sum()
    order = np.lexsort((rng.random(len(weights)), -remainders))
    shares[order[: total - shares.sum()]] += 1
    return shares


def class_sizes(labels: Labels, classes: Labels) -> Indices:
    """How many samples each of the given classes has."""
    sizes: Indices = np.bincount(labels, minlength=int(classes.max()) + 1)[classes]
    return sizes


def cut(total: int, proportions: NDArray[np.float64]) -> Indices:
    """Whole shares of a total that add up to it, by rounding the cumulated proportions."""
    edges = np.cumsum(proportions)
    bounds = np.rint(edges / edges[-1] * total).astype(np.int64)
    shares: Indices = np.diff(bounds, prepend=0)
    return shares


def spread(sizes: Indices, holders: NDArray[np.bool_]) -> Indices:
    """Share each class (row) evenly over the clients that hold it, the first getting the rest."""
    each, rest = np.divmod(sizes, holders.sum(axis=1))
    first = holders.cumsum(axis=1) <= rest[:, None]
    return np.where(holders, each[:, None] + first, 0)


def occurrence(labels: Labels) -> Indices:
    """How many equal labels stand before each label."""
    order = np.argsort(labels, kind="stable")
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    turn = np.empty(len(labels), dtype=np.int64)
    turn[order] = np.arange(len(labels)) - np.repeat(first, sizes)
    return turn


def deal(
    labels: Labels, classes: Labels, counts: Indices, rng: np.random.Generator
) -> list[Indices]:
    """Give each client (column) its count of random samples of each class (row)."""
    pieces: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for label, row in zip(classes, counts, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(row)
        for client in np.flatnonzero(row):
            pieces[client].append(members[ends[client] - row[client] : ends[client]])
    nothing = np.empty(0, dtype=np.int64)
    return [np.sort(np.concatenate([nothing, *piece])) for piece in pieces]
