"""A bake-off by successive halving: runs are made longer rung by rung, and the worse stop early.

Contenders are judged by the mean over clients of their scores on validation data; test data are not
looked at. Scores are noted in a file, so that a repeated command runs nothing again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedskew.comparisons.at_once import Wanted
from fedskew.comparisons.budget import Budget, Spent, prices, total
from fedskew.comparisons.candidates import Field
from fedskew.comparisons.halving import (
    USUAL,
    Ladder,
    Rung,
    TooSmall,
    fitting,
    going_on,
    ladder,
    ranked,
)
from fedskew.comparisons.judging import Judged, judge
from fedskew.comparisons.notes import Notes
from fedskew.comparisons.runner import Runner
from fedskew.config import Config
from fedskew.errors import ConfigError, RunStopped
from fedskew.runs.experiment import Run, Tell
from fedskew.runs.identity import hash_of


@dataclass(frozen=True)
class Climbed:
    """A rung that is done: what everybody scored, in the declared order, and who goes on."""

    rounds: int
    judged: Mapping[str, Judged]
    goes_on: tuple[str, ...]


@dataclass(frozen=True)
class BakeOff:
    """The whole of it. ``twins`` says by name whose scores a contender repeated to the digit."""

    ladder: Ladder
    rungs: tuple[Climbed, ...]
    metric: str
    higher_is_better: bool
    twins: Mapping[str, str]
    stopped: Mapping[str, str]
    elapsed: float
    by_twins: Spent = field(default_factory=Spent)

    @property
    def latest(self) -> dict[str, Judged]:
        """What each candidate scored on its last rung."""
        return {name: found for rung in self.rungs for name, found in rung.judged.items()}

    @property
    def order(self) -> list[str]:
        """Those who trained to the end, the best on validation data first."""
        last = self.rungs[-1].judged
        scores = {name: last[name].score for name in self.rungs[-1].goes_on}
        return ranked(scores, self.higher_is_better)

    @property
    def spent(self) -> Spent:
        return total({name: its.spent for name, its in self.latest.items()}) + self.by_twins


class _Climb:
    """Carries a field of candidates up its ladder."""

    def __init__(
        self, runner: Runner, entered: Field, budget: Budget | None, folder: Path, tell: Tell
    ) -> None:
        self.runner, self.entered, self.budget, self.tell = runner, entered, budget, tell
        self.alone, self.notes = entered.alone.name, Notes.of(folder)
        self.rounds = entered.alone.config.train.rounds
        self.by_name = {each.name: each for each in entered.candidates}
        self.runs = {n: runner.identity(each.config).sha256 for n, each in self.by_name.items()}
        self.key = hash_of([str(budget), self.rounds, list(self.runs.items())])
        self.left = list(self.by_name)
        self.climbed: list[Climbed] = []
        self.twins: dict[str, str] = {}
        self.by_twins = Spent()

    def carry_out(self) -> BakeOff:
        while len(self.climbed) < len(steps := self._planned()):
            self._climb(steps)
        some = self.climbed[-1].judged[self.alone]
        stopped = {n: w for n, run in self.runs.items() if (w := self.notes.stopped.get(run))}
        return BakeOff(
            steps, tuple(self.climbed), some.metric, some.higher_is_better, self.twins, stopped,
            self.notes.seconds.get(self.key, 0.0), self.by_twins,
        )  # fmt: skip

    def _planned(self) -> Ladder:
        """The ladder; where a round's price is not known yet, first one round of everybody."""
        steps, everybody = self.notes.ladder(self.key), len(self.entered.contenders)
        if steps and (steps[-1].rounds == self.rounds or not self.climbed):
            return steps
        if steps:
            steps = (*steps, *self._after_pilot())
        elif self.budget is None:
            steps = ladder(USUAL, everybody, self.rounds)
        elif self.budget.unit == "rounds":
            names = [each.name for each in self.entered.contenders]
            steps = self._fitting(dict.fromkeys(names, 1.0), 1.0, 0)
        else:
            steps = (Rung(1, everybody),)
        self.notes.plan(self.key, steps)
        self.notes.keep()
        return steps

    def _fitting(self, costs: Mapping[str, float], alone: float, begun: int) -> Ladder:
        assert self.budget is not None
        try:
            return fitting(costs, alone, self.rounds, self.budget.amount, begun)
        except TooSmall as error:
            raise self.budget.too_small(error.least) from None

    def _after_pilot(self) -> Ladder:
        """The rest of the ladder, by what the first round of everybody cost."""
        assert self.budget is not None
        first = self.climbed[0]
        spent = {name: found.spent for name, found in first.judged.items()}
        crew = self.runner.crew
        # Rounds that an earlier command has done take no time now, but those to come will.
        busy = total(spent).seconds / (crew.size if crew else 1)
        elapsed = max(self.notes.seconds.get(self.key, 0.0), busy)
        costs = prices(spent, self.budget.unit, elapsed)
        alone = costs.pop(self.alone)
        rest = self._fitting(costs, alone, first.rounds)
        return tuple(rung for rung in rest if rung.rounds >= first.rounds)

    def _climb(self, steps: Ladder) -> None:
        rung = steps[len(self.climbed)]
        judged = self._judged(rung, steps)
        scores = {name: found.score for name, found in judged.items()}
        higher = judged[self.alone].higher_is_better
        self.left = going_on(scores, rung.keeps, self.alone, higher)
        self.climbed.append(Climbed(rung.rounds, judged, tuple(self.left)))

    def _judged(self, rung: Rung, steps: Ladder) -> dict[str, Judged]:
        """Everybody's score on a rung but that of twins and of runs that stopped."""
        new = [name for name in self.left if not self._is_known(name, rung.rounds)]
        if new:
            self._run(new, rung, steps)
        found = {name: self.notes.judged(self.runs[name], rung.rounds) for name in self.left}
        judged: dict[str, Judged] = {}
        for name, mine in found.items():
            if mine is None:
                continue
            twin = next((other for other, its in judged.items() if mine.is_twin(its)), None)
            if twin is None:
                judged[name] = mine
                continue
            self.twins[name] = twin
            before = self.climbed[-1].judged[name].spent if self.climbed else Spent()
            self.by_twins += mine.spent - before
        stopped = {name: self.notes.stopped[self.runs[name]] for name, j in found.items() if not j}
        if self.alone in stopped:
            raise RunStopped(f"{self.alone} stopped, so nothing can be held against it: "
                             f"{stopped[self.alone]}")  # fmt: skip
        if len(judged) < 2:
            why = "; ".join(f"{n}: {reason}" for n, reason in {**self.twins, **stopped}.items())
            raise RunStopped(f"no method is left beside {self.alone}: {why}")
        if new and rung.rounds < self.rounds:
            self.tell(_said(judged, rung.keeps, self.alone))
        return judged

    def _is_known(self, name: str, rounds: int) -> bool:
        run = self.runs[name]
        return run in self.notes.stopped or self.notes.judged(run, rounds) is not None

    def _run(self, names: Sequence[str], rung: Rung, steps: Ladder) -> None:
        """Train so far whoever is not there yet, and note the scores."""
        started = time.monotonic()
        of = f" of {len(steps)}" if steps[-1].rounds == self.rounds else ""
        self.tell(
            f"rung {len(self.climbed) + 1}{of}: {len(self.left) - 1} methods and {self.alone}, "
            f"up to round {rung.rounds} of {self.rounds}"
        )
        wanted = [
            Wanted(at_length(self.by_name[name].config, rung.rounds), name, draw=False)
            for name in names
        ]
        for name, done in zip(names, attempted(self.runner, wanted), strict=True):
            if done is None:
                self.notes.stopped[self.runs[name]] = self.runner.stopped[name]
            else:
                mine = judge(done, self.by_name[name].tuned)
                self.notes.note(self.runs[name], rung.rounds, mine)
        seconds = time.monotonic() - started
        self.notes.seconds[self.key] = self.notes.seconds.get(self.key, 0.0) + seconds
        self.notes.keep()


def _said(judged: Mapping[str, Judged], keeps: int, alone: str) -> str:
    """Who goes on from a rung, and who does not."""
    some = judged[alone]
    scores = {name: found.score for name, found in judged.items()}
    goes_on = going_on(scores, keeps, alone, some.higher_is_better)

    def told(names: Iterable[str]) -> str:
        return ", ".join(f"{name} {judged[name].score.value:.3f}" for name in names)

    stopped = [name for name in judged if name not in goes_on]
    rest = f"; stopped: {told(stopped)}" if stopped else ""
    return f"validation {some.metric} as the methods are used: {told(goes_on)} go on{rest}"


def bake_off(
    runner: Runner,
    entered: Field,
    budget: Budget | None,
    folder: Path,
    tell: Tell,
) -> BakeOff:
    """Have candidates climb the ladder that fits a budget; without one, the usual ladder.

    ``folder`` keeps what has been decided; runs lie where the runner has them.
    """
    _check_validation(runner, entered)
    return _Climb(runner, entered, budget, folder, tell).carry_out()


def attempted(runner: Runner, wanted: Sequence[Wanted]) -> list[Run | None]:
    """Finished runs as they are, without a word; the others are run."""
    found = [runner.finished(each.config) for each in wanted]
    left = [each for each, run in zip(wanted, found, strict=True) if run is None]
    runner.total = runner.position + len(left)
    done = iter(runner.attempt_all(left))
    return [next(done) if run is None else run for run in found]


def at_length(config: Config, rounds: int) -> Config:
    """A run of the same name with another number of rounds."""
    return config.model_copy(update={"train": config.train.model_copy(update={"rounds": rounds})})


def _check_validation(runner: Runner, entered: Field) -> None:
    members = runner.members(entered.alone.config)
    if len(members.seen) < 2:
        raise ConfigError(
            "recommending a method takes at least two clients that train, but there is "
            f"{len(members.seen)}: set federation.clients above 1, or bring more."
        )
    if not members.validated:
        raise ConfigError(
            "methods are judged by validation data, and no client has any: set "
            "federation.validation above 0, 0.2 for example."
        )
