"""Who does the work of a command: its own process, others beside it, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fedskew.comparisons.crew import Crew
from fedskew.comparisons.processes import local_crew
from fedskew.errors import at_least
from fedskew.runs.experiment import MakeBackend, Tell, local_backend
from fedskew.runs.workers import carried_by, ray_address


class Hands(NamedTuple):
    """Who carries tasks to the clients of a run, and who carries out whole runs, if others do."""

    backend: MakeBackend
    crew: Crew | None = None


@contextmanager
def hands(workers: str | None = None, jobs: int = 1, tell: Tell | None = None) -> Iterator[Hands]:
    """For ``workers`` see :func:`fedskew.runs.workers.carried_by`.

    With several ``jobs`` so many whole runs are carried out at the same time, by processes of this
    machine or, where workers are named, by theirs.
    """
    at_least("jobs", jobs, 1)
    if jobs == 1:
        with carried_by(workers, tell) as backend:
            yield Hands(backend)
    elif workers is None:
        with local_crew(jobs) as crew:
            yield Hands(local_backend, crew)
    else:
        address = ray_address(workers)
        from fedskew.comparisons.over_ray import ray_crew

        with ray_crew(address, jobs) as crew:
            yield Hands(local_backend, crew)
