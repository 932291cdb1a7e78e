"""``python -m benchmarks.ratios``: how near estimators of density ratios come to the truth where it
is known; writes docs/results/density-ratio.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from benchmarks.ratio_parts.draw import draw
from benchmarks.ratio_parts.measure import Result, finished
from benchmarks.ratio_parts.plan import ESTIMATORS, Setting, cheapest_first, settings
from benchmarks.ratio_parts.tell import Facts, page
from fedskew import run
from fedskew.comparisons.runner import FederationCache
from fedskew.errors import FedskewError
from fedskew.papers.machine import provenance
from fedskew.papers.reading import MADE_WITH
from fedskew.runs.folder import RunFolder
from fedskew.store import make_folder, write_atomically, write_json

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIGURES = "density-ratio.md", "figures/density-ratio"
READING = Path(__file__).parent / "ratio_parts" / "reading.md"
"""What the numbers mean, written by whoever has read them; the page has it first."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run_all(setting: Setting, seed: int, out: Path, code: str) -> int:
    """Run every estimator on one federation, those that are finished excepted; how many it ran.

    They stand in one folder: the first trains the MADEs, the others take them over.
    """
    ran = 0
    data = FederationCache(None)
    for estimator in ESTIMATORS:
        config = setting.config(estimator, seed)
        folder = out / setting.folder
        if RunFolder.of(data.identity(config), folder).is_finished:
            continue
        begin = perf_counter()
        done = run(config, out=folder, federation=data.federation(config), draw=False)
        # A run finished by one version of the code is kept by the next: the page must tell.
        write_json(done.path / MADE_WITH, {"code": code})
        seconds = perf_counter() - begin
        print(f"  {setting.label}, seed {seed}, {estimator}: {seconds:.0f} s", flush=True)
        ran += 1
    return ran


def run_missing(
    work: Sequence[tuple[Setting, int]], out: Path, jobs: int, code: str
) -> Iterator[str]:
    """Run all work, so many federations at once; what went wrong, and the rest goes on."""
    # Read by the new processes: their numbers must not depend on how many there are.
    os.environ.update(dict.fromkeys(THREADS, "1"))
    begin = perf_counter()
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        futures = {pool.submit(run_all, *each, out, code): each for each in work}
        for number, future in enumerate(as_completed(futures), start=1):
            setting, seed = futures[future]
            what = f"{setting.label}, seed {seed}"
            try:
                ran = future.result()
            except FedskewError as error:
                yield f"{what}: {error}"
                continue
            minutes = (perf_counter() - begin) / 60
            told = f"{ran} runs" if ran else "finished before"
            print(f"{number}/{len(work)} {what}: {told}; {minutes:.1f} min so far", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ratios", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/ratios"), help="folder of runs")
    parser.add_argument(
        "--pages", type=Path, help="folder of the page; docs/results, with --quick that of runs"
    )
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="federations at a time"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run, not a measurement")
    parser.add_argument(
        "--finished", action="store_true", help="run nothing: the page from the runs there are"
    )
    chosen = parser.parse_args(arguments)
    if chosen.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {chosen.jobs}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, cheapest first, and write the page from all that is finished."""
    chosen = _options(arguments)
    out: Path = chosen.out
    pages: Path = chosen.pages or (out if chosen.quick else ROOT / "docs" / "results")
    plan = settings(chosen.quick)
    work = cheapest_first(plan)
    made, begin = provenance(), perf_counter()
    failed = [] if chosen.finished else list(run_missing(work, out, chosen.jobs, made.code))
    wall = perf_counter() - begin
    results: list[Result] = []
    for setting in plan:
        for seed in range(setting.seeds):
            results += finished(setting, seed, out)
    figures = make_folder(pages / FIGURES)
    facts = Facts(
        results,
        planned=len(work) * len(ESTIMATORS),
        pictures=draw(results, figures),
        figures=FIGURES,
        command="python -m benchmarks.ratios" + (" --quick" if chosen.quick else ""),
        made=made,
        jobs=chosen.jobs,
        wall_seconds=None if chosen.finished else wall,
        reading=READING.read_text().strip() if READING.is_file() and not chosen.quick else "",
        quick=chosen.quick,
    )
    write_atomically(pages / PAGE, page(facts).encode())
    print(f"{pages / PAGE}: {len(results)} of {facts.planned} runs")
    if failed:
        sys.exit("\n".join(f"error: {sentence}" for sentence in failed))


if __name__ == "__main__":
    main()
