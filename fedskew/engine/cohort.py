"""The training loop: a cohort of clients, stacked in chunks, each chunk on a worker thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedskew.data.federation import Indices
from fedskew.engine.batches import Schedule, schedule
from fedskew.engine.graph import CompiledStep, Run, leaves
from fedskew.engine.optim import Optimiser
from fedskew.engine.streams import stream

Tensors = dict[str, Tensor]
Tree = Any
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work:
    """One client's share of a cohort: where it starts, what it holds, what its parts may read.

    ``key`` is what its random streams are keyed by; ``sample_weight``, where given, weighs its
    rows one by one; ``steps_before`` counts the steps of earlier rounds.
    """

    name: str
    rows: Indices
    tensors: Tensors
    context: dict[str, Tree] = field(default_factory=dict)
    sample_weight: Tensor | None = None
    key: tuple[str | int, ...] = ()
    steps_before: int = 0


@dataclass(frozen=True)
class Trained:
    """Where a client ended: its whole state, the mean loss on the way, and how many steps."""

    tensors: Tensors
    loss: float
    steps: int


@dataclass(frozen=True)
class Training:
    """How a cohort trains: the compiled step and all that is the same for every client.

    The step takes trained tensors, fixed ones, the clients' context and a batch, and returns the
    gradients in the order of the trained tensors, the loss, and the buffers in their order.
    """

    step: CompiledStep
    trained: frozenset[str]
    buffers: tuple[str, ...]
    optimiser: Optimiser
    batch_size: int
    epochs: int
    noise: Callable[[int], dict[str, tuple[int, ...]]]
    pads: bool
    chunk: int
    x: Tensor
    y: Tensor
    environment: Tensor | None = None
    environments: int = 0
    counts_steps: bool = False
    drops: bool = False


def train(works: Sequence[Work], training: Training) -> list[Trained | Exception]:
    """Train every client; the results stand in the order of ``works``.

    Clients with the most steps go first, so that those of one chunk finish together. A chunk that
    raises is tried again client by client, so that only the guilty one is lost.
    """
    plans = {
        work.name: schedule(
            work.rows, work.key, training.batch_size, training.epochs, training.pads,
            None if training.environment is None else training.environment.numpy()[work.rows],
            training.environments,
        )
        for work in works
    }  # fmt: skip
    order = sorted(range(len(works)), key=lambda i: (-plans[works[i].name].steps, works[i].name))
    chunks = list(split(order, training.chunk if training.pads else 1))

    def attempt(chunk: Sequence[int]) -> list[Trained | Exception]:
        members = [works[i] for i in chunk]
        try:
            return [*_train_chunk(members, [plans[w.name] for w in members], training)]
        except Exception as error:
            if len(chunk) == 1:
                return [error]
            return [result for i in chunk for result in attempt([i])]

    results: list[Trained | Exception] = [RuntimeError("never trained")] * len(works)
    for chunk, outcome in zip(chunks, in_workers(attempt, chunks), strict=True):
        for i, result in zip(chunk, outcome, strict=True):
            results[i] = result
    return results


def _train_chunk(
    works: Sequence[Work], plans: Sequence[Schedule], training: Training
) -> list[Trained]:
    """Train one stack of clients, longest first; finished clients leave from the end."""
    first = works[0].tensors
    trained = {n: _stack([w.tensors[n] for w in works]) for n in first if n in training.trained}
    fixed = {n: _together([w.tensors[n] for w in works]) for n in first if n not in trained}
    context = _stack_trees([w.context for w in works])
    names = list(trained)
    moments = training.optimiser.start(list(trained.values()))
    results: list[Trained | None] = [None] * len(works)
    losses = torch.zeros(len(works))
    stack = active = len(works)
    batches = _Batches(works, plans, training)
    run: Run | None = None
    with torch.no_grad():
        for step in range(plans[0].steps):
            while plans[active - 1].steps <= step:
                active -= 1
                # Copied out: the slot goes on as ballast until the stack is narrowed.
                results[active] = _finish(trained, fixed, losses, plans, active, Tensor.clone)
            if active <= stack // 2:
                stack = active
                moments.narrow(stack)
                trained = dict(zip(names, moments.parameters, strict=True))
                fixed = {n: t[:stack] for n, t in fixed.items()}
                context = _narrowed(context, stack)
                run = None
            batch = batches.at(step, stack)
            if run is None or training.buffers:
                still = leaves(trained, fixed, context)
            if run is None or not training.pads:
                run = training.step.ready(trained, fixed, context, batch)
            outputs = run(*still, *leaves(batch))
            moments.step(list(outputs[: len(names)]))
            losses[:stack] += outputs[len(names)]
            fixed.update(zip(training.buffers, outputs[len(names) + 1 :], strict=True))
        for i in range(active):
            results[i] = _finish(trained, fixed, losses, plans, i)
    return [result for result in results if result is not None]


def _finish(
    trained: Tensors,
    fixed: Tensors,
    losses: Tensor,
    plans: Sequence[Schedule],
    i: int,
    take: Callable[[Tensor], Tensor] = lambda t: t,
) -> Trained:
    tensors = {n: take(t[i]) for n, t in {**fixed, **trained}.items()}
    steps = plans[i].steps
    return Trained(tensors, float(losses[i]) / steps, steps)


class _Batches:
    """Gathers the step-th batch of every client in a stack from the shared storage."""

    def __init__(
        self, works: Sequence[Work], plans: Sequence[Schedule], training: Training
    ) -> None:
        self._training = training
        steps = plans[0].steps
        self._positions = _pad([plan.positions for plan in plans], steps)
        self._mask = _pad([plan.mask for plan in plans], steps)
        rows = [work.rows[plan.positions] for work, plan in zip(works, plans, strict=True)]
        self._rows = _pad(rows, steps)
        self._weight = self._mask
        if any(work.sample_weight is not None for work in works):
            weights = [
                np.ones(len(w.rows), np.float32) if w.sample_weight is None
                else w.sample_weight.numpy().astype(np.float32)
                for w in works
            ]  # fmt: skip
            at = [weight[plan.positions] for weight, plan in zip(weights, plans, strict=True)]
            self._weight = _pad(at, steps) * self._mask
        if training.drops:
            keys = [stream(0, "dropout", *w.key).integers(2**62, size=steps) for w in works]
            self._keys = torch.from_numpy(np.stack(keys))
        self._before = torch.tensor([float(work.steps_before) for work in works])
        width = self._rows.shape[2]
        pairs = list(zip(works, plans, strict=True))
        self._noise = {
            kind: _pad([_draw(w, kind, plan.steps, shape) for w, plan in pairs], steps)
            for kind, shape in training.noise(width).items()
        }

    def at(self, step: int, stack: int) -> dict[str, Tree]:
        width = self._mask.shape[2]
        if not self._training.pads:
            width = int(self._mask[0, step].sum())
        here = np.s_[:stack, step, :width]
        rows = self._rows[here]
        flat = rows.reshape(-1)
        x, y = self._training.x, self._training.y
        batch: dict[str, Tree] = {
            "x": x.index_select(0, flat).view(*rows.shape, *x.shape[1:]),
            "y": y.index_select(0, flat).view(rows.shape),
            "mask": self._mask[here],
            "weight": self._weight[here],
            "noise": {kind: draws[here] for kind, draws in self._noise.items()},
        }
        if self._training.drops:
            batch["key"] = self._keys[:stack, step]
        if self._training.counts_steps:
            batch["step"] = self._before[:stack] + step
        if self._training.environments:
            environment = self._training.environment
            assert environment is not None
            batch["environment"] = environment.index_select(0, flat).view(rows.shape)
        return batch


def _draw(
    work: Work, kind: str, steps: int, shape: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = stream(0, "noise", kind, *work.key)
    return rng.standard_normal((steps, *shape), dtype=np.float32)


def _pad(arrays: Sequence[np.ndarray[Any, Any]], steps: int) -> Tensor:
    """Stack per-client arrays [steps_k, ...] into one tensor [K, steps, ...], zeros at the end."""
    out = np.zeros((len(arrays), steps, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for k, array in enumerate(arrays):
        out[k, : len(array)] = array
    return torch.from_numpy(out)


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors))


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """A stack for reading only: one tensor that all clients share is not copied."""
    if all(t is tensors[0] for t in tensors):
        return tensors[0].unsqueeze(0).expand(len(tensors), *tensors[0].shape)
    return _stack(tensors)


def _stack_trees(trees: Sequence[Mapping[str, Tree]]) -> dict[str, Tree]:
    return {
        name: _stack_trees([t[name] for t in trees])
        if isinstance(trees[0][name], Mapping)
        else _together([t[name] for t in trees])
        for name in trees[0]
    }


def _narrowed(tree: Mapping[str, Tree], count: int) -> dict[str, Tree]:
    return {
        name: _narrowed(value, count) if isinstance(value, Mapping) else value[:count]
        for name, value in tree.items()
    }


def split(order: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Cut into the fewest runs of at most ``most``, as equal as can be.

    >>> [len(run) for run in split(range(50), 32)]
    [25, 25]
    """
    count = -(-len(order) // most)
    for part in np.array_split(np.arange(len(order)), max(count, 1)):
        if len(part):
            yield [order[i] for i in part]


@contextmanager
def one_intra_op_thread() -> Iterator[None]:
    """Our workers are the parallelism; torch's own threads inside small operations are a trap."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _pool() -> ThreadPoolExecutor:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores or 1, "fedskew", initializer=lambda: torch.set_num_threads(1))


def in_workers(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Map over worker threads, one a core; results keep the order of the items."""
    with one_intra_op_thread():
        if len(items) == 1:
            return [function(items[0])]
        return list(_pool().map(function, items))
