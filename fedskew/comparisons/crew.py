"""Whole runs at the same time, each in a process of its own that stays for the next one."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedskew.config import Config
from fedskew.data.federation import Federation
from fedskew.errors import RunError, RunStopped, clients_may_fail
from fedskew.federate.backends.dealer import Lost
from fedskew.federate.backends.parcel import Parcel, pack, unpack
from fedskew.federate.holdings import roster_of
from fedskew.federate.progress import Progress
from fedskew.runs.experiment import Run, carry_out, on_data
from fedskew.runs.identity import identify
from fedskew.trust.consent import typed

MOST_LOSSES = 3
"""How often a run may end its process before it is to blame."""
Draw = Callable[[Run, Callable[[], Federation]], object]


@dataclass(frozen=True)
class Order:
    """A run to carry out, on data that were put where its process finds them.

    ``fingerprint`` is of the data and ``sha256`` of the run's identity, as whoever orders it knows
    them. ``may_fail`` is for clients whose own code raises, ``draw`` draws the finished run,
    ``grows`` says that it is made longer on purpose.
    """

    number: int
    config: Config
    data: Any
    fingerprint: str
    sha256: str
    out: Path
    may_fail: bool = False
    draw: Draw | None = None
    grows: bool = False


@dataclass(frozen=True)
class Event:
    """What a process tells of its run: the round it has finished, or a sentence for the user."""

    number: int
    """Of its order; -1 for what is about none."""
    progress: tuple[str, int] | None = None
    sentence: str = ""


class Helper(Protocol):
    """A process that carries out one run at a time."""

    def submit(self, order: Order) -> Future[RunStopped | None]:
        """Done when the run is finished or stopped; :class:`Lost` if the process ended.

        What else the run raised is raised.
        """
        ...

    def close(self) -> None:
        """End at once, whatever is under way: it can be resumed."""
        ...


class Crew:
    """Helpers, and a place for data; ``events`` is where helpers put what they tell."""

    def __init__(
        self,
        helpers: Sequence[Helper],
        put: Callable[[Parcel], Any],
        events: queue.SimpleQueue[Event],
    ) -> None:
        self._helpers, self._put, self._events = helpers, put, events
        self._data: tuple[Federation, Any] | None = None

    @property
    def size(self) -> int:
        return len(self._helpers)

    def put(self, federation: Federation) -> Any:
        """What stands for data in orders; the latest are packed once."""
        if self._data is None or self._data[0] is not federation:
            self._data = None
            self._data = (federation, self._put(pack(federation)))
        return self._data[1]

    def carry_out(
        self, orders: Iterator[Order | None], told: Callable[[Event], None]
    ) -> Iterator[tuple[int, RunStopped | None]]:
        """The number of each run as it ends, and why it stopped if it did.

        An order is drawn when somebody is free; None says that the next must wait for a run that
        is under way.
        """
        free, losses = list(self._helpers), Counter[int]()
        running: dict[Future[RunStopped | None], tuple[Helper, Order]] = {}
        more = True
        while more or running:
            while more and free:
                if (order := next(orders, _END)) is _END:
                    more = False
                elif isinstance(order, Order):
                    helper = free.pop()
                    running[helper.submit(order)] = (helper, order)
                else:
                    break
            wait(running, 0.2, FIRST_COMPLETED)
            while not self._events.empty():
                told(self._events.get())
            for future in [future for future in running if future.done()]:
                helper, order = running.pop(future)
                if not isinstance(error := future.exception(), Lost):
                    free.append(helper)
                    yield order.number, future.result()
                    continue
                losses[order.number] += 1
                if losses[order.number] >= MOST_LOSSES:
                    raise RunError(f"{error}: is there enough memory? Repeat the command to go on.")
                running[helper.submit(order)] = (helper, order)

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()


_END = object()


class Bench:
    """The side of a helper's process: data stay unpacked for the next run on them."""

    def __init__(self) -> None:
        self._held: tuple[str, Federation] | None = None

    def work(
        self, order: Order, load: Callable[[], Parcel], tell: Callable[[Event], None]
    ) -> RunStopped | None:
        """Carry out a run; ``load`` fetches its data."""
        config, number = order.config, order.number
        typed(config.model_dump())
        if self._held is None or self._held[0] != order.fingerprint:
            self._held = None
            self._held = (order.fingerprint, unpack(load(), mapped=True))
        federation = self._held[1]
        identity = identify(config, lambda: roster_of(federation), order.fingerprint)
        if identity.sha256 != order.sha256:
            raise RunError("code changed on disk since the command began: repeat the command.")
        latest = 0.0

        def watch(progress: Progress, *_: object) -> None:
            nonlocal latest
            if time.monotonic() > latest + 0.2:
                latest = time.monotonic()
                tell(Event(number, (progress.stage, progress.round)))

        def say(sentence: str) -> None:
            tell(Event(number, sentence=sentence))

        backend = on_data(config, lambda: federation)
        try:
            with clients_may_fail(order.may_fail):
                done = carry_out(identity, backend, order.out, watch, tell=say, grows=order.grows)
        except RunStopped as error:
            return error
        if order.draw is not None:
            order.draw(done, lambda: federation)
        return None
