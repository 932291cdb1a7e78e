"""What a finished run scored, by the names claims use, and intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import t as student

from fedskew.experiment import Run
from fedskew.store import read_json
from fedskew.suites.format import ScoreName

MADE_WITH = "made-with.json"
"""In a run's folder: the code of the suite's call that finished it."""

WEIGHTS: dict[ScoreName, str] = {"self-weight": "self_weight", "entropy": "row_entropy"}
"""Scores of the server's weights, and the metric each is recorded as."""

MEANINGS: dict[ScoreName, str] = {
    "clients": "mean score over the clients' own test data",
    "worst": "score of the worst client on its own test data",
    "fine-tuned": "mean score over clients after fine-tuning",
    "validation": "mean score over the clients' validation data",
    "central": "score of the global model on the central test set",
    "rounds": "rounds until the clients' mean test score reaches {target}, fewer is better; a run "
    "that never reaches it counts one round more than it had",
    "swing": "mean change from one scored round to the next over the second half of the rounds, "
    "smaller is better",
    "self-weight": "weight a client has in its own model, mean over clients",
    "entropy": "entropy of the weights a client's model is made with (1 if all are equal, 0 if one "
    "has everything), mean over clients",
}
"""What a page says of each score."""


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
    half = float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


@dataclass(frozen=True)
class Measured:
    """One finished run, read for its scores on test data."""

    run: Run

    @cached_property
    def result(self) -> dict[str, Any]:
        return self.run.result

    @cached_property
    def curve(self) -> dict[int, float]:
        """The clients' mean test score of the main model, round by round."""
        result = self.result
        values: dict[int, list[float]] = {}
        for row in self.run.rows():
            if (
                row.stage == "main" and row.model == result["primary_model"] and row.on == "seen"
                and row.adapted == "none" and row.split == "test"
                and row.metric == result["primary_metric"]
            ):  # fmt: skip
                values.setdefault(row.round, []).append(row.value)
        return {number: float(np.mean(scores)) for number, scores in sorted(values.items())}

    @property
    def code(self) -> str:
        path = self.run.path / MADE_WITH
        return str(read_json(path)["code"]) if path.is_file() else "unknown code"

    @property
    def is_share(self) -> bool:
        return bool(self.result["primary_metric"] == "accuracy")

    @property
    def megabytes(self) -> float:
        sent = self.result["bytes"]
        return float(sent["up"] + sent["down"]) / 1e6

    def higher_is_better(self, score: ScoreName) -> bool:
        """Whether more speaks for an arm; of weights it does, whatever the task."""
        if score in WEIGHTS:
            return True
        return score not in ("rounds", "swing") and bool(self.result["higher_is_better"])

    def score(self, score: ScoreName, at: str = "last", target: float | None = None) -> float:
        """A score by its name; NaN where the run has none such.

        ``clients`` is the mean over clients on their own test data, ``worst`` the worst client,
        ``fine-tuned`` the mean after fine-tuning, ``validation`` the mean on the clients'
        validation data instead, ``central`` the global model on the central test set, ``rounds``
        the first scored round whose mean reaches the target (one more than there were if none
        does), ``swing`` the mean step between scored rounds, second half,
        ``self-weight`` and ``entropy`` the mean over clients of what the server wrote down about
        the weights it made their models with.
        """
        if score in WEIGHTS:
            return self._weight(WEIGHTS[score], at)
        if score == "rounds":
            return self._rounds_to(math.inf if target is None else target)
        if score == "swing":
            late = list(self.curve.values())[len(self.curve) // 2 :]
            return float(np.abs(np.diff(late)).mean()) if len(late) > 1 else math.nan
        central, tuned = score == "central", score == "fine-tuned"
        split = "validation" if score == "validation" else "test"
        for entry in self.result["scores"]:
            if (
                entry["at"] == at and entry["split"] == split
                and entry["metric"] == self.result["primary_metric"]
                and entry["on"] == ("central" if central else "seen")
                and entry["model"] == ("global" if central else self.result["primary_model"])
                and (entry["adapted"] != "none") == tuned
            ):  # fmt: skip
                return float(entry["worst" if score == "worst" else "mean"])
        return math.nan

    def _weight(self, metric: str, at: str) -> float:
        wanted = {
            "at": at, "model": "personal", "on": "seen", "adapted": "none", "split": "server",
            "metric": metric,
        }  # fmt: skip
        for entry in self.result["scores"]:
            if wanted.items() <= entry.items():
                return float(entry["mean"])
        return math.nan

    def _rounds_to(self, target: float) -> float:
        higher = self.result["higher_is_better"]
        for number, value in self.curve.items():
            if value >= target if higher else value <= target:
                return float(number)
        return float(self.result["rounds"] + 1)
