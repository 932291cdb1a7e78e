"""How the server moves towards the target that its aggregator made of the updates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedskew.errors import RunError
from fedskew.parts.aggregate import ServerState
from fedskew.types import Groups, Tensors

MEMORY = "step "
"""Begins the names of a step's groups in the server's memory, apart from the aggregator's."""


class Step:
    """Base of all steps: override ``step``, and ``start`` where it has to remember something.

    A step sees the shared parameters and the target, never an update: what is private about a
    target stays so. Statistics (BatchNorm's) take the target as it is.
    """

    @property
    def whole(self) -> bool:
        """Whether it ends at the target itself, so that another step may take its place."""
        return False

    def start(self, parameters: Tensors) -> Groups:
        """What it remembers before the first round, from the shared parameters."""
        return {}

    def step(
        self, shared: Tensors, target: Tensors, memory: Groups, round_number: int
    ) -> tuple[Tensors, Groups]:
        """The parameters after the step, and what it remembers; rounds are counted from 1."""
        raise NotImplementedError


@dataclass(frozen=True)
class Whole(Step):
    """The whole way: the target becomes the shared model."""

    @property
    def whole(self) -> bool:
        return True

    def step(
        self, shared: Tensors, target: Tensors, memory: Groups, round_number: int
    ) -> tuple[Tensors, Groups]:
        return target, {}


@dataclass(frozen=True)
class LearningRate(Step):
    """x ← x + lr·(target - x)."""

    lr: float = 1.0

    @property
    def whole(self) -> bool:
        return self.lr == 1.0

    def step(
        self, shared: Tensors, target: Tensors, memory: Groups, round_number: int
    ) -> tuple[Tensors, Groups]:
        return towards(target, shared, self.lr), {}


@dataclass(frozen=True)
class Reptile(Step):
    """x ← x + η·(target - x): η is ``first`` in round 1, then ``eta``·``decay``^(round - 2).

    Without ``first`` round 1 is like all others, and the decay counts from it.
    """

    eta: float = 0.35
    first: float | None = None
    decay: float = 1.0

    def lr(self, round_number: int) -> float:
        """η in a round."""
        if self.first is None:
            return self.eta * self.decay ** (round_number - 1)
        return self.first if round_number == 1 else self.eta * self.decay ** (round_number - 2)

    def step(
        self, shared: Tensors, target: Tensors, memory: Groups, round_number: int
    ) -> tuple[Tensors, Groups]:
        return towards(target, shared, self.lr(round_number)), {}


def towards(target: Tensors, shared: Tensors, lr: float) -> Tensors:
    """shared + lr·(target - shared); the very same bits as the target where lr is 1."""
    if lr == 1.0:
        return target
    return {name: torch.lerp(shared[name], t, lr) for name, t in target.items()}


def memory_at_start(step: Step, parameters: Tensors) -> Groups:
    """A step's first memory, under the names the server keeps it by."""
    return {MEMORY + name: group for name, group in step.start(parameters).items()}


def stepped(step: Step, before: ServerState, target: ServerState) -> ServerState:
    """The state after a step from the one before towards the one an aggregator returned.

    Statistics and what the aggregator wants as it is are taken from the target.
    """
    moving = target.shared.keys() - before.buffers - target.unstepped
    aims = {name: t for name, t in target.shared.items() if name in moving}
    start = {name: before.shared[name] for name in aims}
    known = {n.removeprefix(MEMORY): g for n, g in before.memory.items() if n.startswith(MEMORY)}
    moved, memory = step.step(start, aims, known, before.round)
    if moved.keys() != aims.keys():
        raise RunError(
            f"the server step {type(step).__name__} must return every parameter it is given and "
            "no other."
        )
    return replace(
        target,
        shared={**before.shared, **target.shared, **moved},
        memory={**target.memory, **{MEMORY + name: group for name, group in memory.items()}},
        unstepped=frozenset(),
    )
