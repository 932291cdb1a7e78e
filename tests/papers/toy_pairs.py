"""A tiny suite of pairs, and scores that nobody ran."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedskew.comparisons.selection import Curves
from fedskew.federate.rounds import Score
from fedskew.papers.format import Suite
from fedskew.papers.outcome import ByRound
from fedskew.papers.suite import find_suite
from fedskew.runs.experiment import Run

TOY = """
title = "A matrix"
source = "Nobody 2020"
question = "Which pair?"
headline = "ood"

[defaults]
executor = "threads"
[defaults.federation]
clients = 4
unseen = 1
validation = 0.2
partition = { name = "dirichlet", alpha = 1.0 }
[defaults.model]
name = "logistic"
[defaults.train]
lr = 0.1
rounds = 3

[matrix]
objectives = ["erm", { name = "irm", lam = 2.0 }]
aggregators = ["fedavg", { name = "fedprox", mu = 0.5 }]
objective_config.irm.train = { lr = 0.05, momentum = 0.5 }
aggregator_config.fedprox.train.lr = 0.2

[selection]
folds = 2
arms = ["*+fedavg"]

[scales.smoke]
seeds = 2
settings = ["skewed"]
[scales.desk]
seeds = 1
folds = 0
[scales.desk.by_arm."irm+*".train]
rounds = 7
[scales.paper]
seeds = 3
arms = ["central", "erm+*"]
folds = "all"

[[settings]]
name = "skewed"
label = "Skewed digits"
[[settings]]
name = "shards"
label = "Digits in shards"
arms = ["*+fedavg", "erm+*"]
config.federation = { partition = { name = "shards", shards_per_client = 5 }, unseen = 0 }

[[arms]]
name = "central"
label = "All in one place"
role = "reference"
method = "central"

[[claims]]
name = "plain"
says = "ERM is best."
source = "Nobody 2020"
better = "erm+*"
than = "irm+*"
on = ["skewed"]
score = "ood"
at = "left-out"
"""


PAIRS = ["erm+fedavg", "erm+fedprox", "irm+fedavg", "irm+fedprox"]


def toy_suite(folder: Path, *changes: tuple[str, str]) -> Suite:
    text = TOY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "toy.toml").write_text(text)
    return find_suite(str(folder / "toy.toml"))


@dataclass
class Scores:
    """Stands for a finished run: scores out of domain by rule."""

    values: Mapping[str, float]
    is_share: bool = True
    rising: bool = True
    folds: tuple[Run, ...] = ()
    result: dict[str, Any] = field(default_factory=lambda: {"primary_metric": "accuracy"})
    diverged: bool = False

    def score(self, score: str, at: str = "last", target: float | None = None) -> float:
        return self.values.get(at, math.nan)

    def higher_is_better(self, score: str) -> bool:
        return self.rising

    @property
    def by_round(self) -> ByRound:
        """One round, which is the last and the best."""
        ood = {n: Score(value) for n, value in enumerate(self.values.values(), start=1)}
        return ByRound((), Curves({}, ood, higher_is_better=self.rising))


def stubs(at: str = "selected", **arms: Sequence[float]) -> dict[tuple[str, str, int], Any]:
    """Arms by name, "_" for "+", each with a score for every seed; NaN: it did not run."""
    return {
        ("skewed", arm.replace("_", "+"), seed): Scores({at: value})
        for arm, values in arms.items()
        for seed, value in enumerate(values)
        if not math.isnan(value)
    }
