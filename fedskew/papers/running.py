"""The runs of a plan, one after the other: those that are finished, or known by a line, are not
run again."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from fedskew.comparisons.at_once import Wanted
from fedskew.comparisons.runner import Runner
from fedskew.papers.estimate import Forecast
from fedskew.papers.grid import Cell
from fedskew.papers.ledger import Ledger, Line, settings_hash
from fedskew.papers.outcome import Outcome
from fedskew.papers.reading import MADE_WITH, outcome_of
from fedskew.runs.experiment import Run, Tell
from fedskew.store import read_json, write_json

Done = Sequence[tuple[Cell, Run | Outcome]]
SELDOM = 60.0
"""So many seconds at least lie between two sentences about the time left."""


@dataclass
class Running:
    """Runs cells of a suite at a scale, and keeps a line of each in ``ledger`` if there is one.

    ``missing`` are datasets that are not here: runs on them are known by their settings alone.
    """

    suite: str
    scale: str
    runner: Runner
    code: str
    forecast: Forecast
    ledger: Ledger | None = None
    missing: Collection[str] = ()
    tell: Tell | None = None
    _told: float = field(default_factory=time.monotonic)

    def all(self, plan: Sequence[Cell]) -> Done:
        """What these cells came to; those that stop are left out."""
        self.runner.total += len(plan)
        order = longest_first(plan)
        one_by_one = self.runner.crew is None
        found = [self._one(cell) for cell in order] if one_by_one else self._together(order)
        return [(c, each) for c, each in zip(order, found, strict=True) if each is not None]

    def _one(self, cell: Cell) -> Run | Outcome | None:
        line = self._line(cell)
        if line is None:
            return self._run(cell)
        self.runner.total -= 1
        return line.outcome

    def _together(self, order: Sequence[Cell]) -> list[Run | Outcome | None]:
        """The same with several runs under way; how long each of them takes alone is not known."""
        lines = [self._line(cell) for cell in order]
        left = [cell for cell, line in zip(order, lines, strict=True) if line is None]
        self.runner.total -= len(order) - len(left)
        since = time.monotonic()

        def ended(cell: Cell, run: Run, repeated: bool) -> None:
            nonlocal since
            before, since = since, time.monotonic()
            self._ended(cell, run, repeated, since - before, whole=False)

        runs = iter(
            self.runner.attempt_all(
                [Wanted(cell.config, cell.label, ended=partial(ended, cell)) for cell in left]
            )
        )
        return [next(runs) if line is None else line.outcome for line in lines]

    def all_done(self, plan: Sequence[Cell]) -> bool:
        """Whether there is nothing left to run."""
        return all(
            self._line(cell) is not None or self.runner.has_finished(cell.config) for cell in plan
        )

    def _line(self, cell: Cell) -> Line | None:
        """The line that stands for a run whose folder is not here."""
        if self.ledger is None:
            return None
        if cell.config.federation.dataset in self.missing:
            return self.ledger.of_settings(self.suite, self.scale, cell)
        if self.runner.has_finished(cell.config):
            return None
        identity = self.runner.identity(cell.config).sha256
        line = self.ledger.of_run(identity, cell.config.train.rounds)
        if line is not None:
            self.ledger.add(line.model_copy(update=self._who(cell)))
        return line

    def _run(self, cell: Cell) -> Run | None:
        repeated, resumed = (
            self.runner.has_finished(cell.config), self.runner.has_begun(cell.config)
        )  # fmt: skip
        started = time.monotonic()
        run = self.runner.attempt(Wanted(cell.config, cell.label))
        if run is not None:
            self._ended(cell, run, repeated, time.monotonic() - started, whole=not resumed)
        return run

    def _ended(self, cell: Cell, run: Run, repeated: bool, seconds: float, whole: bool) -> None:
        """Note what a run came to; ``whole`` says that it took these seconds, alone, from its start
        to its end."""
        if not repeated:
            # A run finished by one version of the code is kept by the next: the page must tell.
            known = {"seconds": round(seconds, 1)} if whole else {}
            write_json(run.path / MADE_WITH, {"code": self.code, **known})
            if not cell.left_out:
                self._say_what_is_left(cell, seconds)
        if self.ledger is not None:
            self.ledger.add(self._new_line(cell, run))

    def _who(self, cell: Cell) -> dict[str, str | int]:
        return {
            "suite": self.suite, "scale": self.scale, "setting": cell.setting, "arm": cell.arm,
            "seed": cell.seed, "left_out": cell.left_out,
        }  # fmt: skip

    def _new_line(self, cell: Cell, run: Run) -> Line:
        made_with = run.path / MADE_WITH
        return Line.model_validate(
            {
                **self._who(cell),
                "identity": self.runner.identity(cell.config).sha256,
                "settings": settings_hash(cell.config),
                "rounds": cell.config.train.rounds,
                "seconds": read_json(made_with).get("seconds") if made_with.is_file() else None,
                "outcome": outcome_of(run, is_fold=bool(cell.left_out)),
            }
        )

    def _say_what_is_left(self, cell: Cell, seconds: float) -> None:
        self.forecast.learn(cell, seconds)
        now = time.monotonic()
        if self.tell and self.forecast.left and now - self._told >= SELDOM:
            self._told = now
            self.tell(self.forecast.sentence)


def longest_first(plan: Sequence[Cell]) -> list[Cell]:
    """Of cells that differ in rounds alone the longest first: none is made longer once it counted.

    All others stay in their order, for runs on the same data follow each other.
    """
    alike: dict[str, list[Cell]] = {}
    for cell in plan:
        train = cell.config.train.model_copy(update={"rounds": 1})
        key = cell.config.model_copy(update={"train": train}).model_dump_json()
        alike.setdefault(key, []).append(cell)
    return [
        cell
        for cells in alike.values()
        for cell in sorted(cells, key=lambda cell: -cell.config.train.rounds)
    ]
