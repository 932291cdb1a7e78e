"""What a client sends beside its parameters, and what it keeps for the next round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.engine.optim import Optimiser
from fedskew.parts.objective import Bound
from fedskew.types import Groups, Indices, Tensors

if TYPE_CHECKING:
    from fedskew.data.federation import Client
    from fedskew.federate.roster import Roster

SHARED, PERSONAL, SAMPLE_WEIGHT, STEPS = "model", "personal", "sample_weight", "steps"
"""Groups of a client's private state: its unshared parameters, its own model, the weights of its
rows, and how many steps it has made in total (for objectives that change with time)."""
MEMORY = "memory"
"""Followed by the number of a phase: the group that holds the memory of its objective."""


@dataclass(frozen=True)
class Finished:
    """A client that has just trained, as its reports see it.

    ``x`` and ``y`` are the federation's storage: a report reads the client's own rows of it (see
    ``samples``) and those in ``public``, which belong to nobody.
    """

    client: Client
    x: Tensor
    y: Tensor
    classes: int
    module: nn.Module
    received: Tensors
    trained: Tensors
    changed: frozenset[str]
    steps: int
    optimiser: Optimiser
    private: Groups
    broadcast: Groups
    public: Indices
    rng: np.random.Generator
    agreed: np.random.Generator
    """Gives every client of the stage the same draws, in every round."""
    found: Groups = field(default_factory=dict)
    """What the client found when it chose its start (``Begun.found``)."""
    vocabulary: int = 0
    """If samples are token ids, how many there are."""
    log_ratio: Tensor | None = None
    """If known, the log ratio of each sample's density over all clients to that at this client."""

    def model(self) -> Bound:
        """The trained model, ready for a forward pass in evaluation mode."""
        return Bound(self.module, self.trained)

    def samples(self, split: str = "train") -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(self.client.split(split))
        return self.x[rows], self.y[rows]


@dataclass(frozen=True)
class Reported:
    """``sends`` goes to the server; ``keeps`` replaces groups of the client's private state."""

    sends: Groups = field(default_factory=dict)
    keeps: Groups = field(default_factory=dict)


class Report:
    """Base of all reports; runs at the client, after training."""

    needs_sgd: bool = False
    """Whether it computes gradients from a client's movement, which adaptive steps distort."""

    classes_for: str = ""
    """What it needs each sample to have one class for, if it does."""
    in_parts: bool = False
    """Whether it calls parts of the model by themselves, as an objective may."""

    @property
    def tells(self) -> str:
        """What it sends to the server of a client, in words; nothing where it only keeps."""
        return f"what {type(self).__name__} reports"

    def check(self, roster: Roster) -> None:
        """Refuse a federation this report cannot work on, before anything runs."""

    def report(self, finished: Finished) -> Reported:
        raise NotImplementedError


@dataclass(frozen=True)
class VariateChange(Report):
    """SCAFFOLD option II: c_k⁺ = c_k - c + (x - y_k)/(S·lr), sent as the change c_k⁺ - c_k.

    With momentum ρ a gradient moves the parameters by lr/(1-ρ) in the end, so that takes lr's
    place; otherwise the variates would estimate a gradient 1/(1-ρ) times too large.
    """

    needs_sgd = True
    tells = "the change of their control variates"

    def report(self, finished: Finished) -> Reported:
        travelled = finished.optimiser.lr * finished.optimiser.travelled_per_gradient()
        scale = 1.0 / (finished.steps * travelled)
        own, everyone = finished.private.get("own_control", {}), finished.broadcast["control"]
        new, change = {}, {}
        for name in sorted(finished.changed):
            drift = (finished.received[name] - finished.trained[name]) * scale
            change[name] = drift - everyone[name]
            new[name] = change[name] + own[name] if name in own else change[name]
        return Reported(sends={"control_change": change}, keeps={"own_control": new})


@dataclass(frozen=True)
class LocalLength(Report):
    """FedNova's a_k: how many plain gradient steps the client's movement equals.

    τ steps for plain SGD; [τ - ρ(1-ρ^τ)/(1-ρ)]/(1-ρ) with momentum ρ; with a proximal pull μ
    each step keeps 1 - lr·μ of the length before it.
    """

    mu: float = 0.0
    needs_sgd = True
    tells = "how long their accumulated gradients are"

    def report(self, finished: Finished) -> Reported:
        length = accumulated_length(finished.steps, finished.optimiser, self.mu)
        return Reported(sends={"length": {"a": torch.tensor(length, dtype=torch.float64)}})


def accumulated_length(steps: int, optimiser: Optimiser, mu: float = 0.0) -> float:
    """|a_k|₁ by unrolling the client's own steps: momentum repeats gradients, a pull shrinks them.

    The pull is part of the gradient, so momentum repeats it too.

    >>> accumulated_length(3, Optimiser(lr=0.1)), accumulated_length(2, Optimiser(momentum=0.5))
    (3.0, 2.5)
    """
    length = velocity = 0.0
    for _ in range(steps):
        velocity = optimiser.momentum * velocity + 1.0 - optimiser.lr * mu * length
        length += velocity
    return length
