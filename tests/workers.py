"""Workers that are threads of this process, and end when a test says so."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from helpers import OpenBackend

from fedskew.engine.graph import Graphs
from fedskew.federate.backends.dealer import Dealer, Lost
from fedskew.federate.backends.dealt import DealtBackend
from fedskew.federate.backends.parcel import Parcel
from fedskew.federate.backends.workbench import Sent, Workbench
from fedskew.federate.holdings import Holdings


class ThreadWorker:
    """A workbench on a thread; once it has ended, another one takes its place."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._pending: list[Future[Parcel]] = []
        self._asked_after_end = 0
        self._start()

    def _start(self) -> None:
        self._bench = Workbench(self._pool.graphs)
        self._thread = ThreadPoolExecutor(1)
        self.is_running = True

    def ready(self) -> Future[None]:
        """Who asks for the first time after an end finds it not yet there."""
        told: Future[None] = Future()
        if not self.is_running:
            self._asked_after_end += 1
            if self._asked_after_end % 2:
                told.set_exception(Lost("it is starting"))
                return told
            self._start()
        told.set_result(None)
        return told

    def submit(self, data: Sent, plan: Sent, common: Sent, work: Parcel) -> Future[Parcel]:
        answer: Future[Parcel] = Future()
        if not self.is_running:
            answer.set_exception(Lost("it is starting"))
            return answer
        self._pool.submitted += 1
        self._pool.sent += [work]
        self._pending.append(answer)
        if self._pool.submitted in self._pool.ends:
            self._end()
            return answer

        def work_on() -> None:
            found = self._bench.answer(data, plan, common, work)
            if not answer.done():
                answer.set_result(found)

        self._thread.submit(work_on)
        return answer

    def _end(self) -> None:
        """Everything it was given and has not answered is lost."""
        self.is_running = False
        self._thread.shutdown(wait=True, cancel_futures=True)
        for future in self._pending:
            if not future.done():
                self._pool.lost += 1
                future.set_exception(Lost("it ended"))


class ThreadPool:
    """``ends`` says at which submissions, counted over all workers, the worker ends."""

    def __init__(
        self,
        count: int,
        ends: Collection[int] = (),
        graphs: dict[Hashable, Graphs] | None = None,
    ) -> None:
        self.ends, self.graphs = ends, graphs
        self.submitted = self.lost = 0
        self.sent: list[Parcel] = []
        self.workers = [ThreadWorker(self) for _ in range(count)]

    def put(self, parcel: Parcel) -> Any:
        return parcel


class OpenDealt(OpenBackend, DealtBackend):
    """Lets a test look at what clients keep to themselves."""

    def __init__(
        self,
        holdings: Holdings,
        dealer: Dealer,
        folder: Path | None = None,
        presum: bool = False,
    ) -> None:
        DealtBackend.__init__(self, holdings.federation, dealer, folder, presum=presum)
        self.holdings = holdings
        self.labels = {}
