"""What a run measured round by round, and the rounds that the rules of selection pick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.comparisons.selection import Curves, chosen, curves_of
from fedskew.federate.metrics import Summary, summarise
from fedskew.papers.scores import At
from fedskew.runs.experiment import Run
from fedskew.runs.rows import Rows

DIVERGENCE = "divergence "
"""Metrics of how far an entry of the clients' models is apart begin so; its name follows."""


@dataclass(frozen=True)
class ByRound:
    """The main scores of a finished run by round, and what the rules of selection look at."""

    rows: Rows
    """One metric of models as trained."""
    selection: Curves

    def round_of(self, at: At) -> int:
        """The round a rule of selection picks; 0, which no round is, where it has no data."""
        if isinstance(at, int):
            return at
        return chosen("validation" if at == "selected" else at, self.selection) or 0

    def ood(self, at: At) -> float:
        """The score out of domain in that round."""
        found = self.selection.ood.get(self.round_of(at))
        return math.nan if found is None else found.value

    def summary(self, at: At, model: str, on: str, split: str) -> Summary:
        """The clients' scores in that round."""
        found = self.rows.where(round=self.round_of(at), model=model, on=on, split=split)
        return summarise(found.value.tolist(), self.selection.higher_is_better)

    def curve(self, model: str, on: str) -> dict[int, float]:
        """The mean test score by round."""
        return self.rows.where(model=model, on=on, split="test").curve(np.mean)


def by_round(run: Run, metric: str, folds: Sequence[Run] = ()) -> ByRound:
    """The main scores of a run; ``folds`` are those that leave one of its clients out."""
    return ByRound(run.results.as_trained.where(metric=metric), curves_of(run, folds))


def divergences(rows: Rows) -> dict[int, dict[str, list[float]]]:
    """By round and entry of the model: how far every client's is from the clients' mean."""
    found: dict[int, dict[str, list[float]]] = {}
    for metric in rows.names("metric"):
        if metric.startswith(DIVERGENCE):
            for number, values in rows.where(metric=metric).by_round().items():
                found.setdefault(number, {})[metric.removeprefix(DIVERGENCE)] = values
    return {number: found[number] for number in sorted(found)}
