"""A run's main scores round by round, read once: a page looks at hundreds of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedskew.experiment import Run
from fedskew.federate.planning import MAIN
from fedskew.folder import METRICS
from fedskew.score import Row, Summary, summarise
from fedskew.selection import Curves, chosen, curves_of

Key = tuple[int, str, str, str]
"""Round, model, on whom, split."""


@dataclass(frozen=True)
class MainRows(Run):
    """A run of which only one metric of models as trained is read, and only once."""

    metric: str

    @cached_property
    def result(self) -> dict[str, Any]:
        return super().result

    @cached_property
    def _kept(self) -> list[Row]:
        # Taking lines apart is what costs time, so most are told by their text alone.
        wanted = f'"metric": {json.dumps(self.metric)}'.encode()
        lines = (self.path / METRICS).read_bytes().splitlines()
        kept = b",".join(line for line in lines if wanted in line)
        return [
            Row(**line)
            for line in json.loads(b"[" + kept + b"]")
            if (line["stage"], line["adapted"], line["metric"]) == (MAIN, "none", self.metric)
        ]

    def rows(self) -> list[Row]:
        return self._kept


@dataclass(frozen=True)
class ByRound:
    """The main scores of a finished run by round, and what the rules of selection look at."""

    values: Mapping[Key, Sequence[float]]
    """One for every client; of the central test set one alone."""
    selection: Curves

    def round_of(self, at: str) -> int:
        """The round a rule of selection picks; 0, which no round is, where it has no data."""
        return chosen("validation" if at == "selected" else at, self.selection) or 0

    def ood(self, at: str) -> float:
        """The score out of domain in that round."""
        return self.selection.ood.get(self.round_of(at), math.nan)

    def summary(self, at: str, model: str, on: str, split: str) -> Summary:
        """The clients' scores in that round."""
        values = self.values.get((self.round_of(at), model, on, split), ())
        return summarise(values, self.selection.higher_is_better)

    def curve(self, model: str, on: str) -> dict[int, float]:
        """The mean test score by round."""
        rounds = sorted(n for n, *what in self.values if what == [model, on, "test"])
        return {n: float(np.mean(self.values[n, model, on, "test"])) for n in rounds}


def by_round(run: Run, metric: str, folds: Sequence[Run] = ()) -> ByRound:
    """Read a run, and those that leave one of its clients out."""
    mine = MainRows(run.path, metric)
    values: dict[Key, list[float]] = {}
    for row in mine.rows():
        values.setdefault((row.round, row.model, row.on, row.split), []).append(row.value)
    return ByRound(values, curves_of(mine, [MainRows(fold.path, metric) for fold in folds]))
