"""How far a run is: a live line in a terminal, a few plain lines anywhere else.

Nothing heavy is imported here, because the command line imports it before it knows what to do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from fedskew.errors import debugging

if TYPE_CHECKING:
    from fedskew.config import Config
    from fedskew.federate.metrics import Row
    from fedskew.federate.server import Progress, RoundRecord
    from fedskew.papers.suite import Step
    from fedskew.runs.experiment import Run

MOST_LINES = 20
ROOMY = 100
"""Columns a terminal needs before the numbers leave room for a bar."""


@dataclass(frozen=True)
class Stretch:
    """One stage of a run as planned: how many rounds, and by which metric it is judged."""

    rounds: int
    metric: str
    higher_is_better: bool


@dataclass(frozen=True)
class Look:
    """What a round's scores say at a glance."""

    split: str
    metric: str
    mean: float
    worst: float

    def __str__(self) -> str:
        return f"{self.split} {self.metric} {self.mean:.3f}, worst client {self.worst:.3f}"


def stretches(config: Config) -> dict[str, Stretch]:
    """The stages of a config's method, in order, by name."""
    from fedskew.federate.metrics import MAIN
    from fedskew.federate.recipe import Stage, find

    recipe = find(config.method.name).recipe(**config.method.knobs)
    planned = {}
    for stage in (*recipe.prepares, Stage(MAIN, recipe)):
        objective = stage.recipe.objective
        planned[stage.name] = Stretch(
            stage.lasts(config.train.rounds),
            objective.primary,
            objective.higher_is_better,
        )
    return planned


def look(rows: Sequence[Row], stretch: Stretch) -> Look | None:
    """Mean and worst seen client on validation data, or on test data where there are none."""
    rows = [
        r for r in rows if r.on == "seen" and r.metric == stretch.metric and math.isfinite(r.value)
    ]
    if not rows:
        return None
    model = "personal" if any(r.model == "personal" for r in rows) else "global"
    split = "validation" if any(r.split == "validation" for r in rows) else "test"
    values = [r.value for r in rows if r.model == model and r.split == split]
    worst = min(values) if stretch.higher_is_better else max(values)
    return Look(split, stretch.metric, sum(values) / len(values), worst)


class Observer:
    """Follows one run or the runs of a comparison; what it shows is its subclasses' matter."""

    def __init__(self) -> None:
        self.name, self.position, self.total = "", 1, 1
        self.planned: Mapping[str, Stretch] = {}
        self.latest: Look | None = None
        self.round: tuple[str, int] | None = None
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, config: Config, position: int = 1, total: int = 1, without: str = "") -> None:
        """A run starts, or is taken up again; ``without`` is the client it leaves out."""
        from fedskew.comparisons.crossing import label

        left_out = f", without {without}" if without else ""
        self.name = f"{label(config.method)}, seed {config.seed}{left_out}"
        self.position, self.total = position, total
        self.planned = stretches(config)
        self.latest, self.round = None, None
        self.started = time.monotonic()

    def __call__(self, progress: Progress, record: RoundRecord, rows: Sequence[Row]) -> None:
        """A round is safe on disk."""
        stretch = self.planned[progress.stage]
        self.latest = look(rows, stretch) or self.latest
        self.round = (progress.stage, progress.round)
        self.show(progress, record, stretch)

    def show(self, progress: Progress, record: RoundRecord, stretch: Stretch) -> None:
        raise NotImplementedError

    def end(self, run: Run, repeated: bool = False) -> None:
        """A run is finished, or was already."""

    def tell(self, sentence: str) -> None:
        """Something a user should know, like why a run begins anew."""
        raise NotImplementedError

    def stopped(self) -> str:
        """What to tell a user who pressed Ctrl-C."""
        if not self.name:
            return "stopped before the first round; repeat the command to start again"
        if self.round is None:
            return f"stopped before another round of {self.name}; repeat the command to go on"
        stage, number = self.round
        total = self.planned[stage].rounds
        where = f"round {number} of {total}" + (f" of stage {stage}" * (len(self.planned) > 1))
        return f"stopped after {where} ({self.name}); repeat the command to go on"


class Plain(Observer):
    """At most twenty lines a run; in a comparison one line a run."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def begin(self, config: Config, position: int = 1, total: int = 1, without: str = "") -> None:
        super().begin(config, position, total, without)
        self.first: tuple[int, float] | None = None

    def show(self, progress: Progress, record: RoundRecord, stretch: Stretch) -> None:
        number, now = progress.round, time.monotonic()
        if self.first is None or number < self.first[0]:
            self.first = (number, now)
        step = math.ceil(stretch.rounds * len(self.planned) / MOST_LINES)
        if self.total > 1 or (number % step and not progress.finished):
            return
        stage = f"{progress.stage}, " if len(self.planned) > 1 else ""
        scores = f", {self.latest}" if self.latest else ""
        left = self._left(number, now, stretch) if not progress.finished else ""
        self._print(
            f"{stage}round {number}/{stretch.rounds}: loss {record.train_loss:.4f}{scores}, "
            f"{clock(now - self.started)} elapsed{left}"
        )

    def _left(self, number: int, now: float, stretch: Stretch) -> str:
        """From the pace since the first round, which alone pays for starting up."""
        if self.first is None or number == self.first[0]:
            return ""
        pace = (now - self.first[1]) / (number - self.first[0])
        return f", {clock(pace * (stretch.rounds - number))} left"

    def end(self, run: Run, repeated: bool = False) -> None:
        if self.total > 1:
            self._print(f"[{self.position}/{self.total}] {self.name}: {_outcome(run, repeated)}")
        elif repeated:
            self._print("this run was finished already")

    def tell(self, sentence: str) -> None:
        self._print(sentence)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Live(Observer):
    """A bar that moves, with the latest numbers beside it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        roomy = console.width >= ROOMY
        self.bars = Bars(
            TextColumn("{task.description}"),
            *([BarColumn(bar_width=20)] if roomy else []),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self.overall: TaskID | None = None
        self.current: TaskID | None = None
        self.stage = ""

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def begin(self, config: Config, position: int = 1, total: int = 1, without: str = "") -> None:
        super().begin(config, position, total, without)
        if total > 1 and self.overall is None:
            self.overall = self.bars.add_task("all runs", total=total, note="")
        if self.overall is not None:
            self.bars.update(self.overall, total=total)
        self.stage, stretch = next(iter(self.planned.items()))
        self._next_bar(stretch, done=0)

    def show(self, progress: Progress, record: RoundRecord, stretch: Stretch) -> None:
        number = progress.round
        if self.current is None or progress.stage != self.stage or self._is_taken_up(number):
            self.stage = progress.stage
            self._next_bar(stretch, done=number - 1)
        assert self.current is not None
        note = f"loss {record.train_loss:.3f}"
        if self.latest:
            note += f", mean {self.latest.mean:.3f}, worst {self.latest.worst:.3f}"
        self.bars.update(self.current, completed=number, note=note)

    def end(self, run: Run, repeated: bool = False) -> None:
        if self.total > 1:
            mark = f"[{self.position}/{self.total}] {self.name}: {_outcome(run, repeated)}"
            self.bars.console.print(mark, markup=False, highlight=False)
        if self.overall is not None:
            self.bars.update(self.overall, completed=self.position)

    def tell(self, sentence: str) -> None:
        self.bars.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def _is_taken_up(self, number: int) -> bool:
        """The first round of a resumed run: earlier ones must not count as done in no time."""
        assert self.current is not None
        return number > 1 and self.bars.tasks[-1].completed == 0

    def _next_bar(self, stretch: Stretch, done: int) -> None:
        if self.current is not None:
            self.bars.remove_task(self.current)
        stage = f", {self.stage}" if len(self.planned) > 1 else ""
        self.current = self.bars.add_task(
            f"{self.name}{stage}", total=stretch.rounds, completed=done, note=""
        )


class SuiteObserver:
    """Follows the runs of a suite: a line a run, and in a terminal the round it is in."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.status = console.status("reading the suite")
        self.latest: Step | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.status.stop()

    def __call__(self, step: Step) -> None:
        self.latest = step
        if step.state in ("started", "round"):
            self.status.update(escape(step.text))
        else:
            self.console.print(step.text, markup=False, highlight=False, soft_wrap=True)

    def stopped(self) -> str:
        """What to tell a user who pressed Ctrl-C."""
        where = f"at {self.latest.text}" if self.latest else "before the first run"
        return f"stopped {where}; repeat the command to go on"


def observer(console: Console, config: Config) -> Observer:
    """The observer that suits where the output goes; a debugger needs the terminal for itself."""
    stops = debugging() or config.executor == "one-by-one"
    return Live(console) if console.is_terminal and not stops else Plain(console)


def clock(seconds: float) -> str:
    """
    >>> clock(75), clock(3725)
    ('1:15', '1:02:05')
    """
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _outcome(run: Run, repeated: bool) -> str:
    """One finished run in a line: its test score at the selected round."""
    result = run.result
    wanted = {
        "at": "selected", "model": result["primary_model"], "on": "seen", "adapted": "none",
        "split": "test", "metric": result["primary_metric"],
    }  # fmt: skip
    found = [s for s in result["scores"] if all(s[key] == value for key, value in wanted.items())]
    scores = "no test data"
    if found:
        scores = str(Look("test", wanted["metric"], found[0]["mean"], found[0]["worst"]))
    return f"{scores}, " + ("finished before" if repeated else f"{result['seconds']:.1f} s")
