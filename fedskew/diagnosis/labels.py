"""Label and quantity skew, from how many rows of each class clients have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedskew.diagnosis.basis import Floats
from fedskew.diagnosis.together import Together
from fedskew.rng import stream

DEALT, RESAMPLED = 40, 200
"""How often labels are dealt anew to clients, and clients drawn anew for an interval."""


@dataclass(frozen=True)
class Score:
    """An estimate with its 95 % interval, and how many deviations of chance it lies above 0."""

    value: float
    low: float
    high: float
    beyond: float


def label_score(all_: Together) -> tuple[Score, Floats, float]:
    """The share of the labels' entropy that clients explain beyond chance, and of each client.

    Chance is what is left when the same labels are dealt anew to clients of the same sizes, then
    treated alike (noise, cells not sent): 0 for an iid deal, 1 where clients share no class. Last
    comes how far from the others the furthest client lies in any of these deals.
    """
    table = completed(all_, all_.labels)
    dealt = [completed(all_, each) for each in _deals(all_, table)]
    null = [information(each) for each in dealt]
    chance, spread = float(np.mean(null)), float(np.std(null, ddof=1))
    entropy = _entropy(table.sum(axis=0))
    room = max(entropy - chance, 1e-9)
    value = (information(table) - chance) / room
    drawn = stream(all_.basis.seed, "diagnosis", "label").integers(
        0, len(table), (RESAMPLED, len(table))
    )
    again = [(information(table[places]) - chance) / room for places in drawn]
    # Clients drawn twice share their labels with themselves: the spread counts, not the mean.
    half = 1.96 * max(float(np.std(again)), spread / room)
    furthest = max(float(divergences(each).max()) for each in dealt)
    beyond = (information(table) - chance) / max(spread, 1e-9)
    return (
        Score(value, value - half, min(1.0, value + half), beyond),
        divergences(table),
        furthest,
    )


def completed(all_: Together, counts: Floats) -> Floats:
    """Rows of classes that were not sent, spread over these by all clients' shares."""
    total = counts.sum(axis=0)
    hidden = counts <= 0
    missing = np.maximum(all_.rows - counts.sum(axis=1), 0.0)
    share = np.where(hidden, total + 1e-3 * max(total.sum(), 1.0) / len(total), 0.0)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-12)
    # No more than just below the size of a cell can hide in one.
    return np.asarray(counts + np.minimum(share * missing[:, None], all_.basis.cell - 1.0))


def _deals(all_: Together, table: Floats) -> list[Floats]:
    rng = stream(all_.basis.seed, "diagnosis", "deal")
    sizes = np.round(table.sum(axis=1)).astype(np.int64)
    totals = table.sum(axis=0)
    pool = np.repeat(np.arange(len(totals)), np.round(totals).astype(np.int64))
    # Rounding may leave a few labels more or fewer than places.
    pool = np.resize(pool, sizes.sum())
    owner = np.repeat(np.arange(len(sizes)), sizes)
    cell, sigma = all_.basis.cell, all_.noise.counts
    deals = []
    for _ in range(DEALT):
        mixed = owner * len(totals) + rng.permutation(pool)
        dealt = np.bincount(mixed, minlength=table.size).reshape(table.shape).astype(np.float64)
        if sigma:
            dealt = np.round(dealt + sigma * rng.standard_normal(dealt.shape))
        deals.append(np.where(dealt >= cell, dealt, 0.0))
    return deals


def information(table: Floats) -> float:
    """The mutual information of client and label, in nats.

    >>> round(information(np.array([[2.0, 0.0], [0.0, 2.0]])), 4)  # log 2
    0.6931
    """
    total = table.sum()
    if total <= 0:
        return 0.0
    return _entropy(table.sum(axis=0)) + _entropy(table.sum(axis=1)) - _entropy(table.ravel())


def divergences(table: Floats) -> Floats:
    """How far each client's shares of classes lie from all others': Kullback-Leibler, in nats."""
    sizes = table.sum(axis=1, keepdims=True)
    others = table.sum(axis=0) - table + 0.5
    shares = table / np.maximum(sizes, 1e-12)
    rest = others / others.sum(axis=1, keepdims=True)
    logs = np.log(np.where(shares > 0, shares, 1.0) / rest)
    return np.asarray(np.where(shares > 0, shares * logs, 0.0).sum(axis=1))


def _entropy(counts: Floats) -> float:
    shares = counts[counts > 0] / max(float(counts.sum()), 1e-12)
    return float(-(shares * np.log(shares)).sum())


def quantity_score(all_: Together) -> Score:
    """The share of effective clients that unequal sizes lose: 1 - (Σn)²/(K·Σn²)."""
    sizes = all_.rows

    def lost(rows: Floats) -> float:
        return float(1 - rows.sum() ** 2 / (len(rows) * max((rows**2).sum(), 1e-12)))

    rng = stream(all_.basis.seed, "diagnosis", "quantity")
    drawn = rng.integers(0, len(sizes), (RESAMPLED, len(sizes)))
    low, high = np.quantile([lost(sizes[places]) for places in drawn], [0.025, 0.975])
    value = lost(sizes)
    return Score(value, min(float(low), value), max(float(high), value), 0.0)
