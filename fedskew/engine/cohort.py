"""The training loop: a cohort of clients, stacked in chunks, each chunk on a worker thread."""

from __future__ import annotations

import os
from bdb import BdbQuit
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

from fedskew.engine.batches import Schedule, schedule
from fedskew.engine.graph import Graphs, PlainStep, Step, TracedStep, for_each_client, leaves
from fedskew.engine.optim import Optimiser
from fedskew.engine.streams import stream
from fedskew.errors import locate
from fedskew.types import Indices, Tensors

Tree = Any
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work:
    """One client's share of a cohort: where it starts, what it holds, what its parts may read.

    ``key`` is what its random streams are keyed by; ``sample_weight``, where given, weighs its
    rows one by one; ``steps_before`` counts the steps of earlier rounds; ``memory`` is what its
    objective remembers of them, if there were any.
    """

    name: str
    rows: Indices
    tensors: Tensors
    context: dict[str, Tree] = field(default_factory=dict)
    sample_weight: Tensor | None = None
    key: tuple[str | int, ...] = ()
    steps_before: int = 0
    memory: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """Where a client ended: its whole state, the mean loss on the way, how many steps it took,
    whether all its numbers are finite, and what its objective remembers."""

    tensors: Tensors
    loss: float
    steps: int
    finite: bool
    memory: Tensors


class Training:
    """How a cohort trains: the client's gradient and all that is the same for every client.

    ``gradient`` is written for one client: from its trained tensors, fixed ones, context and a
    batch to the gradients in the order of the trained tensors, the loss, and the buffers in the
    order of ``buffers`` and the memory in its own. Each step is traced once per shape and kept
    here, unless the training is ``plain``: then every step is called as it is written, in the
    calling thread. ``memory`` is what a client's objective remembers before its first step.
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
        environments: int = 1,
        memory: Tensors | None = None,
        noise: Callable[[int], dict[str, tuple[int, ...]]] = lambda samples: {},
        pads: bool = True,
        counts_steps: bool = False,
        drops: bool = False,
        graphs: Graphs | None = None,
        plain: bool = False,
    ) -> None:
        self.trained, self.buffers = trained, buffers
        self.optimiser, self.batch_size, self.epochs = optimiser, batch_size, epochs
        self.chunk, self.pads = (chunk if pads else 1), pads
        self.x, self.y = x, y
        self.environment, self.environments = environment, environments
        self.memory = memory or {}
        self.noise, self.counts_steps, self.drops = noise, counts_steps, drops
        self._gradient = for_each_client(gradient)
        self.plain = plain
        self.step = (
            PlainStep(self._step) if plain else TracedStep(self._step, optimiser.is_plain, graphs)
        )

    def _step(
        self,
        trained: Tensors,
        lr: Tensor,
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
    raises is tried again client by client, so that only the guilty one is lost; its exception
    says at which batch it was raised.
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


def _train_chunk(
    works: Sequence[Work], plans: Sequence[Schedule], training: Training
) -> list[Trained]:
    """Train one stack of clients, longest first; finished clients leave from the end."""
    stack = _Stack(works, plans, training)
    active = len(works)
    results: list[Trained] = []
    with torch.no_grad():
        for step in range(plans[0].steps):
            while plans[active - 1].steps <= step:
                active -= 1
                # Copied out: the slot goes on as ballast until the stack is narrowed.
                results += stack.results(active, active + 1, step, Tensor.clone)
            if active <= stack.size // 2:
                stack.narrow(active)
            try:
                stack.step(step)
            except Exception as error:
                locate(error, f"batch {step + 1} of {plans[0].steps}")
                raise
        results += stack.results(0, active, plans[0].steps)[::-1]
    return results[::-1]


class _Stack:
    """The tensors of some clients, one behind the other, and how they take a step together."""

    def __init__(
        self, works: Sequence[Work], plans: Sequence[Schedule], training: Training
    ) -> None:
        self.size = len(works)
        self._training = training
        # Sorted: a traced step takes its tensors by place, whatever order a dictionary has.
        tensors = {n: [w.tensors[n] for w in works] for n in sorted(works[0].tensors)}
        moving = training.trained.union(training.buffers)
        held = {n: torch.stack(t) if n in moving else _together(t) for n, t in tensors.items()}
        self._trained = {n: t for n, t in held.items() if n in training.trained}
        self._fixed = {n: t for n, t in held.items() if n not in training.trained}
        remembered = [{**training.memory, **w.memory} for w in works]
        self._memory = {
            n: torch.stack([m[n] for m in remembered]).to(training.x.device)
            for n in training.memory
        }
        self._context = {**_stack_trees([w.context for w in works]), **self._memory}
        self._moments = training.optimiser.start(list(self._trained.values()))
        self._losses = training.x.new_zeros(self.size)
        device = training.x.device
        self._lr = torch.tensor(training.optimiser.lr, dtype=torch.float64, device=device)
        batches, self._structure = pytree.tree_flatten(_batches(works, plans, training))
        self._batches = [t.to(device) for t in batches]
        self._widths = _widths(plans, training)
        self._constant: list[Tensor] = []

    def narrow(self, size: int) -> None:
        """Keep only the first clients."""
        self.size = size
        self._trained, self._fixed, self._context, self._moments, self._losses = pytree.tree_map(
            lambda t: t[:size],
            (self._trained, self._fixed, self._context, self._moments, self._losses),
        )
        self._memory = {name: self._context[name] for name in self._memory}
        self._batches = [t[:, :size] for t in self._batches]
        self._constant = []

    def step(self, step: int) -> None:
        """One step of every client: parameters, moments, buffers and losses move in place."""
        training, width = self._training, self._widths[step]
        batch = [t[step] if t.dim() < 3 else t[step, :, :width] for t in self._batches]
        same = (self._trained, self._lr, self._fixed, self._context)
        data = (training.x, training.y)
        self._constant = self._constant or leaves(*same, data)
        run, moved = training.step.ready(
            (self.size, width),
            # A graph keeps what it was traced with, and of the data it needs only the shape.
            lambda: (
                *same,
                tuple(t[:1].expand(t.shape) for t in data),
                pytree.tree_unflatten(batch, self._structure),
            ),
        )
        outputs = run(*self._constant, *batch)
        count = len(self._trained)
        rest = [i for i in range(count) if i not in moved]
        parameters = list(self._trained.values())
        training.optimiser.step(
            [parameters[i] for i in rest], [outputs[i] for i in rest], self._moments, self._lr
        )
        self._losses += outputs[count]
        held = [*(self._fixed[n] for n in training.buffers), *self._memory.values()]
        for tensor, value in zip(held, outputs[count + 1 :], strict=True):
            tensor.copy_(value)

    def results(
        self, first: int, last: int, steps: int, take: Callable[[Tensor], Tensor] = lambda t: t
    ) -> list[Trained]:
        """What became of the clients from ``first`` up to ``last``."""
        everything = {**self._fixed, **self._trained}
        # A sum carries any NaN or infinity along, and needs neither a copy nor one look each.
        moved = [*self._trained.values(), *(self._fixed[n] for n in self._training.buffers)]
        sums = sum(t[first:last].reshape(last - first, -1).sum(1) for t in moved)
        finite = torch.isfinite(torch.as_tensor(sums)).tolist()
        losses = self._losses[first:last].tolist()
        return [
            Trained(
                {n: take(t[i]) for n, t in everything.items()},
                losses[i - first] / steps,
                steps,
                finite[i - first],
                {n: take(t[i]) for n, t in self._memory.items()},
            )
            for i in range(first, last)
        ]


def _widths(plans: Sequence[Schedule], training: Training) -> list[int]:
    """How wide each step's batches are.

    Clients in a stack share one shape, and short batches are padded. A client alone is padded
    only up to an eighth of a batch, which spares work and keeps the number of shapes small; with
    batch statistics it is not padded at all.
    """
    whole = plans[0].mask.shape[1]
    if len(plans) > 1 or training.environments > 1:
        return [whole] * plans[0].steps
    unit = max(1, whole // 8) if training.pads else 1
    real = plans[0].mask.sum(axis=1).astype(int)
    return [min(whole, -(-int(count) // unit) * unit) for count in real]


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
    if training.drops:
        keys = [stream(0, "dropout", *w.key).integers(2**62, size=steps) for w in works]
        batches["key"] = torch.from_numpy(np.stack(keys, axis=1))
    if training.counts_steps:
        before = torch.tensor([float(work.steps_before) for work in works])
        batches["step"] = torch.arange(steps)[:, None] + before
    return batches


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
        for name in sorted(trees[0])
    }


def split(order: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Cut into runs of at most ``most``, as few and as equal as can be, but no fewer than two.

    Two, so that there is work for a second core; not as many as there are cores, because the
    cut decides how numbers are rounded, and runs must repeat on any machine.

    >>> [len(run) for run in split(range(50), 32)], [len(run) for run in split(range(5), 32)]
    ([25, 25], [3, 2])
    """
    count = max(-(-len(order) // most), 2)
    for part in np.array_split(np.arange(len(order)), count):
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


def in_workers(
    function: Callable[[Item], Result], items: Sequence[Item], here: bool = False
) -> list[Result]:
    """Map over worker threads, one a core; results keep the order of the items.

    ``here`` maps in the calling thread instead, where a debugger can stop.
    """
    with one_intra_op_thread():
        if here or len(items) == 1:
            return [function(item) for item in items]
        return list(_pool().map(function, items))
