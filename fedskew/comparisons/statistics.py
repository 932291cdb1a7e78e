"""Numbers over seeds, weights and rounds: intervals, tests, evenness, rank correlation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr
from scipy.stats import t as student


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, its 95 % t-interval and the sample standard deviation.

    With one seed there is only the mean: the others are NaN.
    """

    mean: float
    low: float
    high: float
    n: int
    std: float = math.nan

    @property
    def half(self) -> float:
        return self.high - self.mean

    @property
    def is_constant(self) -> bool:
        """Whether all seeds gave the same number: a width of nothing is then no certainty.

        >>> interval([0.5, 0.5]).is_constant, interval([0.5, 0.6]).is_constant
        (True, False)
        """
        return self.n > 1 and self.half <= 1e-12 + 1e-9 * abs(self.mean)


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % t-interval.

    >>> found = interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.half, 4), found.std
    (2.0, 2.4841, 1.0)
    """
    n, middle = len(values), mean(values)
    if n < 2 or not math.isfinite(middle):
        return Interval(middle, math.nan, math.nan, n)
    std = statistics.stdev(values)
    half = float(student.ppf(0.975, n - 1)) * std / math.sqrt(n)
    return Interval(middle, middle - half, middle + half, n, std)


def paired(a: Sequence[float], b: Sequence[float]) -> Interval:
    """The interval of a - b, seed by seed: what a seed does to both cancels out.

    >>> found = paired([0.7, 0.9, 0.8], [0.6, 0.8, 0.7])
    >>> round(found.mean, 4), round(found.half, 4)
    (0.1, 0.0)
    """
    return interval([x - y for x, y in zip(a, b, strict=True)])


def estimate(mean: float, variance: float, freedom: float, n: int = 1) -> Interval:
    """The 95 % interval of a mean whose variance was estimated with some degrees of freedom.

    >>> found = estimate(0.5, 0.01, math.inf)
    >>> round(found.low, 3), round(found.high, 3)
    (0.304, 0.696)
    """
    if not (math.isfinite(mean) and math.isfinite(variance)):
        return Interval(mean, math.nan, math.nan, n)
    half = float(student.ppf(0.975, freedom)) * math.sqrt(variance) if variance > 0 else 0.0
    return Interval(mean, mean - half, mean + half, n)


def welch_freedom(parts: Iterable[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances, each with its own (Welch and Satterthwaite).

    >>> welch_freedom([(0.5, 4.0), (0.5, 4.0)]), welch_freedom([(1.0, 3.0), (0.0, 9.0)])
    (8.0, 3.0)
    """
    found = [(variance, freedom) for variance, freedom in parts if variance > 0]
    if not found:
        return math.inf
    spread = sum(variance**2 / freedom for variance, freedom in found)
    return math.inf if spread == 0 else sum(variance for variance, _ in found) ** 2 / spread


def p_value(found: Interval, bar: float = 0.0) -> float:
    """Of the two-sided t-test that the mean is ``bar``; NaN where there is no spread to test by.

    >>> found = interval([1.0, 2.0, 3.0])
    >>> round(p_value(found), 4), p_value(found, bar=2.0), round(p_value(found, found.low), 4)
    (0.0742, 1.0, 0.05)
    """
    if not math.isfinite(found.half) or found.is_constant:
        return math.nan
    error = found.half / float(student.ppf(0.975, found.n - 1))
    return float(2 * student.sf(abs(found.mean - bar) / error, found.n - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for being several, step down (Holm 1979): all below 0.05 hold together at 5 %.

    What could not be tested (NaN) stays so, and does not count.

    >>> holm([0.04, 0.01, math.nan, 0.03])
    [0.06, 0.03, nan, 0.06]
    """
    tested = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(tested):
        least = max(least, min(1.0, (len(tested) - rank) * p))
        adjusted[place] = least
    return adjusted


def mean(values: Iterable[float]) -> float:
    """The mean; NaN of nothing."""
    found = [float(value) for value in values]
    if not found:
        return math.nan
    # The exact sum does not take infinities of both signs.
    finite = all(map(math.isfinite, found))
    return statistics.fmean(found) if finite else sum(found) / len(found)


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
    finite = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if len(finite) < 3 or any(np.ptp(side) == 0 for side in zip(*finite, strict=True)):
        return math.nan
    return float(spearmanr(finite).statistic)
