"""What a ladder would have chosen in a full bake-off, by the same rules as the product's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedskew.comparisons.halving import Ladder, going_on, ladder, ranked
from fedskew.federate.rounds import Choice, Score

ALONE = "local"
Shape = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Full:
    """A full bake-off: the lines of the methods that can run there, in the declared order."""

    case: str
    seed: int
    lines: Mapping[str, dict[str, Any]]

    @property
    def higher(self) -> bool:
        return bool(next(iter(self.lines.values()))["higher"])

    @property
    def rounds(self) -> int:
        return max(map(int, next(iter(self.lines.values()))["validation"]))

    def validation(self, method: str, rounds: int) -> Score:
        """What a method is judged by after so many rounds."""
        line = self.lines[method]
        if line["tuned"]:
            return Score(_mean(line["tuned"][str(rounds)]["validation"]))
        return self._curve(method)[self._selected(method, rounds)]

    def test(self, method: str) -> float:
        """What it scores in the end, on test data, each client counting the same."""
        line = self.lines[method]
        if line["tuned"]:
            return _mean(line["tuned"][str(self.rounds)]["test"])
        return _mean(line["test"][str(self._selected(method, self.rounds))])

    @property
    def best(self) -> float:
        """The best test score of all methods to the end."""
        found = [self.test(name) for name in self.lines]
        return max(found) if self.higher else min(found)

    def regret(self, method: str) -> float:
        """By how much it falls short of the best, in points.

        Whoever always takes a method that cannot run has clients train alone.
        """
        short = self.best - self.test(method if method in self.lines else ALONE)
        return 100 * (short if self.higher else -short)

    def by_validation(self) -> str:
        """Which method the full bake-off takes, without a look at test data."""
        scores = {name: self.validation(name, self.rounds) for name in self.lines}
        return ranked(scores, self.higher)[0]

    def _curve(self, method: str) -> dict[int, Score]:
        line = self.lines[method]
        return {
            int(number): Score.of(
                [value for value, _ in found.values()],
                [value for value, _ in line["loss"].get(number, {}).values()],
            )
            for number, found in line["validation"].items()
        }

    def _selected(self, method: str, rounds: int) -> int:
        choice = Choice()
        for number, score in sorted(self._curve(method).items()):
            if number <= rounds:
                choice = choice.see(number, score, self.higher)
        return choice.round


@dataclass(frozen=True)
class Chosen:
    """What a ladder chose, and the part of the full bake-off's cost in rounds and in bytes."""

    method: str
    rounds: float
    bytes: float


def climb(full: Full, shape: Shape) -> Chosen:
    """Successive halving in hindsight."""
    steps: Ladder = ladder(shape, len(full.lines) - 1, full.rounds)
    left, reached = list(full.lines), dict.fromkeys(full.lines, 0)
    for rung in steps:
        scores = {name: full.validation(name, rung.rounds) for name in left}
        reached |= dict.fromkeys(left, rung.rounds)
        best = ranked(scores, full.higher)[0]
        left = going_on(scores, rung.keeps, ALONE, full.higher)
    each = {name: sum(line["bytes"].values()) for name, line in full.lines.items()}
    sent = sum(each[name] * reached[name] / full.rounds for name in reached)
    return Chosen(
        best, sum(reached.values()) / (full.rounds * len(reached)), sent / sum(each.values())
    )


def bakeoffs(lines: Sequence[dict[str, Any]], methods: Sequence[str]) -> list[Full]:
    """The bake-offs of which all methods are there."""
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["case"], line["seed"]), {})[line["method"]] = line
    return [
        Full(case, seed, {n: its[n] for n in methods if "refused" not in its[n]})
        for (case, seed), its in found.items()
        if its.keys() >= set(methods)
    ]


def _mean(clients: Mapping[str, Sequence[float]]) -> float:
    return sum(value for value, _ in clients.values()) / len(clients)
