"""A run's main scores round by round, and the rounds that the rules of selection pick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.comparisons.selection import Curves, chosen, curves_of
from fedskew.federate.metrics import Summary, summarise
from fedskew.runs.experiment import Run
from fedskew.runs.rows import Rows


@dataclass(frozen=True)
class ByRound:
    """The main scores of a finished run by round, and what the rules of selection look at."""

    rows: Rows
    """One metric of models as trained."""
    selection: Curves

    def round_of(self, at: str) -> int:
        """The round a rule of selection picks; 0, which no round is, where it has no data."""
        return chosen("validation" if at == "selected" else at, self.selection) or 0

    def ood(self, at: str) -> float:
        """The score out of domain in that round."""
        return self.selection.ood.get(self.round_of(at), math.nan)

    def summary(self, at: str, model: str, on: str, split: str) -> Summary:
        """The clients' scores in that round."""
        found = self.rows.where(round=self.round_of(at), model=model, on=on, split=split)
        return summarise(found.value.tolist(), self.selection.higher_is_better)

    def curve(self, model: str, on: str) -> dict[int, float]:
        """The mean test score by round."""
        return self.rows.where(model=model, on=on, split="test").curve(np.mean)


def by_round(run: Run, metric: str, folds: Sequence[Run] = ()) -> ByRound:
    """The main scores of a run; ``folds`` are those that leave one of its clients out."""
    return ByRound(run.results.as_trained.where(metric=metric), curves_of(run, folds))
