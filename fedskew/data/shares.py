"""Tools for partitions and splits: whole-number shares, and assigning samples by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedskew.errors import ConfigError, DataError
from fedskew.registry.knobs import Knob
from fedskew.types import Indices

Labels = NDArray[np.integer]
Rng = np.random.Generator


@dataclass(frozen=True)
class Pool:
    """The samples a partition divides: their labels and, where known, who owns them.

    ``segments`` groups samples that overlap, which must go to the same client.
    """

    labels: Labels
    owners: Labels | None = None
    segments: Labels | None = None

    def __len__(self) -> int:
        return len(self.labels)


def number_of_clients(partition: str, clients: int | None) -> int:
    """The number of clients, for a partition that needs it to be given."""
    if clients is None:
        raise ConfigError(f"partition {partition!r} needs the number of clients: set clients.")
    return clients


def largest_remainder(total: int, weights: Labels, rng: Rng) -> Indices:
    """Whole-number shares of a total in proportion to whole weights; ties are drawn."""
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
    """Whole-number shares that add up to a total, by rounding the cumulated proportions."""
    edges = np.cumsum(proportions)
    bounds = np.rint(edges / edges[-1] * total).astype(np.int64)
    shares: Indices = np.diff(bounds, prepend=0)
    return shares


def spread(sizes: Indices, holders: NDArray[np.bool_]) -> Indices:
    """Share each class (row) evenly among the clients that hold it; the first get the rest."""
    each, rest = np.divmod(sizes, holders.sum(axis=1))
    first = holders.cumsum(axis=1) <= rest[:, None]
    return np.where(holders, each[:, None] + first, 0)


def occurrence(labels: Labels) -> Indices:
    """For each label, how many equal labels come before it."""
    order = np.argsort(labels, kind="stable")
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    turn = np.empty(len(labels), dtype=np.int64)
    turn[order] = np.arange(len(labels)) - np.repeat(first, sizes)
    return turn


def deal(labels: Labels, classes: Labels, counts: Indices, rng: Rng) -> list[Indices]:
    """Give each client (column) its count of random samples of each class (row)."""
    pieces: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for label, row in zip(classes, counts, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(row)
        for client in np.flatnonzero(row):
            pieces[client].append(members[ends[client] - row[client] : ends[client]])
    nothing = np.empty(0, dtype=np.int64)
    return [np.sort(np.concatenate([nothing, *piece])) for piece in pieces]


@dataclass(frozen=True)
class Draws:
    """Shares drawn from Dirichlet(alpha), repeatedly until every client holds enough."""

    alpha: Annotated[
        float,
        Knob("small: clients differ a lot; large: hardly", gt=0, le=1e6, tries=(0.1, 0.3, 1.0)),
    ] = 0.5
    min_size: Annotated[int, Knob("fewest samples of a client", ge=0)] = 10
    retries: Annotated[int, Knob("most draws until every client has min_size", ge=1)] = 100

    def until_large_enough(
        self, name: str, draw: Callable[[], Indices], samples: int, clients: int
    ) -> Indices:
        """Draw tables of counts until every client (column) holds enough."""
        if self.min_size * clients <= samples:
            for _ in range(self.retries):
                counts = draw()
                if counts.sum(axis=0).min() >= self.min_size:
                    return counts
        raise DataError(
            f"partition {name!r} could not give each of {clients} clients "
            f"min_size={self.min_size} of {samples} samples with alpha={self.alpha} in "
            f"{self.retries} draws: raise alpha, lower min_size or ask for fewer clients."
        )


def matched_test(
    train_parts: Sequence[Indices],
    train_labels: Labels,
    test_labels: Labels,
    rng: Rng,
) -> list[Indices]:
    """Share test rows so that each client is tested on the labels it trains on.

    Each class's test rows go to the clients in proportion to their training samples of that
    class (largest remainder), so no client is tested on a label it never saw.
    """
    classes = np.unique(train_labels)
    held = np.stack([class_sizes(train_labels[part], classes) for part in train_parts], axis=1)
    available = class_sizes(test_labels, classes)
    counts = np.stack(
        [
            largest_remainder(int(total), row, rng) if row.any() else row
            for total, row in zip(available, held, strict=True)
        ]
    )
    return deal(test_labels, classes, counts, rng)


def balanced(pool: Indices, labels: Labels, samples: int, rng: Rng) -> Indices:
    """A random subset of rows in which small classes stay whole and the others are equally large.

    ``labels`` are those of all rows, in the pool or not.
    """
    shuffled = rng.permutation(pool)
    # The n-th member of each class comes before any class's n+1-st: every prefix is balanced.
    turn = occurrence(labels[shuffled])
    return np.sort(shuffled[np.argsort(turn, kind="stable")[:samples]])


def hold_out(labels: Labels, segments: Labels, share: float, rng: Rng) -> NDArray[np.bool_]:
    """Which rows to set aside: a share of them, class by class, and only whole segments.

    Each class keeps at least one row (or segment), so that no client is tested on a label it
    cannot learn; if every class has just one, some are set aside nevertheless. The remainder from
    rounding one class is added to the next, so that the total is close to the share.
    """
    _, first, segment, sizes = np.unique(
        segments, return_index=True, return_inverse=True, return_counts=True
    )
    held = np.zeros(len(sizes), dtype=bool)
    owed = 0.0
    for label in rng.permutation(np.unique(labels[first])):
        members = rng.permutation(np.flatnonzero(labels[first] == label))
        owed += share * float(sizes[members].sum())
        taken = _first_worth(owed, members, sizes)
        held[taken] = True
        owed -= float(sizes[taken].sum())
    if not held.any():
        held[_first_worth(owed, rng.permutation(len(sizes)), sizes)] = True
    away: NDArray[np.bool_] = held[segment]
    return away


def _first_worth(rows: float, members: Indices, sizes: Indices) -> Indices:
    """The first members whose sizes add up to about this number of rows, but never all members."""
    middles = np.cumsum(sizes[members]) - sizes[members] / 2
    return members[: min(int((middles <= rows).sum()), len(members) - 1)]
