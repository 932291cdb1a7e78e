"""Whether two lists of counts may be of one law."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedskew.data.profile import Counts

EXPECTED = 5.0
"""Bins are joined until so many rows are expected in each, as the test needs."""


def two_samples(before: Counts, now: Counts) -> float:
    """Pearson's test that two lists of counts are of one law; NaN where it needs more rows.

    Neighbouring bins are joined until enough rows are expected in each.

    >>> round(two_samples(np.array([50, 50]), np.array([30, 20])), 4)
    0.2472
    """
    from scipy.stats import chi2_contingency

    table = _joined(np.stack([before, now]).astype(np.float64))
    if table.shape[1] < 2:
        return math.nan
    return float(chi2_contingency(table, correction=False).pvalue)


def _joined(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns joined from left to right until each is large enough; the rest joins the last."""
    share = table.sum(axis=1).min() / table.sum()
    joined: list[NDArray[np.float64]] = []
    held = np.zeros(2)
    for column in table.T:
        held = held + column
        if held.sum() * share >= EXPECTED:
            joined.append(held)
            held = np.zeros(2)
    if joined:
        joined[-1] = joined[-1] + held
    return np.stack(joined, axis=1) if joined else np.zeros((2, 0))
