"""What a model of everybody's rows is worth beside each client's own, foretold from sums.

The models are ridge regressions on φ that answer one number a class; their sums are all they need.
They are tried on rows that are made up: of each class as often as the client has it, normal with
the covariance within classes, around means between the client's own and the others'. How far
between is decided by how much of the difference is more than chance. It is a forecast of the sign
of the mean over clients; of a single client it tells little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedskew.comparisons.statistics import Interval, interval
from fedskew.diagnosis.basis import WIDTH, Floats
from fedskew.diagnosis.summary import Summary
from fedskew.diagnosis.together import Together
from fedskew.rng import stream
from fedskew.types import Indices

PENALTIES = (10.0, 30.0, 100.0, 300.0)
"""Tried for each model, in rows: a penalty weighs like so many."""
MOST_CLIENTS = 100
"""Of more clients so many, evenly taken, say what federating is worth."""
FEWEST = 20
"""Clients of fewer rows in cells that were sent are left out."""
TIE = 0.02
"""Intervals that come nearer to 0 than this do not say which model is better."""
MADE_UP = 400
"""Rows made up for each client."""


@dataclass(frozen=True)
class Gain:
    """Accuracy won over training alone by a common model, as a mean over clients."""

    pooled: Interval
    clients: int


@dataclass(frozen=True, eq=False)
class _Sums:
    """XᵀX and XᵀY of rows with a constant beside φ, and how many there are."""

    products: Floats
    crossed: Floats
    rows: float


def gain_of(all_: Together) -> Gain | None:
    """The mean gain over clients; none where sums are too small or too noisy to say."""
    if not all_.noise.is_none:
        return None
    places = np.flatnonzero(all_.counts.sum(axis=1) >= FEWEST)
    if len(places) < 2:
        return None
    told = [_sums(all_.summaries[place]) for place in places]
    every = _Sums(
        np.sum([each.products for each in told], axis=0),
        np.sum([each.crossed for each in told], axis=0),
        float(sum(each.rows for each in told)),
    )
    pooled = _best(every)
    root = _root(all_.within)
    means = _means(all_)
    step = -(-len(places) // MOST_CLIENTS)
    gains = []
    for place, own in list(zip(places, told, strict=True))[::step]:
        rng = stream(all_.basis.seed, "diagnosis", "gain", all_.names[place])
        share = all_.counts[place] / all_.counts[place].sum()
        labels = rng.choice(len(share), MADE_UP, p=share)
        rows = means[place, labels] + rng.standard_normal((MADE_UP, WIDTH)) @ root
        alone = _best(own)
        gains.append(_accuracy(pooled, rows, labels) - _accuracy(alone, rows, labels))
    return Gain(interval(gains), len(places))


def _means(all_: Together) -> Floats:
    """Where each client's classes are thought to lie: between its own and the others' means."""
    counts, sums = all_.counts, all_.sums
    n = np.maximum(counts, 1.0)[:, :, None]
    rest = counts.sum(axis=0) - counts
    m = np.maximum(rest, 1.0)[:, :, None]
    own, others = sums / n, (sums.sum(axis=0) - sums) / m
    chance = all_.traces[0] * (1 / n + 1 / m)
    squared = ((own - others) ** 2).sum(axis=2, keepdims=True)
    both = ((counts > 0) & (rest > 0))[:, :, None]
    # Over a client's classes: one class alone says too little of how much is chance.
    weight = np.where(both, n, 0.0)
    excess = (weight * (squared - chance)).sum(axis=1, keepdims=True)
    whole = (weight * squared).sum(axis=1, keepdims=True)
    kept = np.clip(excess / np.maximum(whole, 1e-12), 0.0, 1.0)
    return np.where(both, others + kept * (own - others), own)


def _root(covariance: Floats) -> Floats:
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).T)


def _sums(summary: Summary) -> _Sums:
    counts = summary.counts
    sums = summary.sums.astype(np.float64)
    rows, whole = float(counts.sum()), sums.sum(axis=0)
    products = np.empty((WIDTH + 1, WIDTH + 1))
    products[:WIDTH, :WIDTH] = summary.gram
    products[WIDTH, :WIDTH] = products[:WIDTH, WIDTH] = whole
    products[WIDTH, WIDTH] = rows
    return _Sums(products, np.vstack([sums.T, counts]), rows)


def _best(sums: _Sums) -> Floats:
    """The ridge model of least generalised cross-validation error."""
    tried = []
    for penalty in PENALTIES:
        scale = np.full(WIDTH + 1, penalty / WIDTH)
        scale[WIDTH] = 1e-6
        inverse = np.linalg.inv(sums.products + np.diag(scale))
        model = inverse @ sums.crossed
        decided = float((inverse * sums.products).sum())
        left = sums.rows - float((model * sums.crossed).sum()) * 2
        left += float((model * (sums.products @ model)).sum())
        tried.append((left / max(1 - decided / sums.rows, 0.05) ** 2, penalty, model))
    return min(tried, key=lambda each: each[:2])[2]


def _accuracy(model: Floats, rows: Floats, labels: Indices) -> float:
    answers = (rows @ model[:WIDTH] + model[WIDTH]).argmax(axis=1)
    return float((answers == labels).mean())
