"""Helpers that are actors of a Ray cluster: each carries out whole runs on one core.

Runs are written where they belong by whoever carries them out: all machines must share the folder.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedskew.comparisons.crew import Bench, Crew, Event, Order
from fedskew.engine.workers import use_cores
from fedskew.errors import RunError, RunStopped
from fedskew.federate.backends.dealer import Lost
from fedskew.federate.backends.parcel import Parcel
from fedskew.federate.backends.ray import RayCluster, Told, answer_of, check_alike, told
from fedskew.federate.backends.workbench import WorkerTraceback, portable
from fedskew.store import make_folder

PATIENCE = 300.0
"""For so many seconds a helper waits for an actor that Ray starts, or starts again."""


@contextmanager
def ray_crew(address: str, count: int) -> Iterator[Crew]:
    """So many actors on the cluster at an address, or else on this machine."""
    with RayCluster(address) as cluster:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        actors = cluster.actors(RunActor, count, at_once=2)
        yield Crew([RayHelper(actor, events) for actor in actors], cluster.put, events)


class RunActor:
    """What runs in an actor's process; one call works, another asks how far it is."""

    def __init__(self) -> None:
        use_cores(1)
        self._bench = Bench()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def ready(self) -> Told:
        return told()

    def sees(self, path: Path) -> bool:
        return path.exists()

    def work(self, order: Order, data: Parcel) -> tuple[Exception | None, str]:
        try:
            return self._bench.work(order, lambda: data, self._events.put), ""
        except Exception as error:
            return portable(error), "".join(traceback.format_exception(error))

    def told(self) -> list[Event]:
        found = []
        while not self._events.empty():
            found.append(self._events.get())
        return found


class RayHelper:
    """One actor."""

    def __init__(self, actor: Any, events: queue.SimpleQueue[Event]) -> None:
        self._actor, self._events = actor, events

    def submit(self, order: Order) -> Future[RunStopped | None]:
        future: Future[RunStopped | None] = Future()
        threading.Thread(target=self._follow, args=(order, future), daemon=True).start()
        return future

    def close(self) -> None:
        """The cluster ends its actors."""

    def _follow(self, order: Order, future: Future[RunStopped | None]) -> None:
        try:
            self._wait(order.out)
            placed = replace(order, data=None, out=order.out.resolve())
            answer = _asked(self._actor.work, placed, order.data)
            while not answer.done():
                time.sleep(0.5)
                for event in _asked(self._actor.told).result():
                    self._events.put(event)
            outcome, text = answer.result()
        except Exception as error:
            future.set_exception(error)
            return
        if outcome is None or isinstance(outcome, RunStopped):
            future.set_result(outcome)
        else:
            outcome.__cause__ = WorkerTraceback(text)
            future.set_exception(outcome)

    def _wait(self, out: Path) -> None:
        """Until the actor is there; it must see the folder of runs."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                its: Told = _asked(self._actor.ready).result()
                break
            except Lost:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        if sentence := check_alike(its):
            self._events.put(Event(-1, sentence=sentence))
        if not _asked(self._actor.sees, make_folder(out).resolve()).result():
            raise RunError(
                f"{its[1]} does not see {out.resolve()}: whole runs on several machines need a "
                "folder that all share; without --jobs, clients are dealt instead."
            )


def _asked(method: Any, *given: Any) -> Future[Any]:
    return answer_of(method.remote(*given), lambda found: found)
