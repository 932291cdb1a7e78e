"""Reproduce a suite: run what is missing, judge the claims, write one page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedskew.comparisons.runner import Observer, Runner
from fedskew.papers.boxes import draw_boxes
from fedskew.papers.clients import Data, data_of_settings
from fedskew.papers.cost_figure import draw_costs
from fedskew.papers.curves import draw_coverage, draw_shots, draw_trades
from fedskew.papers.effort import with_rivals
from fedskew.papers.entries import Fallback
from fedskew.papers.figure import draw, draw_series
from fedskew.papers.folds import fold_cells
from fedskew.papers.format import Suite, find_suite, load_suite, suites
from fedskew.papers.generative_figures import draw_divergence, draw_portraits, draw_samples
from fedskew.papers.grid import Cell, cells, keys_of, missing_datasets
from fedskew.papers.machine import Provenance, provenance
from fedskew.papers.matrix import draw_maps
from fedskew.papers.measure import MADE_WITH, Measured
from fedskew.papers.page import Reproduction, page
from fedskew.papers.verdict import Verdict, judge
from fedskew.runs.experiment import Run, Tell
from fedskew.store import sweep, write_atomically, write_json
from fedskew.trust.consent import allow_code_in

__all__ = ["Reproduced", "find_suite", "load_suite", "reproduce", "suites"]


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
    watch: Observer | None = None,
    tell: Tell | None = None,
    allow_code: bool = False,
) -> Reproduced:
    """Run a suite at a scale, or what is left of it, and write ``<out>/<suite>-<scale>.md``.

    Runs stand under ``<out>/runs`` and are never done twice: after an interruption the same call
    goes on with the round it was in. ``name`` is a suite of the package or a path ending in
    .toml. Runs that leave a client out come last, when there is a page without them already.
    ``watch`` and ``tell`` are what they are for :func:`fedskew.compare`; a file of your own may
    name code only with ``allow_code`` or in a trusted folder.
    """
    if allow_code:
        allow_code_in(name)
    suite = find_suite(name)
    folder = Path(out)
    directory = None if data_dir is None else Path(data_dir)
    plan, fallback = _plan(suite, scale, directory)
    writer = _PageWriter(
        suite=suite,
        scale=scale,
        command=f"fedskew reproduce {Path(name).name} --scale {scale}",
        folder=folder,
        data_dir=directory,
        plan=tuple(plan),
        fallback=fallback,
        data=data_of_settings(suite, plan, directory, fallback is not None),
        made_with=provenance(),
        started=time.monotonic(),
    )
    runner = Runner(folder / "runs", directory, watch, tell)
    done = _run_all(runner, plan, writer.made_with.code)
    again = fold_cells(suite, scale, done)
    if not all(runner.has_finished(cell.config) for cell in again):
        writer.write(done, [], runner.stopped)
    return writer.write(done, _run_all(runner, again, writer.made_with.code), runner.stopped)


@dataclass(frozen=True)
class _PageWriter:
    """Makes the page of a suite at a scale, from the runs that are finished."""

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
        self,
        done: Sequence[tuple[Cell, Run]],
        folds: Sequence[tuple[Cell, Run]],
        stopped: Mapping[str, str],
    ) -> Reproduced:
        """Judge the claims, draw the figures and write the page."""
        suite, plan = self.suite, self.plan
        results = with_rivals(suite, _measured(suite, done, folds))
        why_not = suite.scale(self.scale).unjudged
        verdicts = tuple(
            judge(c, results, why_not.get(c.name, ""), keys_of(plan, stopped)) for c in suite.claims
        )
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
            stopped=stopped,
        )
        sweep(self.folder, "")
        sweep(pictures)
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


def _run_all(runner: Runner, plan: Sequence[Cell], code: str) -> list[tuple[Cell, Run]]:
    """Run what is left of these cells; those that stop are left out."""
    runner.total += len(plan)
    done = []
    for cell in _longest_first(plan):
        repeated = runner.has_finished(cell.config)
        run = runner.attempt(cell.config, name=cell.label)
        if run is None:
            continue
        if not repeated:
            # A run finished by one version of the code is kept by the next: the page must tell.
            write_json(run.path / MADE_WITH, {"code": code})
        done.append((cell, run))
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
