"""Fair tuning: every method chooses its settings on validation data, all by the same rule.

The trials are runs of the first seed. What they scored on test data is in their folders as in any
other, and is not read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedskew.comparisons.at_once import Wanted
from fedskew.comparisons.runner import Runner
from fedskew.comparisons.trials import Section, Setting, Tuning, check_known, settings_of
from fedskew.config import Config, TrainSection, checked_section
from fedskew.errors import ConfigError
from fedskew.methods import find
from fedskew.runs.experiment import Run
from fedskew.runs.identity import resolve


@runtime_checkable
class TrialObserver(Protocol):
    """An observer that tells of trials what they may be judged by."""

    def trials(self, under_way: bool) -> None:
        """The runs that follow are trials, or are none any more."""
        ...


@dataclass(frozen=True)
class Trial:
    """One setting of a method and its validation score; NaN if its run has none, or stopped."""

    setting: Setting
    score: float
    run: Path | None = None
    stopped: str = ""


@dataclass(frozen=True)
class Edge:
    """A chosen value with nothing tried beyond it, though there is something."""

    name: str
    value: Any
    largest: bool


@dataclass(frozen=True)
class Tuned:
    """What a method tried and chose; it stays as configured if no trial has a score."""

    method: str
    metric: str
    higher_is_better: bool
    trials: tuple[Trial, ...]
    chosen: int | None
    edges: tuple[Edge, ...] = ()

    @property
    def setting(self) -> Setting:
        return Setting() if self.chosen is None else self.trials[self.chosen].setting

    @property
    def score(self) -> float:
        return math.nan if self.chosen is None else self.trials[self.chosen].score


def tune(runner: Runner, configs: Mapping[str, Config], tuning: Tuning) -> dict[str, Tuned]:
    """The settings that each method chooses, by its name; ``configs`` are of the first seed."""
    check_known(tuning, [config.method for config in configs.values()])
    settings = {name: settings_of(config, tuning, config.seed) for name, config in configs.items()}
    tried = [
        (name, setting, resolve(setting.applied(configs[name])))
        for name, own in settings.items()
        for setting in own
    ]
    first = next(iter(configs.values()))
    if not runner.members(first).validated:
        raise ConfigError(
            "tuning needs validation data at the clients: set federation.validation above 0."
        )
    runner.check(config for *_, config in tried)
    runner.total += len(tried)
    found = iter(_carried_out(runner, tried))
    return {
        name: _chosen(name, list(islice(found, len(own))), configs[name])
        for name, own in settings.items()
    }


def _carried_out(
    runner: Runner, tried: Sequence[tuple[str, Setting, Config]]
) -> list[tuple[Trial, Run | None]]:
    """All trials. One that stops does not count as a method that did."""
    before = dict(runner.stopped)
    watch = runner.watch
    if isinstance(watch, TrialObserver):
        watch.trials(True)
    names = [f"{name}, {setting}" for name, setting, _ in tried]
    wanted = [Wanted(config, told, False) for told, (*_, config) in zip(names, tried, strict=True)]
    runs = runner.attempt_all(wanted)
    if isinstance(watch, TrialObserver):
        watch.trials(False)
    why, runner.stopped = runner.stopped, before
    return [
        (_trial(setting, run, why.get(told, "")), run)
        for told, (_, setting, _), run in zip(names, tried, runs, strict=True)
    ]


def _trial(setting: Setting, run: Run | None, stopped: str) -> Trial:
    return Trial(setting, validation_score(run), None if run is None else run.path, stopped)


def validation_score(run: Run | None) -> float:
    """The mean over clients at the selected round; NaN without one."""
    if run is None:
        return math.nan
    result = run.result
    wanted = {
        "at": "selected", "model": result["primary_model"], "on": "seen", "adapted": "none",
        "split": "validation", "metric": result["primary_metric"],
    }  # fmt: skip
    found = (s["mean"] for s in result["scores"] if wanted.items() <= s.items())
    return float(next(found, math.nan))


def best_place(scores: Sequence[float], higher: bool) -> int | None:
    """The place of the best score, of equal ones the first; None if none is a number.

    >>> best_place([0.5, math.nan, 0.7, 0.7], True), best_place([0.5, 0.4], False)
    (2, 1)
    """
    places = [place for place, score in enumerate(scores) if math.isfinite(score)]
    return max(places, key=lambda p: scores[p] if higher else -scores[p], default=None)


def _chosen(name: str, found: Sequence[tuple[Trial, Run | None]], config: Config) -> Tuned:
    result = next((run.result for _, run in found if run is not None), {})
    metric, higher = str(result.get("primary_metric", "")), bool(result.get("higher_is_better", 1))
    trials = tuple(trial for trial, _ in found)
    place = best_place([trial.score for trial in trials], higher)
    edges = () if place is None else _edges(config, trials, trials[place].setting)
    return Tuned(name, metric, higher, trials, place, edges)


def _edges(config: Config, trials: Sequence[Trial], chosen: Setting) -> tuple[Edge, ...]:
    """The numbers among the chosen values that are the smallest or largest tried."""
    found = []
    for section, name, value in chosen.changes:
        tried = [v for t in trials for s, n, v in t.setting.changes if (s, n) == (section, name)]
        numbers = {v for v in tried if isinstance(v, int | float) and not isinstance(v, bool)}
        if value not in numbers or len(numbers) < 2:
            continue
        largest = value == max(numbers)
        if (largest or value == min(numbers)) and _goes_on(config, section, name, value, largest):
            found.append(Edge(name, value, largest))
    return tuple(found)


def _goes_on(config: Config, section: Section, name: str, value: float, up: bool) -> bool:
    """Whether the knob takes values beyond one."""
    if isinstance(value, int):
        beyond: float = value + 1 if up else value - 1
    else:
        beyond = value + abs(value) / 2 if up else value / 2 or -1.0
    if section == "method":
        return find(config.method.name).knobs[name].knob.contains(beyond)
    try:
        checked_section(TrainSection, {name: beyond}, "beyond")
    except ConfigError:
        return False
    return True
