"""How far a model's confidence can be trusted: thresholds and risk-coverage curves."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedskew.errors import ConfigError, DataError

Floats = NDArray[np.float64]

ACCURACY = 0.95
"""How often the answered samples should be right, by default."""
HIGHEST = float(np.nextafter(1.0, 0.0))


class Answered(NamedTuple):
    """The effect of a threshold: the share of samples answered, and how often rightly.

    ``accuracy`` is NaN if nothing is answered.
    """

    coverage: float
    accuracy: float
    samples: int


def answered(confidence: ArrayLike, correct: ArrayLike, threshold: float) -> Answered:
    """Which share of the samples is answered at a threshold, and how often rightly.

    >>> answered([0.9, 0.8, 0.4], [True, False, True], 0.5)
    Answered(coverage=0.6666666666666666, accuracy=0.5, samples=2)
    """
    sure, right = _checked(confidence, correct)
    kept = sure >= threshold
    count = int(kept.sum())
    return Answered(count / len(sure), float(right[kept].mean()) if count else math.nan, count)


def choose_threshold(
    confidence: ArrayLike, correct: ArrayLike, accuracy: float = ACCURACY
) -> float:
    """The smallest threshold whose answered samples are right as often as wished.

    Samples are answered from the threshold up; the candidates are the confidences that occur.
    A threshold only counts if it answers at least 1/(1 - accuracy) samples (20 for 0.95): fewer
    reach the accuracy only without a single error, which is often just luck. If no threshold that
    counts reaches the accuracy, the one that comes nearest is returned, the smallest if several do:
    see :func:`answered` for the accuracy it does reach. Fewer samples than that are refused.
    A threshold chosen on training samples or test samples is too optimistic.

    >>> confidence, correct = [0.9] * 8 + [0.6] * 4, [True] * 8 + [True, False, False, False]
    >>> choose_threshold(confidence, correct, accuracy=0.8)
    0.9
    >>> choose_threshold(confidence, correct, accuracy=0.7)
    0.6
    """
    check_share("accuracy", accuracy)
    sure, right = _checked(confidence, correct)
    fewest = fewest_answered(accuracy)
    if len(sure) < fewest:
        raise DataError(
            f"{len(sure)} samples are too few to choose a threshold for accuracy {accuracy:g} "
            f"by (at least {fewest} are needed): give the threshold itself."
        )
    steps = _steps(sure, right)
    counts = steps.answered >= fewest
    candidates, reached = steps.threshold[counts], 1.0 - steps.risk[counts]
    # Shares of whole numbers: allow for rounding when comparing with the accuracy asked for.
    best = min(float(reached.max()), accuracy) - 1e-12
    return min(float(candidates[reached >= best].min()), HIGHEST)


def fewest_answered(accuracy: float) -> int:
    """How many samples must be answered for their accuracy to be meaningful.

    >>> [fewest_answered(accuracy) for accuracy in (0.5, 0.9, 0.95)]
    [2, 10, 20]
    """
    return math.ceil(1.0 / (1.0 - accuracy) - 1e-9)


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Coverage and risk at every threshold, from the strictest to the one that answers all.

    Coverage is the share of samples answered, risk the share of errors among these. Samples of
    equal confidence are answered together.

    >>> coverage, risk = risk_coverage([0.9, 0.9, 0.7, 0.5], [True, True, False, True])
    >>> coverage.tolist(), risk.round(3).tolist()
    ([0.5, 0.75, 1.0], [0.0, 0.333, 0.25])
    """
    sure, right = _checked(confidence, correct)
    steps = _steps(sure, right)
    return steps.answered / len(sure), steps.risk


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """The area under the risk-coverage curve: the risk, averaged over all coverages.

    Every step of coverage counts with the risk at its end, so without ties it is the mean risk
    over the samples, added from the surest to the least sure. 0 is best.

    >>> round(aurc([0.9, 0.8], [False, True]), 6)  # risks 1 and 1/2
    0.75
    """
    coverage, risk = risk_coverage(confidence, correct)
    return float((np.diff(coverage, prepend=0.0) * risk).sum())


def check_share(name: str, value: float) -> None:
    """Refuse a threshold or an accuracy that is not strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{name} must lie between 0 and 1, both excluded, not {value:g}.")


class _Steps(NamedTuple):
    threshold: Floats
    answered: Floats
    risk: Floats


def _steps(sure: Floats, right: NDArray[np.bool_]) -> _Steps:
    """Every distinct confidence, highest first, with the result of answering from it up."""
    order = np.argsort(-sure, kind="stable")
    ranked, errors = sure[order], np.cumsum(~right[order])
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    count = (last + 1).astype(np.float64)
    return _Steps(ranked[last], count, errors[last] / count)


def _checked(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    sure, right = np.asarray(confidence, np.float64), np.asarray(correct, np.bool_)
    if sure.ndim != 1 or sure.shape != right.shape:
        raise DataError(
            "confidence and correct must be lists of the same length, not of shapes "
            f"{list(sure.shape)} and {list(right.shape)}."
        )
    if not len(sure):
        raise DataError("there are no samples to measure confidence on.")
    if not bool(np.isfinite(sure).all()):
        raise DataError("confidence holds a NaN or infinite value.")
    return sure, right
