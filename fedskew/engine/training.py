"""What is trained and how: the work of each client, and what all clients of a cohort share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fedskew.engine.graph import Graphs, PlainStep, Step, TracedStep, for_each_client
from fedskew.engine.optim import Optimiser
from fedskew.engine.torch_private import Tree
from fedskew.errors import ConfigError
from fedskew.types import Indices, Tensors


@dataclass(frozen=True)
class Work:
    """One client's share of a cohort: where it starts, what it holds, what its parts may read.

    ``key`` is the key of its random streams; ``sample_weight``, if given, is the weight of each of
    its rows; ``steps_before`` counts the steps of earlier rounds; ``memory`` is what its objective
    remembers of them, if there were any.
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
    """A client's result: its whole state, the mean loss over its steps, how many steps it took,
    whether all its numbers are finite, and what its objective remembers."""

    tensors: Tensors
    loss: float
    steps: int
    finite: bool
    memory: Tensors


class Augments(Protocol):
    """Changes samples [N, ...] of training batches by what was drawn for each, [N, draws]."""

    @property
    def draws(self) -> int: ...

    def change(self, x: Tensor, drawn: Tensor) -> Tensor: ...


class Training:
    """How a cohort trains: the client's gradient and all that is the same for every client.

    ``gradient`` is written for one client. It takes the trained tensors, fixed ones, context and a
    batch. It returns the gradients in the order of the trained tensors, the loss, the buffers in
    the order of ``buffers``, and the memory in its own order. Each step is traced once per
    shape and kept here, unless the training is ``plain``: then every step is called as it is
    written, in the calling thread. ``memory`` is what a client's objective remembers before its
    first step. ``augments`` change the samples of every batch, one after the other.
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
        fewest_chunks: int = 2,
        x: Tensor,
        y: Tensor,
        environment: Tensor | None = None,
        environments: int = 1,
        memory: Tensors | None = None,
        noise: Callable[[int], dict[str, tuple[int, ...]]] = lambda samples: {},
        pads: bool = True,
        counts_steps: bool = False,
        drops: bool = False,
        augments: Sequence[Augments] = (),
        graphs: Graphs | None = None,
        plain: bool = False,
    ) -> None:
        self.trained, self.buffers = trained, buffers
        self.optimiser, self.batch_size, self.epochs = optimiser, batch_size, epochs
        self.chunk, self.pads = (chunk if pads else 1), pads
        self.fewest_chunks = fewest_chunks
        self.x, self.y = x, y
        self.environment, self.environments = environment, environments
        self.memory = memory or {}
        self.noise, self.counts_steps, self.drops = noise, counts_steps, drops
        self.augments = augments
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
        """Gather the samples of a stack's batches and take a step along every client's gradient."""
        rows, drawn = batch.pop("rows"), batch.pop("drawn", {})
        for name, storage in zip(("x", "y"), data, strict=True):
            gathered = storage.index_select(0, rows.reshape(-1))
            if name == "x":
                gathered = self._augmented(gathered, drawn)
            batch[name] = gathered.reshape(*rows.shape, *storage.shape[1:])
        return self._gradient(trained, fixed, context, batch)

    def _augmented(self, x: Tensor, drawn: dict[str, Tensor]) -> Tensor:
        """Samples of all clients side by side: each is changed by what was drawn for it alone."""
        for place, part in enumerate(self.augments):
            changed = part.change(x, drawn[str(place)].reshape(len(x), part.draws))
            if changed.shape != x.shape:
                raise ConfigError(
                    f"augmentation {type(part).__name__} made {list(changed.shape[1:])} of images "
                    f"of {list(x.shape[1:])}: give them back in their shape."
                )
            x = changed
        return x
