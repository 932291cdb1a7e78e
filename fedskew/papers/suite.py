"""Reproduce a suite: run what is missing, judge the claims, write one page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedskew.comparisons.hands import hands
from fedskew.comparisons.runner import Observer, Runner
from fedskew.papers.boxes import draw_boxes
from fedskew.papers.clients import Data, data_of_settings
from fedskew.papers.cost_figure import draw_costs
from fedskew.papers.curves import draw_coverage, draw_shots, draw_trades
from fedskew.papers.effort import with_rivals
from fedskew.papers.entries import Fallback
from fedskew.papers.estimate import Forecast, forecast, probe
from fedskew.papers.excerpt import EVERYTHING, Excerpt
from fedskew.papers.figure import draw, draw_series
from fedskew.papers.folds import fold_cells
from fedskew.papers.format import Suite, find_suite, load_suite, suites
from fedskew.papers.generative_figures import draw_divergence, draw_portraits, draw_samples
from fedskew.papers.grid import Cell, keys_of, missing_datasets
from fedskew.papers.ledger import Ledger
from fedskew.papers.machine import Provenance, provenance
from fedskew.papers.matrix import draw_maps
from fedskew.papers.measure import Measured
from fedskew.papers.outcome import Outcome
from fedskew.papers.page import Reproduction, page
from fedskew.papers.running import Done, Running
from fedskew.papers.verdict import Verdict, judge
from fedskew.runs.experiment import Run, Tell
from fedskew.store import sweep, write_atomically
from fedskew.trust.consent import allow_code_in

__all__ = ["Reproduced", "estimate", "find_suite", "load_suite", "reproduce", "suites"]


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
    excerpt: Excerpt = EVERYTHING,
    outcomes: str | Path | None = None,
    jobs: int = 1,
    workers: str | None = None,
) -> Reproduced:
    """Run a suite at a scale, or what is left of it, and write ``<out>/<suite>-<scale>.md``.

    Runs stand under ``<out>/runs`` and are never done twice: after an interruption the same call
    goes on with the round it was in. ``name`` is a suite of the package or a path ending in
    .toml. Runs that leave a client out come last, when there is a page without them already.
    ``watch``, ``tell``, ``jobs`` and ``workers`` are what they are for :func:`fedskew.compare`; a
    file of your own may name code only with ``allow_code`` or in a trusted folder. An ``excerpt``
    of settings, arms or tables has a page of its own, ``<suite>-<scale>-part.md``. ``outcomes`` is
    a file that gets a line for every finished run; a run whose line it has already is not run.
    """
    if allow_code:
        allow_code_in(name)
    suite = find_suite(name)
    folder = Path(out)
    directory = None if data_dir is None else Path(data_dir)
    ledger = None if outcomes is None else Ledger.read(Path(outcomes))
    plan, fallback = _plan(suite, scale, excerpt, directory, ledger)
    missing = missing_datasets(plan, directory)
    here = [cell for cell in plan if cell.config.federation.dataset not in missing]
    writer = _PageWriter(
        suite=suite,
        scale=scale,
        excerpt=excerpt,
        command=f"fedskew reproduce {Path(name).name} --scale {scale}{excerpt.options}",
        folder=folder,
        data_dir=directory,
        plan=tuple(plan),
        fallback=fallback,
        data=data_of_settings(suite, here, directory, fallback is not None),
        made_with=provenance(),
        started=time.monotonic(),
    )
    expected = forecast(suite.name, scale, plan, folder / "runs", ledger)
    if tell and expected.left:
        tell(f"{len(plan)} runs, {expected.finished} of them finished: {expected.sentence}")
    with hands(workers, jobs, tell) as (backend, crew):
        runner = Runner(folder / "runs", directory, watch, tell, backend=backend, crew=crew)
        running = Running(
            suite.name, scale, runner, writer.made_with.code, expected, ledger, missing, tell
        )
        done = running.all(plan)
        again = fold_cells(suite, scale, done)
        if not running.all_done(again):
            writer.write(done, [], runner.stopped)
        folds = running.all(again)
    return writer.write(done, folds, runner.stopped)


def estimate(
    name: str,
    scale: str = "smoke",
    out: str | Path = "results",
    data_dir: str | Path | None = None,
    tell: Tell | None = None,
    allow_code: bool = False,
    excerpt: Excerpt = EVERYTHING,
    outcomes: str | Path | None = None,
) -> Forecast:
    """What is left of a call of :func:`reproduce`, and how long it will take.

    By finished runs of the same setting and arm; where there is none, by a probe of a few rounds.
    """
    if allow_code:
        allow_code_in(name)
    suite, directory = find_suite(name), None if data_dir is None else Path(data_dir)
    ledger = None if outcomes is None else Ledger.read(Path(outcomes))
    plan, _ = _plan(suite, scale, excerpt, directory, ledger)
    found = forecast(suite.name, scale, plan, Path(out) / "runs", ledger)
    found.paces.update(probe(found.unknown, directory, tell))
    return found


@dataclass(frozen=True)
class _PageWriter:
    """Makes the page of a suite at a scale, from the runs that are finished."""

    suite: Suite
    scale: str
    excerpt: Excerpt
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
        done: Done,
        folds: Done,
        stopped: Mapping[str, str],
    ) -> Reproduced:
        """Judge the claims, draw the figures and write the page."""
        suite, plan = self.suite, self.plan
        results = with_rivals(suite, _measured(suite, done, folds))
        why_not = suite.scale(self.scale).unjudged
        verdicts = tuple(
            judge(c, results, why_not.get(c.name, ""), keys_of(plan, stopped)) for c in suite.claims
        )
        title = f"{suite.name}-{self.scale}" + "-part" * self.excerpt.is_part
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
            excerpt=self.excerpt,
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


def _measured(suite: Suite, done: Done, folds: Done) -> dict[tuple[str, str, int], Measured]:
    """The finished runs, each knowing those that leave one of its clients out."""
    again: dict[tuple[str, str, int], list[Run | Outcome]] = {}
    for cell, fold in folds:
        again.setdefault((cell.setting, cell.arm, cell.seed), []).append(fold)
    keys = {(cell.setting, cell.arm, cell.seed): finished for cell, finished in done}
    return {
        key: Measured(finished, suite.headline, folds=tuple(again.get(key, ())))
        for key, finished in keys.items()
    }


def _plan(
    suite: Suite, scale: str, excerpt: Excerpt, data_dir: Path | None, ledger: Ledger | None
) -> tuple[list[Cell], Fallback | None]:
    """The runs to do; on the scale's fallback data where its own are not there.

    Runs whose lines are there need no data.
    """
    plan = excerpt.of(suite, scale)
    fallback = suite.scale(scale).fallback
    missing = missing_datasets(plan, data_dir)
    if fallback is None or not missing:
        return plan, None
    blind = (cell for cell in plan if cell.config.federation.dataset in missing)
    if ledger is not None and all(ledger.of_settings(suite.name, scale, c) for c in blind):
        return plan, None
    return excerpt.of(suite, scale, fallback), fallback
