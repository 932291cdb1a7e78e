"""How the server moves towards the target that its aggregator computed from the updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fedskew.errors import RunError
from fedskew.parts.aggregate import ServerState
from fedskew.registry.knobs import Knob, check_fields
from fedskew.types import Groups, Tensors

MEMORY = "step "
"""Prefix of a step's groups in the server's memory, to separate them from the aggregator's."""


class Step:
    """Base of all steps: override ``step``, and ``start`` if it has to remember something.

    A step sees the shared parameters and the target, never an update: a target that is
    differentially private stays private. Statistics (BatchNorm's) take the target as it is.
    """

    @property
    def whole(self) -> bool:
        """Whether it ends at the target itself, so that another step may replace it."""
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
    """A full step: the target becomes the shared model."""

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

    Without ``first``, round 1 is like all others, and the decay starts there.
    """

    eta: Annotated[
        float,
        Knob(
            "step of the server towards its target; 1 is the target itself",
            gt=0,
            tries=(0.1, 0.35, 1.0),
        ),
    ] = 0.35
    first: Annotated[
        float | None, Knob("the step of round 1, if it should differ (the thesis: 1)", gt=0)
    ] = None
    decay: Annotated[float, Knob("factor on the step from round to round", gt=0)] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

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
    """shared + lr·(target - shared); bit for bit the target if lr is 1."""
    if lr == 1.0:
        return target
    return {name: torch.lerp(shared[name], t, lr) for name, t in target.items()}


def memory_at_start(step: Step, parameters: Tensors) -> Groups:
    """A step's initial memory, under the names the server uses for it."""
    return {MEMORY + name: group for name, group in step.start(parameters).items()}


def stepped(step: Step, before: ServerState, target: ServerState) -> ServerState:
    """The state after a step from the one before towards the one an aggregator returned.

    Statistics and the entries in ``unstepped`` are taken from the target.
    """
    moving = target.shared.keys() - before.buffers - target.unstepped
    aims = {name: t for name, t in target.shared.items() if name in moving}
    start = {name: before.shared[name] for name in aims}
    known = {n.removeprefix(MEMORY): g for n, g in before.memory.items() if n.startswith(MEMORY)}
    found = step.step(start, aims, known, before.round)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], dict)):
        raise RunError(
            f"the server step {type(step).__name__} must return parameters and what it remembers, "
            f"not {found!r:.60}."
        )
    moved, memory = found
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
