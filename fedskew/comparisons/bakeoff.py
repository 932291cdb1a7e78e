"""A bake-off by successive halving: runs are made longer rung by rung, and the worse stop early.

Contenders are judged by the mean over clients of their scores on validation data; test data are not
looked at. Each finished rung is kept in a file, so that a repeated command decides nothing anew.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
from fedskew.comparisons.runner import Runner
from fedskew.config import Config
from fedskew.errors import ConfigError, RunStopped
from fedskew.federate.rounds import Score
from fedskew.runs.experiment import Run, Tell
from fedskew.runs.identity import hash_of
from fedskew.store import make_folder, read_sealed, write_sealed

STATE = "bakeoff.json"
VERSION = 1
"""Of the file that keeps finished rungs; another is not taken up."""


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


@dataclass
class _State:
    """What is kept between two commands."""

    key: str
    ladder: list[list[int]] = field(default_factory=list)
    rungs: list[dict[str, Any]] = field(default_factory=list)
    twins: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    metric: str = ""
    higher: bool = True
    elapsed: float = 0.0
    by_twins: dict[str, Any] = field(default_factory=lambda: asdict(Spent()))


class _Climb:
    """Carries a field of candidates up its ladder."""

    def __init__(
        self, runner: Runner, entered: Field, budget: Budget | None, folder: Path, tell: Tell
    ) -> None:
        self.runner, self.entered, self.budget, self.tell = runner, entered, budget, tell
        self.path = make_folder(folder) / STATE
        self.rounds = entered.alone.config.train.rounds
        self.by_name = {each.name: each for each in entered.candidates}
        key = hash_of(
            [VERSION, str(budget), self.rounds]
            + [[each.name, runner.identity(each.config).sha256] for each in entered.candidates]
        )
        self.state = _taken_up(self.path, key)
        self.left = [each.name for each in entered.candidates]
        self.climbed: list[Climbed] = []

    def carry_out(self) -> BakeOff:
        state = self.state
        self.climbed = [_climbed(found, self.by_name) for found in state.rungs]
        if self.climbed:
            self.left = list(self.climbed[-1].goes_on)
        while len(self.climbed) < len(steps := self._planned()):
            self._climb(steps)
        return BakeOff(
            steps, tuple(self.climbed), state.metric, state.higher, state.twins, state.stopped,
            state.elapsed, Spent(**state.by_twins),
        )  # fmt: skip

    def _planned(self) -> Ladder:
        """The ladder; where a round's price is not known yet, first one round of everybody."""
        steps, budget, everybody = self.state.ladder, self.budget, len(self.entered.contenders)
        if not steps and budget is None:
            steps += _plain(ladder(USUAL, everybody, self.rounds))
        elif not steps and budget is not None and budget.unit == "rounds":
            steps += _plain(self._fitting(dict.fromkeys(self._names(), 1.0), 1.0, 0))
        elif not steps:
            steps += _plain((Rung(1, everybody),))
        elif self.climbed and steps[-1][0] < self.rounds:
            steps += _plain(self._after_pilot())
            self._keep()
        return tuple(Rung(rounds, keeps) for rounds, keeps in steps)

    def _names(self) -> list[str]:
        return [each.name for each in self.entered.contenders]

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
        costs = prices(spent, self.budget.unit, max(self.state.elapsed, busy))
        alone = costs.pop(self.entered.alone.name)
        rest = self._fitting(costs, alone, first.rounds)
        return tuple(rung for rung in rest if rung.rounds >= first.rounds)

    def _climb(self, steps: Ladder) -> None:
        started, place = time.monotonic(), len(self.climbed)
        rung, alone = steps[place], self.entered.alone.name
        of = f" of {len(steps)}" if steps[-1].rounds == self.rounds else ""
        self.tell(
            f"rung {place + 1}{of}: {len(self.left) - 1} methods and {alone}, up to round "
            f"{rung.rounds} of {self.rounds}"
        )
        judged = self._judged(rung)
        scores = {name: found.score for name, found in judged.items()}
        goes_on = going_on(scores, rung.keeps, alone, self.state.higher)
        if rung.rounds < self.rounds:
            self.tell(_said(judged, goes_on, self.state.metric))
        self.climbed.append(Climbed(rung.rounds, judged, tuple(goes_on)))
        self.left = goes_on
        self.state.rungs.append(asdict(self.climbed[-1]))
        self.state.elapsed += time.monotonic() - started
        self._keep()

    def _judged(self, rung: Rung) -> dict[str, Judged]:
        """Everybody's score on a rung but that of twins and of runs that stopped."""
        state, runner = self.state, self.runner
        wanted = [
            Wanted(at_length(self.by_name[name].config, rung.rounds), name, draw=False)
            for name in self.left
        ]
        found = attempted(runner, wanted)
        judged: dict[str, Judged] = {}
        for name, done in zip(self.left, found, strict=True):
            if done is None:
                state.stopped[name] = runner.stopped[name]
                continue
            mine = judge(done, self.by_name[name].tuned)
            twin = next((other for other, its in judged.items() if mine.is_twin(its)), None)
            if twin is not None:
                state.twins[name] = twin
                before = self.climbed[-1].judged[name].spent if self.climbed else Spent()
                more = Spent(**state.by_twins) + mine.spent - before
                state.by_twins = asdict(more)
                continue
            judged[name] = mine
            state.metric = str(done.result["primary_metric"])
            state.higher = bool(done.result["higher_is_better"])
        alone = self.entered.alone.name
        if alone in state.stopped:
            raise RunStopped(f"{alone} stopped, so nothing can be held against it: "
                             f"{state.stopped[alone]}")  # fmt: skip
        if len(judged) < 2:
            names = {**state.twins, **state.stopped}
            why = "; ".join(f"{name}: {reason}" for name, reason in names.items())
            raise RunStopped(f"no method is left beside {alone}: {why}")
        return judged

    def _keep(self) -> None:
        write_sealed(self.path, {"version": VERSION, **asdict(self.state)})


def _said(judged: Mapping[str, Judged], goes_on: Sequence[str], metric: str) -> str:
    """Who goes on from a rung, and who does not."""

    def told(names: Iterable[str]) -> str:
        return ", ".join(f"{name} {judged[name].score.value:.3f}" for name in names)

    stopped = [name for name in judged if name not in goes_on]
    rest = f"; stopped: {told(stopped)}" if stopped else ""
    return f"validation {metric} as the methods are used: {told(goes_on)} go on{rest}"


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


def _taken_up(path: Path, key: str) -> _State:
    """The kept rungs of the same bake-off; of another, or none, an empty state."""
    if not path.is_file():
        return _State(key)
    found = read_sealed(path)
    if found.get("version") != VERSION or found.get("key") != key:
        return _State(key)
    del found["version"]
    return _State(**json.loads(json.dumps(found)))


def _plain(steps: Ladder) -> list[list[int]]:
    return [[rung.rounds, rung.keeps] for rung in steps]


def _climbed(kept: Mapping[str, Any], declared: Iterable[str]) -> Climbed:
    """A kept rung; the file has names sorted, and equal scores go by the declared order."""
    judged = {
        name: Judged(
            Score(**_numbers(found["score"])), _numbers(found["by_client"]),
            _numbers(found["losses"]), found["round"], Spent(**found["spent"]),
        )
        for name in declared
        if (found := kept["judged"].get(name)) is not None
    }  # fmt: skip
    return Climbed(kept["rounds"], judged, tuple(kept["goes_on"]))


def _numbers(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in kept.items()}
