"""Reproduce a suite: run what is missing, judge the claims, write one page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from fedskew.comparisons.runner import Shelf
from fedskew.federate.metrics import Row
from fedskew.federate.server import Progress, RoundRecord
from fedskew.papers.boxes import draw_boxes
from fedskew.papers.clients import Data, look
from fedskew.papers.cost_figure import draw_costs
from fedskew.papers.curves import draw_coverage, draw_shots, draw_trades
from fedskew.papers.effort import with_rivals
from fedskew.papers.entries import Fallback
from fedskew.papers.figure import draw, draw_series
from fedskew.papers.folds import fold_cells
from fedskew.papers.format import Suite, find_suite, load_suite, suites
from fedskew.papers.grid import Cell, cells, missing_datasets
from fedskew.papers.machine import Provenance, provenance
from fedskew.papers.matrix import draw_maps
from fedskew.papers.measure import MADE_WITH, Measured
from fedskew.papers.page import Reproduction, page
from fedskew.papers.pictures import draw_divergence, draw_portraits, draw_samples
from fedskew.papers.verdict import Verdict, judge
from fedskew.runs.experiment import Run, carry_out
from fedskew.runs.folder import RunFolder
from fedskew.store import write_atomically, write_json

__all__ = ["Reproduced", "Step", "find_suite", "load_suite", "reproduce", "suites"]


@dataclass(frozen=True)
class Step:
    """Where a suite stands; told before, during and after every run."""

    number: int
    total: int
    cell: Cell
    state: Literal["skipped", "started", "round", "finished"]
    round: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """One line for people."""
        cell = self.cell
        place = f"[{self.number}/{self.total}] {cell.setting} · {cell.arm} · seed {cell.seed}"
        place += f" · without {cell.left_out}" if cell.left_out else ""
        if self.state == "round":
            return f"{place}: round {self.round} of {cell.config.train.rounds}"
        took = f" in {self.seconds:.1f} s" if self.state == "finished" else ""
        return f"{place}: {self.state}{took}"


Report = Callable[[Step], None]


@dataclass(frozen=True)
class Reproduced:
    """A finished suite: its page and its verdicts."""

    page: Path
    verdicts: tuple[Verdict, ...]


def reproduce(
    name: str,
    scale: str = "smoke",
    out: str | Path = "results",
    data_dir: str | Path | None = None,
    report: Report | None = None,
) -> Reproduced:
    """Run a suite at a scale, or what is left of it, and write ``<out>/<suite>-<scale>.md``.

    Runs stand under ``<out>/runs`` and are never done twice: after an interruption the same call
    goes on with the round it was in. ``name`` is a suite of the package or a path ending in
    .toml. Runs that leave a client out come last, when there is a page without them already.
    """
    suite = find_suite(name)
    folder = Path(out)
    directory = None if data_dir is None else Path(data_dir)
    plan, fallback = _plan(suite, scale, directory)
    book = _Book(
        suite=suite,
        scale=scale,
        command=f"fedskew reproduce {Path(name).name} --scale {scale}",
        folder=folder,
        data_dir=directory,
        plan=tuple(plan),
        fallback=fallback,
        data=look(suite, plan, directory, fallback is not None),
        made_with=provenance(),
        started=time.monotonic(),
    )
    tell = report or (lambda step: None)
    runs = _Runs(folder / "runs", Shelf(directory), book.made_with.code, tell)
    done = runs.all_of(plan)
    again = fold_cells(suite, scale, done)
    if not all(runs.has_finished(cell) for cell in again):
        book.write(done, [])
    return book.write(done, runs.all_of(again, before=len(plan)))


@dataclass(frozen=True)
class _Book:
    """A suite at a scale, about to become a page."""

    suite: Suite
    scale: str
    command: str
    folder: Path
    data_dir: Path | None
    plan: tuple[Cell, ...]
    fallback: Fallback | None
    data: dict[str, Data]
    made_with: Provenance
    started: float

    def write(
        self, done: Sequence[tuple[Cell, Run]], folds: Sequence[tuple[Cell, Run]]
    ) -> Reproduced:
        """Judge the claims, draw the figures and write the page."""
        suite, plan = self.suite, self.plan
        results = with_rivals(suite, _measured(suite, done, folds))
        verdicts = tuple(judge(claim, results) for claim in suite.claims)
        title = f"{suite.name}-{self.scale}"
        pictures = self.folder / "figures" / title
        figures = draw(suite, plan, results, pictures)
        for setting, path in draw_maps(suite, plan, results, pictures).items():
            figures[setting].insert(0, path)
        for more in (
            draw_shots(suite, plan, results, pictures),
            draw_coverage(suite, plan, results, pictures),
            draw_divergence(suite, results, pictures),
            draw_samples(suite, results, self.data, pictures),
        ):
            for setting, path in more.items():
                figures[setting].append(path)
        portraits = draw_portraits(suite, plan, results, self.data_dir, pictures)
        for setting, paths in portraits.items():
            figures[setting] += paths
        series = {
            **draw_series(suite, results, pictures),
            **draw_trades(suite, results, pictures),
            **draw_costs(suite, list(figures), results, pictures),
            **draw_boxes(suite, plan, results, pictures),
        }
        facts = Reproduction(
            suite=suite,
            scale=self.scale,
            command=self.command,
            plan=plan,
            fallback=self.fallback,
            results=results,
            verdicts=verdicts,
            figures={
                setting: [path.relative_to(self.folder).as_posix() for path in paths]
                for setting, paths in figures.items()
            },
            series={n: path.relative_to(self.folder).as_posix() for n, path in series.items()},
            provenance=self.made_with,
            wall_seconds=time.monotonic() - self.started,
            data=self.data,
        )
        path = self.folder / f"{title}.md"
        write_atomically(path, page(facts).encode())
        return Reproduced(path, verdicts)


def _measured(
    suite: Suite, done: Sequence[tuple[Cell, Run]], folds: Sequence[tuple[Cell, Run]]
) -> dict[tuple[str, str, int], Measured]:
    """The finished runs, each knowing those that leave one of its clients out."""
    again: dict[tuple[str, str, int], list[Run]] = {}
    for cell, fold in folds:
        again.setdefault((cell.setting, cell.arm, cell.seed), []).append(fold)
    keys = {(cell.setting, cell.arm, cell.seed): finished for cell, finished in done}
    return {
        key: Measured(finished, suite.headline, folds=tuple(again.get(key, ())))
        for key, finished in keys.items()
    }


def _plan(suite: Suite, scale: str, data_dir: Path | None) -> tuple[list[Cell], Fallback | None]:
    """The runs to do; on the scale's fallback data where its own are not there."""
    plan = cells(suite, scale)
    fallback = suite.scale(scale).fallback
    if fallback is None or not missing_datasets(plan, data_dir):
        return plan, None
    return cells(suite, scale, fallback), fallback


@dataclass(frozen=True)
class _Runs:
    """Where the runs of a suite stand, and how they are done."""

    path: Path
    shelf: Shelf
    code: str
    tell: Report
    done: dict[Path, Run] = field(default_factory=dict)
    """Finished runs by their place: cells that share one share what was read of it."""

    def folder(self, cell: Cell) -> RunFolder:
        return RunFolder.of(self.shelf.identity(cell.config), self.path)

    def has_finished(self, cell: Cell) -> bool:
        return self.folder(cell).has_finished(self.shelf.identity(cell.config))

    def all_of(self, plan: Sequence[Cell], before: int = 0) -> list[tuple[Cell, Run]]:
        """Do what is left of these; ``before`` is how many were done in an earlier call."""
        total = before + len(plan)
        done = []
        for number, cell in enumerate(_longest_first(plan), start=before + 1):
            if self.has_finished(cell):
                folder = self.folder(cell)
                self.tell(Step(number, total, cell, "skipped"))
                done.append((cell, self.done.setdefault(folder.path, Run(folder.path))))
                continue
            self.tell(Step(number, total, cell, "started"))
            started = time.monotonic()
            finished = carry_out(
                self.shelf.identity(cell.config),
                partial(self.shelf.federation, cell.config),
                self.path,
                _rounds_of(cell, number, total, self.tell),
                draw=False,
            )
            # A run finished by one version of the code is kept by the next: the page must tell.
            write_json(finished.path / MADE_WITH, {"code": self.code})
            seconds = time.monotonic() - started
            self.tell(Step(number, total, cell, "finished", finished.result["rounds"], seconds))
            done.append((cell, self.done.setdefault(finished.path, finished)))
        return done


def _longest_first(plan: Sequence[Cell]) -> list[Cell]:
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


def _rounds_of(
    cell: Cell, number: int, total: int, tell: Report
) -> Callable[[Progress, RoundRecord, Sequence[Row]], None]:
    def watch(progress: Progress, record: RoundRecord, rows: Sequence[Row]) -> None:
        tell(Step(number, total, cell, "round", progress.round))

    return watch
