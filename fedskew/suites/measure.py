"""What a finished run scored, by the names claims use, and intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student

from fedskew.experiment import MAIN, Run
from fedskew.score import CENTRAL, Row
from fedskew.store import read_json
from fedskew.suites.entries import Headline, ScoreName
from fedskew.suites.scores import CENTRAL_METRICS, LOSSES, NEUTRAL, SHARES, WEIGHTS

MADE_WITH = "made-with.json"
"""In a run's folder: the code of the suite's call that finished it."""


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


@dataclass(frozen=True)
class Measured:
    """One finished run, read for its scores on test data; its curve follows the headline."""

    run: Run
    headline: Headline = "clients"

    @cached_property
    def result(self) -> dict[str, Any]:
        return self.run.result

    @cached_property
    def curve(self) -> dict[int, float]:
        """The headline score round by round: the clients' mean of the main model, or central."""
        if self.headline == "central":
            return self.central_curve
        return self._over_rounds(self.run.rows(), self.result["primary_model"], "seen")

    @cached_property
    def central_curve(self) -> dict[int, float]:
        """The global model's main score on the central test set, round by round."""
        return self._over_rounds(self._few, "global", "central")

    def _over_rounds(self, rows: Sequence[Row], model: str, on: str) -> dict[int, float]:
        values: dict[int, list[float]] = {}
        for row in rows:
            if (
                row.stage == MAIN and row.model == model and row.on == on
                and row.adapted == "none" and row.split == "test"
                and row.metric == self.result["primary_metric"]
            ):  # fmt: skip
                values.setdefault(row.round, []).append(row.value)
        return {number: float(np.mean(scores)) for number, scores in sorted(values.items())}

    @cached_property
    def _few(self) -> list[Row]:
        """Rows about the central test set and by the server: few enough to be kept."""
        return [
            row
            for row in self.run.rows()
            if row.stage == MAIN and (row.on == "central" or row.split == "server")
        ]

    @cached_property
    def divergences(self) -> dict[int, dict[str, list[float]]]:
        """By round and entry of the model: how far every client's is from the clients' mean."""
        found: dict[int, dict[str, list[float]]] = {}
        for row in self._few if self._has(split="server", metric="divergence ") else ():
            name, space, entry = row.metric.partition(" ")
            if row.split == "server" and name == "divergence" and space:
                found.setdefault(row.round, {}).setdefault(entry, []).append(row.value)
        return {number: found[number] for number in sorted(found)}

    def by_client(self, metric: str) -> dict[str, float]:
        """Every client's test score of the main model after the last round."""
        return {
            row.client: row.value
            for row in self.run.rows()
            if row.stage == MAIN and row.round == self.result["rounds"]
            and row.model == self.result["primary_model"] and row.on == "seen"
            and row.adapted == "none" and row.split == "test" and row.metric == metric
        }  # fmt: skip

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
        """Whether more speaks for an arm; of what is neither good nor bad it does."""
        if score in NEUTRAL or score in SHARES:
            return True
        if score in LOSSES or score in ("rounds", "swing"):
            return False
        return bool(self.result["higher_is_better"])

    def score(self, score: ScoreName, at: str = "last", target: float | None = None) -> float:
        """A score by its name (``scores.MEANINGS`` says what each is); NaN where there is none.

        ``at`` is "last" or "selected", a round; ``target`` is what "rounds" has to reach.
        """
        if score in WEIGHTS:
            return self._found(at, "personal", "seen", WEIGHTS[score], split="server")
        if score in CENTRAL_METRICS:
            return self._central(CENTRAL_METRICS[score], at)
        if score == "rounds":
            return self._rounds_to(math.inf if target is None else target)
        if score == "swing":
            late = list(self.curve.values())[len(self.curve) // 2 :]
            return float(np.abs(np.diff(late)).mean()) if len(late) > 1 else math.nan
        if score == "first":
            return next(iter(self.central_curve.values()), math.nan)
        if score == "follows":
            return self._follows()
        if score == "divergence":
            return _mean([v for by in self._divergence_at(at).values() for v in by])
        if score == "own-central":
            rows = self._own_central(self.result["primary_metric"], at)
            return _mean([row.value for row in rows if row.client != CENTRAL])
        if score == "weight-entropy":
            return evenness(self._weights(at))
        if score == "kept":
            weights = self._weights(at)
            return float(sum(weight > 0 for weight in weights)) if weights else math.nan
        metric, main = self.result["primary_metric"], self.result["primary_model"]
        if score == "central":
            return self._found(at, "global", "central", metric)
        if score == "own-reconstruction":
            return self._found(at, main, "seen", "reconstruction")
        return self._found(
            at, main, "seen", metric,
            split="validation" if score == "validation" else "test",
            adapted=score == "fine-tuned",
            of="worst" if score == "worst" else "mean",
        )  # fmt: skip

    def _found(
        self,
        at: str,
        model: str,
        on: str,
        metric: str,
        *,
        split: str = "test",
        adapted: bool = False,
        of: str = "mean",
    ) -> float:
        """What the run's summary says."""
        wanted = {"at": at, "model": model, "on": on, "metric": metric, "split": split}
        for entry in self.result["scores"]:
            if wanted.items() <= entry.items() and (entry["adapted"] != "none") == adapted:
                return float(entry[of])
        return math.nan

    def _has(self, metric: str, **wanted: str) -> bool:
        """Whether the summary knows such a metric: the rows of most runs need not be read."""
        return any(
            entry["metric"].startswith(metric) and wanted.items() <= entry.items()
            for entry in self.result["scores"]
        )

    def _round(self, at: str) -> int:
        return int(self.result["rounds" if at == "last" else "selected_round"])

    def _central(self, metric: str, at: str) -> float:
        """Of the global model; where there is none, of the clients' models together."""
        found = self._found(at, "global", "central", metric)
        if not math.isnan(found):
            return found
        rows = self._own_central(metric, at)
        return _mean([row.value for row in rows if row.client == CENTRAL])

    def _own_central(self, metric: str, at: str) -> list[Row]:
        """Rows of the clients' models on the central test set: of each, and of all together."""
        if not self._has(metric, model="personal", on="central"):
            return []
        wanted = (self._round(at), "personal", "central", "none", "test", metric)
        return [
            row
            for row in self._few
            if (row.round, row.model, row.on, row.adapted, row.split, row.metric) == wanted
        ]

    def _weights(self, at: str) -> list[float]:
        """Every client's weight in the global model; who was not asked has none."""
        if not self._has("weight", split="server"):
            return []
        wanted = (self._round(at), "server", "weight")
        found = [row.value for row in self._few if (row.round, row.split, row.metric) == wanted]
        clients = max(e["clients"] for e in self.result["scores"] if e["on"] == "seen")
        return found + [0.0] * (clients - len(found)) if found else []

    def _divergence_at(self, at: str) -> dict[str, list[float]]:
        return self.divergences.get(self._round(at), {}) if self.divergences else {}

    def _follows(self) -> float:
        if not self.divergences:
            return math.nan
        return rank_correlation(
            [
                (
                    _mean([v for by in self.divergences[now].values() for v in by]),
                    self.central_curve[now] - self.central_curve[before],
                )
                for before, now in pairwise(self.central_curve)
                if now in self.divergences
            ]
        )

    def _rounds_to(self, target: float) -> float:
        higher = self.result["higher_is_better"]
        for number, value in self.curve.items():
            if value >= target if higher else value <= target:
                return float(number)
        return float(self.result["rounds"] + 1)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
