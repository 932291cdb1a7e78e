"""Numbers over seeds, weights and rounds: intervals, evenness, rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % t-interval; with one seed there is no interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        return self.high - self.mean


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % t-interval.

    >>> found = interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.half, 4)
    (2.0, 2.4841)
    """
    n = len(values)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(np.mean(values))
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    if not math.isfinite(mean):
        return Interval(mean, math.nan, math.nan, n)
    half = float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def evenness(weights: Sequence[float]) -> float:
    """Entropy of weights over that of as many equal ones; NaN where there is nothing to share.

    >>> evenness([0.25] * 4), evenness([1.0, 0.0]), round(evenness([3.0, 1.0]), 4)
    (1.0, 0.0, 0.8113)
    """
    total = sum(weights)
    if len(weights) < 2 or not total > 0:
        return math.nan
    shares = [weight / total for weight in weights if weight > 0]
    return max(0.0, -sum(share * math.log(share) for share in shares) / math.log(len(weights)))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's correlation; NaN for fewer than three pairs, or where one side never changes.

    >>> rank_correlation([(1, 10), (2, 30), (3, 20)])
    0.5
    """
    finite = [pair for pair in pairs if all(math.isfinite(value) for value in pair)]
    ranks = [rankdata(side) for side in zip(*finite, strict=True)]
    if len(finite) < 3 or any(np.ptp(side) == 0 for side in ranks):
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return float(np.mean(values)) if values else math.nan
