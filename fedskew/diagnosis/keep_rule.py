"""Which candidate a client keeps: empirical Bayes over all clients, against its model alone.

For candidate j at client k, d is the mean over the client's n samples of how much better it scores
than the client's model trained alone. Its variance s² is that of the client's samples, with
``BORROWED`` samples of all clients added: (Σd² + 4·v)/((n + 4)·n), v the mean of all squares.

Few samples of one client tell little, but all clients together tell how much a candidate is worth
and how much that varies: the true difference at a client is taken as drawn from N(μ_j, τ_j²), with
μ and τ² by Paule and Mandel (1982). Given d it is normal again, with

    B = s²/(s² + τ²),   mean B·μ + (1 - B)·d,   variance (1 - B)·s² + B²·Var μ.

A client keeps the candidate with the largest mean less ``CAUTION`` deviations, if that is above
zero; else its model alone. Veto: no candidate is kept whose d is below -s, whatever others saw.
All that a client would have to send are d, Σd² and n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]
CAUTION = 0.75
"""Posterior deviations that are taken off a candidate's mean."""
BORROWED = 4.0
"""Samples of all clients that are added, so that nobody is certain of what few samples show."""
NOTHING = 1e-30
"""The variance where no sample of anybody differs."""
HALVINGS = 100


@dataclass(frozen=True)
class Evidence:
    """What clients tell of one candidate; without samples the variance is infinite."""

    difference: Floats
    variance: Floats
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, differences: Sequence[Floats]) -> Evidence:
        """Of every client's differences, sample by sample.

        >>> one = Evidence.of([np.array([1.0, 0.0, 0.0, 1.0]), np.array([])])
        >>> one.difference.tolist(), one.variance.tolist()
        ([0.5, 0.0], [0.125, inf])
        """
        rows = np.array([len(each) for each in differences], np.int64)
        mean = np.array([each.mean() if len(each) else 0.0 for each in differences])
        squares = np.array([float(np.square(each).sum()) for each in differences])
        pooled = squares.sum() / max(1, rows.sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = (squares + BORROWED * pooled) / ((rows + BORROWED) * rows)
        return cls(mean, np.where(rows > 0, np.maximum(variance, NOTHING), np.inf), rows)


@dataclass(frozen=True)
class Prior:
    """How a candidate's true differences lie over clients, and how sure ``mean`` is."""

    mean: float
    spread: float
    error: float


def prior_of(evidence: Evidence) -> Prior:
    """By Paule and Mandel: τ² makes the weighted squares around μ as large as expected."""
    known = np.isfinite(evidence.variance)
    d, v = evidence.difference[known], evidence.variance[known]
    if not len(d):
        return Prior(0.0, 0.0, math.inf)
    low, high = 0.0, float(np.square(d - d.mean()).sum()) + 1e-300
    if _excess(d, v, 0.0) <= 0:
        high = 0.0
    for _ in range(HALVINGS if high else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if _excess(d, v, middle) > 0 else (low, middle)
    weights = 1 / (v + high)
    return Prior(
        float((weights * d).sum() / weights.sum()), high**0.5, float(weights.sum()) ** -0.5
    )


def _excess(d: Floats, v: Floats, spread: float) -> float:
    weights = 1 / (v + spread)
    middle = (weights * d).sum() / weights.sum()
    return float((weights * np.square(d - middle)).sum()) - (len(d) - 1)


@dataclass(frozen=True)
class Choice:
    """What a client keeps (none: its model alone), and what is expected of it.

    ``gain`` is the expected difference to the model alone, ``worse`` the probability that it is
    below zero.
    """

    kept: str | None
    gain: float = 0.0
    worse: float = 0.0


def choose(told: Mapping[str, Evidence]) -> list[Choice]:
    """What every client keeps, given all clients' evidence of each candidate."""
    means, deviations, against = [], [], []
    for evidence in told.values():
        mean, deviation = posterior(evidence, prior_of(evidence))
        means.append(mean)
        deviations.append(deviation)
        against.append((evidence.difference < -np.sqrt(evidence.variance)) | (evidence.rows == 0))
    names = list(told)
    if not names:
        return []
    mean, deviation = np.array(means), np.array(deviations)
    score = np.where(np.array(against), -np.inf, mean - CAUTION * deviation)
    best = score.argmax(axis=0)
    return [
        Choice(names[j], float(mean[j, k]), below_zero(mean[j, k], deviation[j, k]))
        if score[j, k] > 0
        else Choice(None)
        for k, j in enumerate(best)
    ]


def posterior(evidence: Evidence, prior: Prior) -> tuple[Floats, Floats]:
    """Mean and deviation of the true difference at every client."""
    variance = evidence.variance
    known = np.isfinite(variance)
    total = np.where(known, variance, 1.0) + prior.spread**2
    shrink = np.where(known, np.where(known, variance, 0.0) / total, 1.0)
    mean = shrink * prior.mean + (1 - shrink) * evidence.difference
    left = np.where(known, (1 - shrink) * np.where(known, variance, 0.0), prior.spread**2)
    return mean, np.sqrt(left + np.square(shrink * prior.error))


def below_zero(mean: float, deviation: float) -> float:
    """The probability that a normal difference is below zero."""
    if deviation == 0:
        return float(mean < 0)
    return float(ndtr(-mean / deviation))
