"""Several runs at the same time leave the same folders and numbers as one after the other."""

from __future__ import annotations

import csv
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fedskew
from fedskew.comparisons.at_once import Wanted
from fedskew.comparisons.crew import Bench, Crew, Event, Order
from fedskew.comparisons.processes import Process, local_crew
from fedskew.comparisons.runner import Runner
from fedskew.config import make_config
from fedskew.errors import ConfigError, RunStopped, clients_may_fail
from fedskew.federate.backends.parcel import Parcel
from fedskew.runs.identity import resolve

QUICK = {
    "model": "logistic",
    "train": {"rounds": 3},
    "federation": {"clients": 3, "partition": "iid", "samples": 300},
}
MEASURED = {"timing.jsonl", "result.json", "checkpoint.json"}
"""Files that tell the time, or hold hashes of those that do."""


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): b"" if path.name in MEASURED else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".png"
    }


def leaderboard(folder: Path) -> list[dict[str, str]]:
    """All of it but the time it took."""
    with open(folder / "leaderboard.csv") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def test_two_jobs_leave_the_folders_and_the_leaderboard_of_one(tmp_path: Path) -> None:
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        fedskew.compare(["fedavg", "ditto"], QUICK, references=False, out=out, jobs=jobs)
    one, two = tmp_path / "1", tmp_path / "2"
    assert leaderboard(two) == leaderboard(one)
    assert files(two / "runs") == files(one / "runs")
    assert len(list((two / "runs").iterdir())) == 2


def test_a_number_of_jobs_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="jobs must be at least 1, not 0"):
        fedskew.compare(["fedavg"], QUICK, out=tmp_path, jobs=0)


def wanted(rounds: int = 3, **method: Any) -> Wanted:
    settings = {**QUICK, "train": {"rounds": rounds}, "method": method}
    return Wanted(resolve(make_config(settings)))


class Fragile(Process):
    """Is killed once, when its run has finished a round."""

    ends = 0

    def submit(self, order: Order) -> Future[RunStopped | None]:
        future = super().submit(order)
        if not self.ends:
            assert self._process is not None
            threading.Thread(target=self._kill, args=(order.out, self._process.pid)).start()
        return future

    def _kill(self, out: Path, process: int) -> None:
        while not list(out.glob("*/checkpoint.json")):
            time.sleep(0.01)
        self.ends += 1
        os.kill(process, signal.SIGKILL)


def test_a_run_whose_process_is_killed_is_finished_by_another(tmp_path: Path) -> None:
    long = wanted(rounds=30, name="scaffold")
    with local_crew(1) as crew:
        (made,) = crew._helpers
        assert isinstance(made, Process)
        fragile = Fragile(1, made._events)
        crew._helpers = [fragile]
        (run,) = Runner(tmp_path / "there", None, crew=crew).attempt_all([long])
    assert fragile.ends == 1
    assert run is not None
    here = Runner(tmp_path / "here", None).run(long.config)
    assert files(run.path) == files(here.path)


class Threads:
    """Helpers that are threads; remembers who was under way when a run began."""

    def __init__(self, count: int) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.under_way: set[int] = set()
        self.began: dict[int, set[int]] = {}
        self.crew = Crew([self] * count, lambda parcel: parcel, self.events)
        self._threads = ThreadPoolExecutor(count)

    def submit(self, order: Order) -> Future[RunStopped | None]:
        self.began[order.number] = set(self.under_way)
        self.under_way.add(order.number)
        return self._threads.submit(self._work, order)

    def _work(self, order: Order) -> RunStopped | None:
        data: Parcel = order.data
        found = Bench().work(order, lambda: data, self.events.put)
        self.under_way.discard(order.number)
        return found

    def close(self) -> None:
        self._threads.shutdown()


def test_runs_of_one_folder_and_of_one_stage_follow_each_other(tmp_path: Path) -> None:
    grey = {"federation": {**QUICK["federation"], "normalise": "unit"}}  # type: ignore[dict-item]

    def disk(clip: float) -> Wanted:
        method = {"name": "feddisk", "clip": clip}
        return Wanted(resolve(make_config({**QUICK, **grey, "method": method})))

    threads = Threads(3)
    each = [disk(5.0), disk(6.0), wanted(4, name="fedavg"), wanted(2, name="fedavg")]
    runs = Runner(tmp_path, None, crew=threads.crew).attempt_all(each)
    assert [run.path.name[:6] for run in runs if run] == ["feddis", "feddis", "fedavg", "fedavg"]
    assert 0 not in threads.began[1]
    assert 2 not in threads.began[3]
    assert threads.began[2] == {0}
    assert runs[3] is not None
    assert runs[3].path.name.endswith("-2-rounds")


def test_runs_that_stop_are_told_in_order_and_others_go_on(tmp_path: Path) -> None:
    breaks = [wanted(name="fedavg", server_lr=lr) for lr in (1e36, 1e37)]
    threads = Threads(3)
    told: list[str] = []
    runner = Runner(tmp_path, None, tell=told.append, crew=threads.crew)
    with clients_may_fail():
        runs = runner.attempt_all([*breaks, wanted(name="fedavg")])
    assert [run is None for run in runs] == [True, True, False]
    assert len(runner.stopped) == len(told) == 2
    assert [*runner.stopped] == sorted(runner.stopped, key=lambda name: "1e+37" in name)


COMMAND = [
    sys.executable, "-m", "fedskew", "compare", "fedavg", "--config", "digits", "--jobs", "2",
    "--set", "model=logistic", "--set", "evaluate.every=100", "--no-references", "--seeds", "2",
]  # fmt: skip


def test_a_signal_ends_all_processes_and_the_command_goes_on(tmp_path: Path) -> None:
    given = [*COMMAND, "--out", str(tmp_path), "--set"]
    process = subprocess.Popen(
        [*given, "train.rounds=20000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while len(list(tmp_path.glob("runs/*/checkpoint.json"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    started = children(process.pid)
    process.terminate()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 143
    assert said.startswith("stopped in fedavg, seed 0")
    assert len(started) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in started)
    assert len(list(tmp_path.glob("runs/*/checkpoint.json"))) == 2


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in listed.split()]
