"""The tensors of several clients, stacked, and how they take a step together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedskew.engine.batches import Schedule, batch_widths, stacked_batches
from fedskew.engine.torch_private import Tree, flatten, leaves, map_leaves, unflatten
from fedskew.engine.training import Trained, Training, Work


class Stack:
    """Clients that train together, longest schedule first."""

    def __init__(
        self, works: Sequence[Work], schedules: Sequence[Schedule], training: Training
    ) -> None:
        self.size = len(works)
        self._training = training
        # Sorted: a traced step takes its tensors by position, whatever order a dictionary has.
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
        device = training.x.device
        self._losses = torch.zeros(self.size, device=device)
        self._lr = torch.tensor(training.optimiser.lr, dtype=torch.float64, device=device)
        batches, self._structure = flatten(stacked_batches(works, schedules, training))
        self._batches = [t.to(device) for t in batches]
        self._widths = batch_widths(schedules, training)
        self._constant: list[Tensor] = []

    def narrow(self, size: int) -> None:
        """Keep only the first clients."""
        self.size = size
        self._trained, self._fixed, self._context, self._moments, self._losses = map_leaves(
            lambda t: t[:size],
            (self._trained, self._fixed, self._context, self._moments, self._losses),
        )
        self._memory = {name: self._context[name] for name in self._memory}
        self._batches = [t[:, :size] for t in self._batches]
        self._constant = []

    def step(self, step: int) -> None:
        """One step of every client: parameters, moments, buffers and losses change in place."""
        training, width = self._training, self._widths[step]
        batch = [t[step] if t.dim() < 3 else t[step, :, :width] for t in self._batches]
        same = (self._trained, self._lr, self._fixed, self._context)
        data = (training.x, training.y)
        self._constant = self._constant or leaves(*same, data)
        run, moved = training.step.ready(
            (self.size, width),
            # A graph keeps the tensors it was traced with; of the data it needs only the shape.
            lambda: (
                *same,
                tuple(t[:1].expand(t.shape) for t in data),
                unflatten(batch, self._structure),
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
        """The results of the clients from ``first`` up to ``last``."""
        everything = {**self._fixed, **self._trained}
        # Any NaN or infinity shows in the sum, which needs no copy and no check of each entry.
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


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """A read-only stack: a tensor that all clients share is not copied."""
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
