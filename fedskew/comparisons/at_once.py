"""Runs that are attempted at the same time: what is begun when, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fedskew.comparisons.crew import Crew, Event, Order
from fedskew.config import Config
from fedskew.errors import RunStopped, StoppedAtOnce
from fedskew.runs.experiment import Run

if TYPE_CHECKING:
    from fedskew.comparisons.runner import Runner


@dataclass(frozen=True)
class Wanted:
    """A run to attempt, under a name for observers (none: its method and seed).

    ``ended`` is called as soon as it ends, and told whether it was finished before. A ``trial`` may
    fail from its first round on.
    """

    config: Config
    name: str = ""
    draw: bool = True
    ended: Callable[[Run, bool], None] | None = None
    trial: bool = False

    def bears(self, error: RunStopped) -> bool:
        """Whether others go on: a set-up that cannot train at all is an error, but in a trial."""
        return self.trial or not isinstance(error, StoppedAtOnce)


@runtime_checkable
class ManyObserver(Protocol):
    """An observer that also follows runs which are carried out at the same time."""

    def under_way(self, rounds: Mapping[str, tuple[str, int] | None]) -> None:
        """By name of the runs under way, the stage and round each has finished last."""
        ...


class AtOnce:
    """Has a crew carry out runs, and the runner take them as they end."""

    def __init__(self, runner: Runner, crew: Crew, wanted: Sequence[Wanted]) -> None:
        self._runner, self._crew, self._wanted = runner, crew, wanted
        self._found: dict[int, Run | None] = {}
        self._under_way: dict[int, set[str]] = {}
        self._made: set[str] = set()
        self._rounds: dict[str, tuple[str, int] | None] = {}

    def carry_out(self) -> list[Run | None]:
        """The runs in the order they are wanted; none for those that stopped."""
        runner, before = self._runner, set(self._runner.stopped)
        for number, stopped in self._crew.carry_out(self._orders(), self._told):
            wanted = self._wanted[number]
            self._rounds.pop(wanted.name, None)
            self._made |= self._under_way.pop(number)
            if stopped is not None and not wanted.bears(stopped):
                raise stopped
            if stopped is None:
                self._found[number] = runner.run_wanted(wanted, elsewhere=True)
            else:
                runner.position += 1
                runner.note(wanted.name, stopped)
            self._tell_observer()
        names = [wanted.name for wanted in self._wanted]
        for name in [name for name in names if name in runner.stopped and name not in before]:
            runner.stopped[name] = runner.stopped.pop(name)
        return [self._found.get(number) for number in range(len(self._wanted))]

    def _orders(self) -> Iterator[Order | None]:
        """What is left to run, each as soon as nothing is under way that it has in common.

        Two runs of one folder come one after the other, and so do those that share a stage until
        it is made.
        """
        coming, waiting = iter(range(len(self._wanted))), list[int]()
        while True:
            number = next((i for i in waiting if not self._clash(i)), None)
            if number is not None:
                waiting.remove(number)
            elif (number := next(coming, None)) is None:
                if not waiting:
                    return
                yield None
                continue
            wanted = self._wanted[number]
            if self._clash(number):
                waiting.append(number)
            elif self._runner.has_finished(wanted.config):
                self._found[number] = self._runner.attempt(wanted)
            else:
                self._under_way[number] = self._runner.in_common(wanted.config)
                self._rounds[wanted.name] = None
                self._tell_observer()
                yield self._runner.order(number, wanted)

    def _clash(self, number: int) -> bool:
        mine = self._runner.in_common(self._wanted[number].config)
        return any(mine & (its - self._made) for its in self._under_way.values())

    def _told(self, event: Event) -> None:
        if event.sentence and self._runner.tell:
            self._runner.tell(event.sentence)
        if event.progress:
            name = self._wanted[event.number].name
            if name in self._rounds:
                self._rounds[name] = event.progress
                self._tell_observer()

    def _tell_observer(self) -> None:
        if isinstance(self._runner.watch, ManyObserver):
            self._runner.watch.under_way(self._rounds)
