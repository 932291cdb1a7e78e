"""How long the runs of a suite will take: from runs that are finished, or from a short probe."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from fedskew.comparisons.runner import Runner
from fedskew.comparisons.statistics import mean
from fedskew.config import Config
from fedskew.errors import FedskewError
from fedskew.papers.grid import Cell
from fedskew.papers.ledger import Ledger, settings_hash
from fedskew.papers.reading import MADE_WITH
from fedskew.runs.experiment import Run, Tell
from fedskew.runs.results import RESULT, TIMING
from fedskew.runs.rows import read_lines
from fedskew.store import read_json
from fedskew.views.terminal import clock, stage_plans

Place = tuple[str, str]
"""Setting and arm."""


@dataclass(frozen=True)
class Pace:
    """Seconds that runs of one setting and arm took, or are expected to take."""

    seconds: tuple[float, ...]
    by: str

    @property
    def each(self) -> float:
        return mean(list(self.seconds))


@dataclass
class Forecast:
    """What is left of a plan, and what it may take."""

    left: list[Cell]
    finished: int
    paces: dict[Place, Pace] = field(default_factory=dict)
    took: list[float] = field(default_factory=list)
    """Seconds of the runs done meanwhile, of whatever setting and arm."""

    def learn(self, cell: Cell, seconds: float) -> None:
        """A run is done; what it took counts for those like it."""
        self.left = [other for other in self.left if other != cell]
        self.took.append(seconds)
        place = (cell.setting, cell.arm)
        known = self.paces.get(place)
        mine = known.seconds if known and known.by == DONE else ()
        self.paces[place] = Pace((*mine, seconds), DONE)

    @property
    def unknown(self) -> list[Cell]:
        return [cell for cell in self.left if (cell.setting, cell.arm) not in self.paces]

    @property
    def seconds(self) -> float:
        """Of all that is left; runs like none that was done count as the mean of those done."""
        known = (self.paces.get((cell.setting, cell.arm)) for cell in self.left)
        others = mean(self.took) if self.took else 0.0
        return sum(pace.each if pace else others for pace in known)

    @property
    def sentence(self) -> str:
        """The time left, and what it rests on.

        >>> Forecast([], 3).sentence
        'nothing left to run'
        """
        if not self.left:
            return "nothing left to run"
        runs = f"{len(self.left)} run{'s' * (len(self.left) > 1)} left"
        blind = len(self.unknown)
        if blind == len(self.left) and not self.took:
            return f"{runs}; nothing tells yet how long they take (--estimate measures)"
        rest = ""
        if blind:
            by = "by the mean of those done" if self.took else "not counted: nothing is like them"
            rest = f" ({blind} of them {by})"
        return f"{runs}, about {clock(self.seconds)}{rest}"

    @property
    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Setting, arm, runs left, time of each, and by what."""
        counts: dict[Place, int] = {}
        for cell in self.left:
            counts[cell.setting, cell.arm] = counts.get((cell.setting, cell.arm), 0) + 1
        found = []
        for (setting, arm), count in counts.items():
            pace = self.paces.get((setting, arm))
            each = "–" if pace is None else clock(pace.each)
            by = "nothing" if pace is None else f"{len(pace.seconds)} {pace.by}"
            found.append((setting, arm, str(count), each, by))
        return found


DONE = "finished run(s)"
ROUNDS_ALONE = "finished run(s), whose rounds alone were timed"
PROBED = "probe of a few rounds on this machine as busy as it is now"


def forecast(
    suite: str, scale: str, plan: Sequence[Cell], runs: Path, ledger: Ledger | None
) -> Forecast:
    """What finished runs tell of a plan; no data are read for it."""
    done, times = _finished(runs)
    if ledger is not None:
        done |= {
            (x.settings, x.rounds) for x in ledger.lines if (x.suite, x.scale) == (suite, scale)
        }
    left = [cell for cell in plan if _key(cell.config) not in done]
    paces: dict[Place, Pace] = {}
    for cell in left:
        took = times.get(_kind(cell.config), [])
        for line in ledger.lines if ledger else ():
            place = (line.suite, line.scale, line.setting, line.arm, line.rounds)
            if place == (suite, scale, cell.setting, cell.arm, cell.config.train.rounds):
                took = [*took, (line.seconds, float(line.outcome.summary["seconds"]))]
        if took:
            whole = all(seconds is not None for seconds, _ in took)
            each = tuple(rounds if seconds is None else seconds for seconds, rounds in took)
            paces[cell.setting, cell.arm] = Pace(each, DONE if whole else ROUNDS_ALONE)
    return Forecast(left, len(plan) - len(left), paces)


Key = tuple[str, int]
"""The settings of a run and its rounds."""
Took = tuple[float | None, float]
"""The whole of a run, if it was measured, and its rounds, in seconds."""


def _key(config: Config) -> Key:
    return settings_hash(config), config.train.rounds


def _kind(config: Config) -> Key:
    """Of all runs that differ in their seeds alone."""
    federation = config.federation.model_copy(update={"seed": None})
    return _key(config.model_copy(update={"seed": 0, "federation": federation}))


def _finished(runs: Path) -> tuple[set[Key], dict[Key, list[Took]]]:
    """The finished runs of a folder, and by kind the times of those that were measured."""
    done: set[Key] = set()
    times: dict[Key, list[Took]] = {}
    for path in sorted(runs.glob(f"*/{RESULT}")):
        run = Run(path.parent)
        try:
            key, kind = _key(run.config), _kind(run.config)
            took = (_whole(run), float(run.result["seconds"]))
        except FedskewError:
            # Another version's, or damaged: the run itself will say so when it is asked for.
            continue
        done.add(key)
        times.setdefault(kind, []).append(took)
    return done, times


def _whole(run: Run) -> float | None:
    path = run.path / MADE_WITH
    return read_json(path).get("seconds") if path.is_file() else None


def probe(
    plan: Sequence[Cell], data_dir: Path | None, tell: Tell | None = None
) -> dict[Place, Pace]:
    """Two or three rounds of every setting and arm, and what a whole run would take by them.

    A run begins slowly and ends with scores of adapted models; of the rounds between, some are
    scored. Models are adapted for a few epochs only, and what the end takes is multiplied. A stage
    of its own that another run shares, as later runs may, counts in full.
    """
    found: dict[Place, Pace] = {}
    for cell in plan:
        place = (cell.setting, cell.arm)
        if place in found:
            continue
        if tell:
            tell(f"probing {cell.setting} · {cell.arm}")
        with TemporaryDirectory() as folder:
            found[place] = Pace((_probed(cell.config, Path(folder), data_dir),), PROBED)
    return found


FEW = 10
"""Epochs for which a probe adapts models."""


def _probed(config: Config, folder: Path, data_dir: Path | None) -> float:
    asked = config.evaluate
    rounds = min(config.train.rounds, 2 if asked.every == 1 else 3)
    epochs = min(asked.fine_tune_epochs, FEW)
    both = asked.fine_tune_at == "both"
    at = "last" if both else asked.fine_tune_at
    short = config.model_copy(
        update={
            "train": config.train.model_copy(update={"rounds": rounds}),
            "evaluate": asked.model_copy(update={"fine_tune_epochs": epochs, "fine_tune_at": at}),
        }
    )
    runner = Runner(folder, data_dir)
    started = time.monotonic()
    runner.identity(short)
    read = time.monotonic() - started
    run = runner.run(short)
    whole = time.monotonic() - started - read
    timed: dict[str, list[float]] = {}
    for stage, seconds in read_lines(run.path / TIMING, lambda x: (x["stage"], x["seconds"])):
        timed.setdefault(stage, []).append(seconds)
    end = whole - sum(sum(seconds) for seconds in timed.values())
    times = asked.fine_tune_epochs / epochs if epochs else 1.0
    return (
        read
        + end * times * (1 + both)
        + sum(
            extrapolated(timed[name], plan.rounds, config.evaluate.every)
            for name, plan in stage_plans(config).items()
            if name in timed
        )
    )


def extrapolated(seconds: Sequence[float], rounds: int, every: int) -> float:
    """What a stage takes by its first rounds, the last of which was scored.

    >>> extrapolated([2.0, 0.5, 1.5], rounds=100, every=10)
    61.5
    >>> extrapolated([2.0, 0.5], rounds=10, every=1)
    6.5
    """
    if len(seconds) < 2 or len(seconds) >= rounds:
        return sum(seconds)
    first, plain, last = seconds[0], seconds[1], seconds[-1]
    scored = max(0.0, last - plain) * math.ceil(rounds / every)
    return first + plain * (rounds - 1) + scored
