"""Slices of work given to workers; what is lost with a worker is given again."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

from fedskew.errors import RunError
from fedskew.federate.backends.parcel import Parcel
from fedskew.federate.backends.workbench import Sent

AT_ONCE = 2
"""A worker has its next slice before it has answered, and never waits for one."""
MOST_LOSSES = 5
"""How often a slice may end its worker before it is to blame."""


class Lost(Exception):
    """A worker ended before it answered."""


class Worker(Protocol):
    """Somewhere that answers slices in turn, and may end and come back at any moment."""

    def ready(self) -> Future[None]:
        """Done as soon as it takes slices, also after it ended and was started again."""
        ...

    def submit(self, data: Sent, plan: Sent, common: Sent, work: Parcel) -> Future[Parcel]:
        """The answer of its workbench; raises :class:`Lost` if it ends before that."""
        ...


class Pool(Protocol):
    """The workers there are, and a place for what all of them need."""

    @property
    def workers(self) -> Sequence[Worker]: ...

    def put(self, parcel: Parcel) -> Any:
        """Something small that stands for a parcel in ``submit``."""
        ...


class Dealer:
    """Gives slices to whoever is free, and again to others if a worker ends.

    ``patience`` is for how many seconds all workers may be gone, ``pause`` passes before a worker
    that is not ready is asked again.
    """

    def __init__(self, pool: Pool, patience: float = 300.0, pause: float = 0.1) -> None:
        self._pool, self._patience, self._pause = pool, patience, pause
        self._starting: dict[Future[None], Worker] = {w.ready(): w for w in pool.workers}
        self._ready: list[Worker] = []
        self._sent: dict[str, tuple[tuple[object, ...], Sent]] = {}
        self._numbers = itertools.count(1)

    @property
    def size(self) -> int:
        return len(self._pool.workers)

    def sent(self, kind: str, of: Sequence[object], make: Callable[[], Parcel]) -> Sent:
        """What all workers need of a kind; packed anew only if it is made ``of`` other objects."""
        before, known = self._sent.get(kind, ((), None))
        if known is None or len(before) != len(of) or any(map(_differ, before, of)):
            self._sent.pop(kind, None)
            known = Sent(f"{kind}-{next(self._numbers)}", self._pool.put(make()))
            self._sent[kind] = (tuple(of), known)
        return known

    def deal(
        self, slices: Sequence[Callable[[], Parcel]], data: Sent, plan: Sent, common: Sent
    ) -> Iterator[tuple[int, Parcel]]:
        """The answers as they come, each with the number of its slice; slices are packed late."""
        waiting, losses = deque(range(len(slices))), Counter[int]()
        running: dict[Future[Parcel], tuple[Worker, int]] = {}
        since = time.monotonic()
        while waiting or running:
            self._welcome()
            for worker in self._free(running, len(waiting)):
                number = waiting.popleft()
                running[worker.submit(data, plan, common, slices[number]())] = (worker, number)
            if running:
                since = time.monotonic()
            self._check(since)
            futures: list[Future[Any]] = [*running, *self._starting]
            wait(futures, 1.0, FIRST_COMPLETED)
            for future in [future for future in running if future.done()]:
                worker, number = running.pop(future)
                if not isinstance(error := future.exception(), Lost):
                    yield number, future.result()
                    continue
                losses[number] += 1
                if losses[number] > MOST_LOSSES:
                    raise RunError(
                        f"a part of a round ended its worker {losses[number]} times ({error}): is "
                        "there enough memory? Repeat the command to go on."
                    ) from error
                waiting.appendleft(number)
                self._miss(worker)

    def _free(
        self, running: dict[Future[Parcel], tuple[Worker, int]], count: int
    ) -> Iterator[Worker]:
        """Whoever can be given one of ``count`` slices, the least busy first."""
        busy = Counter(id(worker) for worker, _ in running.values())
        for level in range(AT_ONCE):
            for worker in self._ready:
                if count and busy[id(worker)] <= level:
                    busy[id(worker)] += 1
                    count -= 1
                    yield worker

    def _welcome(self) -> None:
        """Take whoever has started, or wait for it again."""
        for future in [future for future in self._starting if future.done()]:
            worker = self._starting.pop(future)
            if isinstance(future.exception(), Lost):
                time.sleep(self._pause)
                self._starting[worker.ready()] = worker
            else:
                future.result()
                self._ready.append(worker)

    def _miss(self, worker: Worker) -> None:
        """A worker that was started again refuses slices until it is ready."""
        if worker in self._ready:
            self._ready.remove(worker)
            self._starting[worker.ready()] = worker

    def _check(self, since: float) -> None:
        if not self._ready and time.monotonic() > since + self._patience:
            raise RunError(
                f"none of {self.size} workers has been there for {self._patience:.0f} s: repeat "
                "the command to go on when they are."
            )


def _differ(one: object, other: object) -> bool:
    return one is not other
