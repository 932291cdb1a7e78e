"""The runs of a suite's matrix in one setting: spans of its pairs, and what each side changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fedskew.comparisons.selection import RULES
from fedskew.papers.format import Suite
from fedskew.papers.measure import Measured
from fedskew.papers.pairs import Matrix, pair
from fedskew.papers.scores import At, ScoreName
from fedskew.papers.statistics import Interval, interval, mean
from fedskew.papers.verdict import Results
from fedskew.views.domains import CENTRAL_TEST, UNSEEN

AT: dict[str, At] = {
    "last": "last", "validation": "selected", "left-out": "left-out", "oracle": "oracle",
}  # fmt: skip
"""What scores call a rule of selection."""


@dataclass(frozen=True)
class Board:
    """Objectives x aggregators; a row or column of which nothing ran is not there."""

    matrix: Matrix
    runs: Mapping[tuple[str, str, int], Measured]
    """By objective, aggregator and seed."""

    @property
    def rows(self) -> list[str]:
        ran = {objective for objective, _, _ in self.runs}
        return [objective for objective in self.matrix.rows if objective in ran]

    @property
    def columns(self) -> list[str]:
        ran = {aggregator for _, aggregator, _ in self.runs}
        return [aggregator for aggregator in self.matrix.columns if aggregator in ran]

    @property
    def any_run(self) -> Measured:
        return next(iter(self.runs.values()))

    @property
    def target(self) -> str:
        """On whom a score out of domain is taken."""
        return UNSEEN if len(self.any_run.by_round.rows.where(on="unseen")) else CENTRAL_TEST

    @cached_property
    def rules(self) -> list[str]:
        """The rules of selection that have numbers."""
        return [
            rule
            for rule in RULES
            if any(not math.isnan(run.score("ood", AT[rule])) for run in self.runs.values())
        ]

    def span(self, objective: str, aggregator: str, score: ScoreName, rule: str) -> Interval:
        """A pair's score over the seeds."""
        mine = [r for (o, a, _), r in self.runs.items() if (o, a) == (objective, aggregator)]
        return interval([run.score(score, AT[rule]) for run in mine])

    def spans(self, score: ScoreName, rule: str) -> dict[tuple[str, str], Interval]:
        return {(o, a): self.span(o, a, score, rule) for o in self.rows for a in self.columns}

    def of_objective(self, objective: str, rule: str) -> Interval:
        """Its gain over the plain one: mean over aggregators, then over seeds."""
        plain = self.matrix.plain
        return self._gain((((objective, a), (plain, a)) for a in self.columns), rule)

    def of_aggregator(self, aggregator: str, rule: str) -> Interval:
        """Its gain over the mean: mean over objectives, then over seeds."""
        usual = self.matrix.mean
        return self._gain((((o, aggregator), (o, usual)) for o in self.rows), rule)

    def _gain(
        self, pairs: Iterable[tuple[tuple[str, str], tuple[str, str]]], rule: str
    ) -> Interval:
        """Pairs of pairs on the same seed; the seeds' means are what an interval is about."""
        sign = 1 if self.any_run.higher_is_better("ood") else -1
        by_seed: dict[int, list[float]] = {}
        for mine, other in pairs:
            for (objective, aggregator, seed), run in self.runs.items():
                partner = self.runs.get((*other, seed))
                if (objective, aggregator) != mine or partner is None:
                    continue
                gain = sign * (run.score("ood", AT[rule]) - partner.score("ood", AT[rule]))
                if not math.isnan(gain):
                    by_seed.setdefault(seed, []).append(gain)
        return interval([mean(gains) for gains in by_seed.values()])


def board(suite: Suite, setting: str, results: Results) -> Board | None:
    """The matrix of a setting; None where none of its pairs ran."""
    matrix = suite.matrix
    if matrix is None:
        return None
    seeds = {arm: [s for where, a, s in results if (where, a) == (setting, arm)]
             for arm in (a.name for a in matrix.arms)}  # fmt: skip
    runs = {
        (o, a, seed): results[setting, pair(o, a), seed]
        for o in matrix.rows
        for a in matrix.columns
        for seed in seeds[pair(o, a)]
    }
    return Board(matrix, runs) if runs else None
