"""The progress of a run: a live line in a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.console import Console
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
from fedskew.parts.scores import ranks_among
from fedskew.views.terminal import StagePlan, clock, stage_plans

if TYPE_CHECKING:
    from fedskew.config import Config
    from fedskew.federate.metrics import Row
    from fedskew.federate.progress import Progress, RoundRecord
    from fedskew.runs.experiment import Run

MOST_LINES = 20
ROOMY = 100
"""The least width of a terminal that has room for a bar beside the numbers."""


@dataclass(frozen=True)
class RoundScores:
    """A round's scores in short: the mean over seen clients, and the worst of them."""

    split: str
    metric: str
    mean: float
    worst: float

    def __str__(self) -> str:
        return f"{self.split} {self.metric} {self.mean:.3f}, worst client {self.worst:.3f}"


def round_scores(rows: Sequence[Row], plan: StagePlan) -> RoundScores | None:
    """Mean and worst seen client on validation data, or on test data if there are none."""
    rows = [r for r in rows if r.on == "seen" and math.isfinite(r.value)]
    known = {r.metric for r in rows if r.split in ("validation", "test")}
    if not known:
        return None
    metric, rises = (plan.metric, plan.higher_is_better) if plan.metric else ranks_among(known)
    rows = [r for r in rows if r.metric == metric]
    if not rows:
        return None
    model = "personal" if any(r.model == "personal" for r in rows) else "global"
    split = "validation" if any(r.split == "validation" for r in rows) else "test"
    values = [r.value for r in rows if r.model == model and r.split == split]
    worst = min(values) if rises else max(values)
    return RoundScores(split, metric, sum(values) / len(values), worst)


class TerminalObserver:
    """Follows the runs of ``run``, ``compare`` or ``reproduce``; subclasses decide what to show."""

    def __init__(self) -> None:
        self.name, self.position, self.total = "", 1, 1
        self.planned: Mapping[str, StagePlan] = {}
        self.latest: RoundScores | None = None
        self.round: tuple[str, int] | None = None
        self.started = time.monotonic()
        self.many: dict[str, tuple[str, int] | None] = {}
        self.told = "test"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, config: Config, position: int, total: int, name: str) -> None:
        """A run starts, or is resumed."""
        self.name, self.position, self.total = name, position, total
        self.planned = stage_plans(config)
        self.latest, self.round = None, None
        self.started = time.monotonic()

    def __call__(self, progress: Progress, record: RoundRecord, rows: Sequence[Row]) -> None:
        """A round is complete and on disk."""
        plan = self.planned[progress.stage]
        self.latest = round_scores(rows, plan) or self.latest
        self.round = (progress.stage, progress.round)
        self.show(progress, record, plan)

    def show(self, progress: Progress, record: RoundRecord, plan: StagePlan) -> None:
        raise NotImplementedError

    def end(self, run: Run, repeated: bool) -> None:
        """A run is finished, or was already."""

    def under_way(self, rounds: Mapping[str, tuple[str, int] | None]) -> None:
        """Runs are carried out at the same time: by name, the last complete round of each."""
        self.many = dict(rounds)

    def trials(self, under_way: bool) -> None:
        """Trials are judged by validation data, and nobody shall peek at more."""
        self.told = "validation" if under_way else "test"

    def tell(self, sentence: str) -> None:
        """Something a user should know, like why a run starts again."""
        raise NotImplementedError

    def stopped(self) -> str:
        """What to tell a user who pressed Ctrl-C."""
        if self.many:
            return f"stopped in {_where(self.many)}; repeat the command to go on"
        if not self.name:
            return "stopped before the first round; repeat the command to start again"
        if self.round is None:
            return f"stopped before another round of {self.name}; repeat the command to go on"
        stage, number = self.round
        total = self.planned[stage].rounds
        where = f"round {number} of {total}" + (f" of stage {stage}" * (len(self.planned) > 1))
        return f"stopped after {where} ({self.name}); repeat the command to go on"


class Plain(TerminalObserver):
    """One line for each run, or up to twenty where there is only one run."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def begin(self, config: Config, position: int, total: int, name: str) -> None:
        super().begin(config, position, total, name)
        self.first: tuple[int, float] | None = None

    def show(self, progress: Progress, record: RoundRecord, plan: StagePlan) -> None:
        number, now = progress.round, time.monotonic()
        if self.first is None or number < self.first[0]:
            self.first = (number, now)
        step = math.ceil(plan.rounds * len(self.planned) / MOST_LINES)
        if self.total > 1 or (number % step and not progress.finished):
            return
        stage = f"{progress.stage}, " if len(self.planned) > 1 else ""
        scores = f", {self.latest}" if self.latest else ""
        left = self._left(number, now, plan) if not progress.finished else ""
        self._print(
            f"{stage}round {number}/{plan.rounds}: {_loss(record, 4)}{scores}, "
            f"{clock(now - self.started)} elapsed{left}"
        )

    def _left(self, number: int, now: float, plan: StagePlan) -> str:
        """From the pace since the first round, which includes the time to start up."""
        if self.first is None or number == self.first[0]:
            return ""
        pace = (now - self.first[1]) / (number - self.first[0])
        return f", {clock(pace * (plan.rounds - number))} left"

    def end(self, run: Run, repeated: bool) -> None:
        if self.total > 1:
            self._print(
                f"[{self.position}/{self.total}] {self.name}: {_outcome(run, repeated, self.told)}"
            )
        elif repeated:
            self._print("this run was finished already")

    def tell(self, sentence: str) -> None:
        self._print(sentence)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Live(TerminalObserver):
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

    def begin(self, config: Config, position: int, total: int, name: str) -> None:
        super().begin(config, position, total, name)
        if total > 1 and self.overall is None:
            self.overall = self.bars.add_task("all runs", total=total, note="")
        if self.overall is not None:
            self.bars.update(self.overall, total=total)
        self.stage, plan = next(iter(self.planned.items()))
        self._next_bar(plan, done=0)

    def show(self, progress: Progress, record: RoundRecord, plan: StagePlan) -> None:
        number = progress.round
        if self.current is None or progress.stage != self.stage or self._is_resumed(number):
            self.stage = progress.stage
            self._next_bar(plan, done=number - 1)
        assert self.current is not None
        note = _loss(record, 3)
        if self.latest:
            note += f", mean {self.latest.mean:.3f}, worst {self.latest.worst:.3f}"
        self.bars.update(self.current, completed=number, note=note)

    def end(self, run: Run, repeated: bool) -> None:
        if self.total > 1:
            mark = (
                f"[{self.position}/{self.total}] {self.name}: {_outcome(run, repeated, self.told)}"
            )
            self.bars.console.print(mark, markup=False, highlight=False)
        if self.overall is not None:
            self.bars.update(self.overall, completed=self.position)

    def under_way(self, rounds: Mapping[str, tuple[str, int] | None]) -> None:
        super().under_way(rounds)
        if self.current is not None:
            # The bar of a run that has ended; those under way share the line of all runs.
            self.bars.remove_task(self.current)
            self.current = None
        if self.overall is None and rounds:
            self.overall = self.bars.add_task("all runs", total=None, note="")
        if self.overall is not None:
            self.bars.update(self.overall, note=_where(rounds) if rounds else "")

    def tell(self, sentence: str) -> None:
        self.bars.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def _is_resumed(self, number: int) -> bool:
        """Whether it is the first round after a resume: earlier rounds must not count as fast."""
        assert self.current is not None
        return number > 1 and self.bars.tasks[-1].completed == 0

    def _next_bar(self, plan: StagePlan, done: int) -> None:
        if self.current is not None:
            self.bars.remove_task(self.current)
        stage = f", {self.stage}" if len(self.planned) > 1 else ""
        self.current = self.bars.add_task(
            f"{self.name}{stage}", total=plan.rounds, completed=done, note=""
        )


def _where(rounds: Mapping[str, tuple[str, int] | None]) -> str:
    """How far some runs are.

    >>> _where({"fedavg, seed 0": ("main", 3), "ditto, seed 0": None})
    'fedavg, seed 0 (round 3) and ditto, seed 0'
    """
    shown = [f"{name} (round {at[1]})" if at else name for name, at in rounds.items()]
    return " and ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")


def observer(console: Console, config: Config | None = None) -> TerminalObserver:
    """The observer that suits the output; a debugger needs the terminal for itself."""
    stops = debugging() or (config is not None and config.executor == "one-by-one")
    return Live(console) if console.is_terminal and not stops else Plain(console)


def _outcome(run: Run, repeated: bool, split: str) -> str:
    """One finished run in one line: its score at the selected round."""
    result = run.result
    wanted = {
        "at": "selected", "model": result["primary_model"], "on": "seen", "adapted": "none",
        "split": split, "metric": result["primary_metric"],
    }  # fmt: skip
    found = [s for s in result["scores"] if all(s[key] == value for key, value in wanted.items())]
    scores = f"no {split} data"
    if found:
        scores = str(RoundScores(split, wanted["metric"], found[0]["mean"], found[0]["worst"]))
    return f"{scores}, " + ("finished before" if repeated else f"{result['seconds']:.1f} s")


def _loss(record: RoundRecord, digits: int) -> str:
    """Clients whose updates are summed out of sight tell no losses."""
    if math.isnan(record.train_loss):
        return "loss unknown"
    return f"loss {record.train_loss:.{digits}f}"
