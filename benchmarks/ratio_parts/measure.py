"""How right the weights of a finished run are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ratio_parts.plan import ESTIMATORS, Setting
from fedskew.comparisons.runner import FederationCache
from fedskew.papers.machine import UNKNOWN
from fedskew.papers.reading import MADE_WITH
from fedskew.runs.experiment import Run
from fedskew.runs.findings import load_arrays
from fedskew.runs.folder import RunFolder
from fedskew.store import read_json

MEASURES = (
    "pearson", "spearman", "slope", "effective", "true_effective", "error", "apart", "equal",
)  # fmt: skip
"""``effective`` are shares of all samples; ``apart`` is the mean of |α - α*|, ``error`` the same
relative to that of equal weights; ``equal`` is the share of clients left with equal weights."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Result:
    """What one estimator reached on one federation: means over its clients."""

    setting: Setting
    seed: int
    estimator: str
    measures: dict[str, float]
    path: Path
    seconds: float
    code: str


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and where they lie."""

    mean: float
    least: float
    most: float


def finished(setting: Setting, seed: int, out: Path) -> list[Result]:
    """One result an estimator; none while the run of any is missing, so that means compare."""
    found = []
    data = FederationCache(None)
    for estimator in ESTIMATORS:
        identity = data.identity(setting.config(estimator, seed))
        folder = RunFolder.of(identity, out / setting.folder)
        if not folder.is_finished:
            return []
        summary, stamp = Run(folder.path).result, folder.path / MADE_WITH
        code = read_json(stamp)["code"] if stamp.is_file() else UNKNOWN
        found.append(
            Result(setting, seed, estimator, over_clients(summary, folder.path), folder.path,
                   summary["seconds"], code)
        )  # fmt: skip
    return found


def over_clients(summary: dict[str, Any], path: Path) -> dict[str, float]:
    """The mean of each measure over a run's clients; of slopes the median.

    The slope of weights that hardly differ may be anything: one such client would be the mean.
    Where no client has a number, there is none: NaN.
    """
    weights = load_arrays(path, "sample_weights")
    by_client = [
        of_client(entry, weights["weight"][own], weights["truth"][own])
        for name, entry in summary["sample_weights"].items()
        for own in [weights["client"] == name]
    ]
    return {
        measure: _middle(measure, [found[measure] for found in by_client]) for measure in MEASURES
    }


def _middle(measure: str, values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    return median(known) if measure == "slope" else fmean(known)


def of_client(
    entry: dict[str, Any], weights: NDArray[np.float32], log_ratio: NDArray[np.float32]
) -> dict[str, float]:
    """A client's measures, from what its run told and from every weight.

    Weights that are all equal correlate with nothing: 0. Where the truth is that all are equal,
    there is nothing to correlate with, and no error to be relative to: NaN.
    """
    truth = entry["truth"]
    ours, true = scaled(weights.astype(np.float64)), true_weights(log_ratio.astype(np.float64))
    apart, of_equal = (float(np.abs(w - true).mean()) for w in (ours, np.ones(len(true))))
    alike = not np.ptp(log_ratio)
    none = math.nan if alike else 0.0
    return {
        "pearson": none if truth["pearson"] is None else truth["pearson"],
        "spearman": none if truth["spearman"] is None else truth["spearman"],
        "slope": math.nan if alike or truth["slope"] is None else truth["slope"],
        "effective": entry["effective"] / entry["n"],
        "true_effective": truth["effective"] / entry["n"],
        "error": math.nan if alike else apart / of_equal,
        "apart": apart,
        "equal": float(entry["trouble"] != 0),
    }


def true_weights(log_ratio: Floats) -> Floats:
    """What weights should be, with a mean of 1.

    >>> true_weights(np.log([2.0, 6.0])).round(6).tolist()
    [0.5, 1.5]
    """
    # Relative to the largest, so that no exponential is infinite.
    return scaled(np.exp(log_ratio - log_ratio.max()))


def scaled(weights: Floats) -> Floats:
    return np.asarray(weights / weights.mean())


def over_seeds(results: Sequence[Result], measure: str) -> Spread:
    """Of the results of one federation and estimator; NaN where no seed has a number."""
    values = [result.measures[measure] for result in results]
    known = [value for value in values if not math.isnan(value)] or [math.nan]
    return Spread(fmean(known), min(known), max(known))
