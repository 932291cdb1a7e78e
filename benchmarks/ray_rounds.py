"""Seconds per round in this process and on a Ray cluster on this machine, and of runs side by side.

    python -m benchmarks.ray_rounds [--cases logistic mlp cnn many] [--actors 1 2] [--jobs 1 2]

Needs MNIST in FEDSKEW_DATA. Rounds are timed from the second to the last but one, so that neither
tracing nor the final scores count; the least of them is the least disturbed by other programs. Says
of every run whether it ended with the weights of the first. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import fedskew
from fedskew.federate.backends.dealer import Dealer
from fedskew.federate.backends.ray import RayCluster, RayPool
from fedskew.runs.experiment import MakeBackend, local_backend
from fedskew.runs.workers import dealt_backend


def case(model: str, rounds: int, clients: int, samples: int) -> dict[str, Any]:
    return {
        "model": model,
        "federation": {
            "dataset": "mnist", "partition": "iid", "clients": clients, "samples": samples,
            "validation": 0.0,
        },
        "train": {"rounds": rounds, "batch_size": 32, "lr": 0.05},
        "evaluate": {"every": 1000},
    }  # fmt: skip


CASES = {
    "logistic": case("logistic", 14, 50, 20_000),
    "mlp": case("mlp", 10, 50, 20_000),
    "cnn": case("cnn", 6, 50, 5_000),
    "many": case("logistic", 6, 10_000, 60_000),
}


def timed(settings: Mapping[str, Any], backend: MakeBackend, out: Path) -> tuple[list[float], Path]:
    """Seconds of every round, and the folder of the run."""
    run = fedskew.run(settings, out=out, draw=False, backend=backend)
    lines = (run.path / "timing.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines], run.path


def same_weights(one: Path, other: Path) -> bool:
    file = Path("models", "last", "global.safetensors")
    mine, its = load_file(one / file), load_file(other / file)
    return all(bool((mine[name] == its[name]).all()) for name in mine)


def show(name: str, where: str, seconds: Sequence[float], same: bool) -> None:
    middle = seconds[1:-1]
    print(
        f"| {name} | {where} | {seconds[0]:.2f} | {statistics.median(middle):.2f} | "
        f"{min(middle):.2f} | {'equal' if same else 'DIFFERENT'} |",
        flush=True,
    )


def rounds(cases: Sequence[str], actors: Sequence[int], out: Path) -> None:
    print("| clients | where | first round, s | median round, s | least, s | weights |")
    print("|---|---|---|---|---|---|")
    first = {}
    for name in cases:
        seconds, first[name] = timed(CASES[name], local_backend, out / "local")
        show(name, "this process", seconds, True)
    for count in actors:
        begun = time.monotonic()
        with RayCluster() as cluster:
            started = time.monotonic()
            pool = RayPool(cluster, count)
            for worker in pool.workers:
                worker.ready().result()
            there = time.monotonic()
            dealer = Dealer(pool)
            for name in cases:
                seconds, run = timed(CASES[name], dealt_backend(dealer), out / f"ray-{count}")
                show(name, f"Ray, {count} actors", seconds, same_weights(run, first[name]))
            if "many" in cases:
                backend = dealt_backend(dealer, presum=True)
                seconds, run = timed(CASES["many"], backend, out / f"presum-{count}")
                same = same_weights(run, first["many"])
                show("many", f"Ray, {count} actors, presum", seconds, same)
        print(
            f"<!-- cluster {started - begun:.1f} s, {count} actors {there - started:.1f} s, "
            f"end {time.monotonic() - there:.1f} s with the runs -->"
        )


def jobs(counts: Sequence[int], out: Path) -> None:
    print("\n| jobs | 8 runs of mlp, s |\n|---|---|")
    settings = {**CASES["mlp"], "train": {"rounds": 10}}
    for count in counts:
        begun = time.monotonic()
        methods = ["fedavg", "fedprox", "scaffold", "ditto"]
        fedskew.compare(
            methods, settings, seeds=2, references=False, out=out / f"jobs-{count}", jobs=count
        )
        print(f"| {count} | {time.monotonic() - begun:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--actors", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--jobs", nargs="*", type=int, default=[1, 2])
    given = parser.parse_args()
    print(f"<!-- load average before: {os.getloadavg()[0]:.1f} -->")
    with tempfile.TemporaryDirectory() as folder:
        if given.cases:
            rounds(given.cases, given.actors, Path(folder))
        if given.jobs:
            jobs(given.jobs, Path(folder))
    print(f"<!-- load average after: {os.getloadavg()[0]:.1f} -->")


if __name__ == "__main__":
    main()
