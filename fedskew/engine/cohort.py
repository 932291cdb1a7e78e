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
from torch.utils import _pytree as pytree

from fedskew.data.federation import Indices
from fedskew.engine.batches import Schedule, schedule
from fedskew.engine.graph import Run, Step, TracedStep, for_each_client, leaves
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


class Training:
    """How a cohort trains: the client's gradient and all that is the same for every client.

    ``gradient`` is written for one client: from its trained tensors, fixed ones, context and a
    batch to the gradients in the order of the trained tensors, the loss, and the buffers in the
    order of ``buffers``. Each step is traced once per shape and kept here.
    """

    def __init__(
        self,
        gradient: Step,
        *,
        trained: frozenset[str],
        buffers: tuple[str, ...],
        optimiser: Optimiser,
        batch_size: int,
        epochs: int,
        chunk: int,
        x: Tensor,
        y: Tensor,
        environment: Tensor | None = None,
        environments: int = 0,
        noise: Callable[[int], dict[str, tuple[int, ...]]] = lambda samples: {},
        pads: bool = True,
        counts_steps: bool = False,
        drops: bool = False,
    ) -> None:
        self.trained, self.buffers = trained, buffers
        self.optimiser, self.batch_size, self.epochs = optimiser, batch_size, epochs
        self.chunk, self.pads = (chunk if pads else 1), pads
        self.x, self.y = x, y
        self.environment, self.environments = environment, environments
        self.noise, self.counts_steps, self.drops = noise, counts_steps, drops
        self._gradient = for_each_client(gradient)
        self.step = TracedStep(self._step)

    def _step(
        self,
        trained: Tensors,
        fixed: Tensors,
        context: Tree,
        data: tuple[Tensor, Tensor],
        batch: dict[str, Tree],
    ) -> list[Tensor]:
        """Gather the samples of a stack's batches and follow every client's gradient."""
        rows = batch.pop("rows")
        for name, storage in zip(("x", "y"), data, strict=True):
            gathered = storage.index_select(0, rows.reshape(-1))
            batch[name] = gathered.reshape(*rows.shape, *storage.shape[1:])
        return self._gradient(trained, fixed, context, batch)


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
    chunks = list(split(order, training.chunk))

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
    stack = active = len(works)
    tensors = {n: [w.tensors[n] for w in works] for n in works[0].tensors}
    moving = training.trained.union(training.buffers)
    held = {n: torch.stack(t) if n in moving else _together(t) for n, t in tensors.items()}
    trained = {n: t for n, t in held.items() if n in training.trained}
    fixed = {n: t for n, t in held.items() if n not in training.trained}
    context = _stack_trees([w.context for w in works])
    moments = training.optimiser.start(list(trained.values()))
    losses = training.x.new_zeros(stack)
    lr = torch.tensor(training.optimiser.lr, dtype=torch.float64)
    state = (trained, fixed, context, moments, losses)
    batches = _batches(works, plans, training)
    results: list[Trained] = []
    run: Run | None = None
    with torch.no_grad():
        for step in range(plans[0].steps):
            while plans[active - 1].steps <= step:
                active -= 1
                # Copied out: the slot goes on as ballast until the stack is narrowed.
                results.append(_finish(state, active, step, Tensor.clone))
            if active <= stack // 2:
                stack = active
                state = pytree.tree_map(lambda t, count=stack: t[:count], state)
                batches = pytree.tree_map(lambda t, count=stack: t[:, :count], batches)
                run = None
            batch = {kind: _at(values, step) for kind, values in batches.items()}
            if not training.pads:
                width = int(batch["mask"].sum())
                batch = pytree.tree_map(lambda t, count=width: t[:, :count], batch)
            if run is None or not training.pads:
                same = (*state[:3], (training.x, training.y))
                run, still = training.step.ready(*same, batch), leaves(*same)
            outputs = run(*still, *leaves(batch))
            _apply(training, state, outputs, lr)
        results += [_finish(state, i, plans[0].steps) for i in reversed(range(active))]
    return results[::-1]


def _apply(
    training: Training, state: tuple[Any, ...], outputs: Sequence[Tensor], lr: Tensor
) -> None:
    """Move parameters, buffers and summed losses, in place."""
    trained, fixed, _, moments, losses = state
    count = len(trained)
    training.optimiser.step(list(trained.values()), list(outputs[:count]), moments, lr)
    losses += outputs[count]
    for name, value in zip(training.buffers, outputs[count + 1 :], strict=True):
        fixed[name].copy_(value)


def _finish(
    state: tuple[Any, ...], i: int, steps: int, take: Callable[[Tensor], Tensor] = lambda t: t
) -> Trained:
    trained, fixed, _, _, losses = state
    tensors = {n: take(t[i]) for n, t in {**fixed, **trained}.items()}
    return Trained(tensors, float(losses[i]) / steps, steps)


def _batches(
    works: Sequence[Work], plans: Sequence[Schedule], training: Training
) -> dict[str, Tree]:
    """All batches of a stack but the samples themselves, as tensors [step, client, ...]."""
    steps = plans[0].steps
    pairs = list(zip(works, plans, strict=True))
    mask = _pad([plan.mask for plan in plans], steps)
    batches: dict[str, Tree] = {
        "rows": _pad([work.rows[plan.positions] for work, plan in pairs], steps),
        "mask": mask,
        "weight": mask,
    }
    if any(work.sample_weight is not None for work in works):
        weights = [_weights(work)[plan.positions] for work, plan in pairs]
        batches["weight"] = _pad(weights, steps) * mask
    batches["noise"] = {
        kind: _pad([_draw(work, kind, plan.steps, shape) for work, plan in pairs], steps)
        for kind, shape in training.noise(mask.shape[2]).items()
    }
    if training.environments:
        assert training.environment is not None
        batches["environment"] = training.environment[batches["rows"]]
    if training.drops:
        keys = [stream(0, "dropout", *w.key).integers(2**62, size=steps) for w in works]
        batches["key"] = torch.from_numpy(np.stack(keys, axis=1))
    if training.counts_steps:
        before = torch.tensor([float(work.steps_before) for work in works])
        batches["step"] = torch.arange(steps)[:, None] + before
    return batches


def _at(values: Tree, step: int) -> Tree:
    if isinstance(values, dict):
        return {kind: draws[step] for kind, draws in values.items()}
    return values[step]


def _weights(work: Work) -> np.ndarray[Any, np.dtype[np.float32]]:
    if work.sample_weight is None:
        return np.ones(len(work.rows), np.float32)
    return work.sample_weight.numpy().astype(np.float32)


def _draw(
    work: Work, kind: str, steps: int, shape: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = stream(0, "noise", kind, *work.key)
    return rng.standard_normal((steps, *shape), dtype=np.float32)


def _pad(arrays: Sequence[np.ndarray[Any, Any]], steps: int) -> Tensor:
    """Per-client arrays [steps_k, ...] as one tensor [steps, client, ...], zeros at the end."""
    out = np.zeros((steps, len(arrays), *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for k, array in enumerate(arrays):
        out[: len(array), k] = array
    return torch.from_numpy(out)


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """A stack for reading only: one tensor that all clients share is not copied."""
    if all(t is tensors[0] for t in tensors):
        return tensors[0].unsqueeze(0).expand(len(tensors), *tensors[0].shape)
    return torch.stack(list(tensors))


def _stack_trees(trees: Sequence[Mapping[str, Tree]]) -> dict[str, Tree]:
    return {
        name: _stack_trees([t[name] for t in trees])
        if isinstance(trees[0][name], Mapping)
        else _together([t[name] for t in trees])
        for name in trees[0]
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
