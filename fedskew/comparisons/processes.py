"""Helpers that are processes of this machine: each gets one core's share, and the data mapped."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.comparisons.crew import Bench, Crew, Event, Order
from fedskew.engine.workers import cores, use_cores
from fedskew.errors import RunStopped
from fedskew.federate.backends.dealer import Lost
from fedskew.federate.backends.parcel import Parcel
from fedskew.federate.backends.workbench import WorkerTraceback, portable

START = (
    "from fedskew.comparisons.processes import main; main(*map(int, __import__('sys').argv[1:]))"
)


@contextmanager
def local_crew(count: int) -> Iterator[Crew]:
    """So many processes, which end with the block whatever they are at; runs can be resumed."""
    folder = Path(tempfile.mkdtemp(prefix="fedskew-"))
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    share = max(1, cores() // count)
    crew = Crew([Process(share, events) for _ in range(count)], _Files(folder), events)
    try:
        yield crew
    finally:
        crew.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Files:
    """Writes parcels to files, which processes map into their memory: one copy serves all."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def __call__(self, parcel: Parcel) -> Path:
        self._count += 1
        path = self._folder / f"data-{self._count}"
        path.with_suffix(".head").write_bytes(parcel.head)
        parcel.body.tofile(path)
        return path


def _mapped(path: Path) -> Parcel:
    body = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    return Parcel(path.with_suffix(".head").read_bytes(), body)


class Process:
    """One process, started when it gets its first run, and again if it ended."""

    def __init__(self, most_cores: int, events: queue.SimpleQueue[Event]) -> None:
        self._cores, self._events = most_cores, events
        self._process: subprocess.Popen[bytes] | None = None
        self._ends: Connection[Any, Any] | None = None

    def submit(self, order: Order) -> Future[RunStopped | None]:
        future: Future[RunStopped | None] = Future()
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        threading.Thread(target=self._follow, args=(order, future), daemon=True).start()
        return future

    def _start(self) -> None:
        self._ends, theirs = Pipe()
        number = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(number), str(self._cores)],
            pass_fds=[number], stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        theirs.close()

    def _follow(self, order: Order, future: Future[RunStopped | None]) -> None:
        """Take what the process tells until it has answered."""
        process, ends = self._process, self._ends
        assert process is not None
        assert ends is not None
        try:
            ends.send(order)
            while isinstance(told := ends.recv(), Event):
                self._events.put(told)
        except (OSError, EOFError):
            code = process.wait()
            future.set_exception(Lost(f"the process of a run ended with code {code}"))
            return
        except Exception as error:  # what a user drew or set may not be packed
            future.set_exception(error)
            return
        outcome, text = told
        if outcome is None or isinstance(outcome, RunStopped):
            future.set_result(outcome)
        else:
            outcome.__cause__ = WorkerTraceback(text)
            future.set_exception(outcome)

    def close(self) -> None:
        """End the process at once: at every moment its files are whole or absent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._ends is not None:
            self._ends.close()
        self._process = self._ends = None


def main(number: int, most_cores: int) -> None:
    """What a process does: carry out what it is sent, until nobody is there any more."""
    ends: Connection[Any, Any] = Connection(number)
    use_cores(most_cores)
    bench = Bench()
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()

    def listen() -> None:
        with suppress(OSError, EOFError):
            while True:
                orders.put(ends.recv())
        # Whoever ordered the runs was killed.
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        order = orders.get()
        ends.send(_answered(bench, order, ends.send))


def _answered(
    bench: Bench, order: Order, tell: Callable[[Event], None]
) -> tuple[Exception | None, str]:
    try:
        return bench.work(order, lambda: _mapped(order.data), tell), ""
    except Exception as error:
        return portable(error), "".join(traceback.format_exception(error))
