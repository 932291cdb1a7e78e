"""The training loop: a cohort of clients, stacked in chunks, each chunk on a worker thread."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedskew.engine.batches import Schedule, schedule
from fedskew.engine.stack import Stack
from fedskew.engine.training import Trained, Training, Work
from fedskew.engine.workers import in_workers
from fedskew.errors import locate
from fedskew.types import Indices


def train(works: Sequence[Work], training: Training) -> list[Trained | Exception]:
    """Train every client; the results are in the order of ``works``.

    Clients with the most steps go first, so that those of one chunk finish together. A chunk that
    raises is tried again client by client, so that only the failing client is lost; its exception
    says at which batch it was raised.
    """
    schedules = {work.name: scheduled(training, work.rows, work.key) for work in works}
    steps = [schedules[work.name].steps for work in works]
    chunks = stacks([work.name for work in works], steps, training)

    def attempt(chunk: Sequence[int]) -> list[Trained | Exception]:
        members = [works[i] for i in chunk]
        try:
            return [*_train_chunk(members, [schedules[w.name] for w in members], training)]
        except BdbQuit:
            raise
        except Exception as error:
            if len(chunk) == 1:
                return [error]
            return [result for i in chunk for result in attempt([i])]

    results: list[Trained | Exception] = [RuntimeError("never trained")] * len(works)
    for chunk, outcome in zip(chunks, in_workers(attempt, chunks, training.plain), strict=True):
        for i, result in zip(chunk, outcome, strict=True):
            results[i] = result
    return results


def scheduled(training: Training, rows: Indices, key: tuple[str | int, ...] = ()) -> Schedule:
    """The batches of a client that holds these rows; how many there are does not depend on the key.

    >>> import torch
    >>> from fedskew.engine.optim import Optimiser
    >>> training = Training(lambda *_: [], trained=frozenset(), buffers=(), optimiser=Optimiser(),
    ...                     batch_size=4, epochs=2, chunk=1, x=torch.zeros(9), y=torch.zeros(9))
    >>> scheduled(training, np.arange(9)).steps
    6
    """
    owned = None if training.environment is None else training.environment.numpy()[rows]
    return schedule(
        rows, key, training.batch_size, training.epochs, training.pads, owned,
        training.environments,
    )  # fmt: skip


def stacks(names: Sequence[str], steps: Sequence[int], training: Training) -> list[Sequence[int]]:
    """Who trains together: places of clients, those with the most steps first."""
    order = sorted(range(len(names)), key=lambda i: (-steps[i], names[i]))
    return list(split(order, training.chunk, training.fewest_chunks))


def _train_chunk(
    works: Sequence[Work], schedules: Sequence[Schedule], training: Training
) -> list[Trained]:
    """Train one stack of clients, longest first; finished clients leave from the end."""
    stack = Stack(works, schedules, training)
    active = len(works)
    results: list[Trained] = []
    with torch.no_grad():
        for step in range(schedules[0].steps):
            while schedules[active - 1].steps <= step:
                active -= 1
                # Copied out: the slot keeps being computed until the stack is narrowed.
                results += stack.results(active, active + 1, step, Tensor.clone)
            if active <= stack.size // 2:
                stack.narrow(active)
            try:
                stack.step(step)
            except Exception as error:
                locate(error, f"batch {step + 1} of {schedules[0].steps}")
                raise
        results += stack.results(0, active, schedules[0].steps)[::-1]
    return results[::-1]


def split(order: Sequence[int], most: int, fewest: int = 2) -> Iterator[Sequence[int]]:
    """Cut into runs of at most ``most``, as few and as equal as possible, but at least two.

    Two, so that there is work for a second core; not as many as there are cores, because the
    cut decides how numbers are rounded, and runs must repeat on any machine. A part of several
    neighbouring runs, cut again into as few as possible (``fewest`` = 1), gives the same runs.

    >>> [len(run) for run in split(range(50), 32)], [len(run) for run in split(range(5), 32)]
    ([25, 25], [3, 2])
    """
    count = max(-(-len(order) // most), fewest)
    for part in np.array_split(np.arange(len(order)), count):
        if len(part):
            yield [order[i] for i in part]
