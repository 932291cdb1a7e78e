"""What is added to a client's gradient before it takes a step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedskew.parts.objective import Context
from fedskew.types import Tensors

DIVISOR = "divisor"
"""What the objective divided the loss of this batch by, None if by nothing; every step says it."""


class Correction:
    """Base of all corrections; works on one client's tensors."""

    reads: tuple[str, ...] = ()

    def correct(self, gradients: Tensors, trained: Tensors, client: Context) -> Tensors:
        raise NotImplementedError


class Term(Correction):
    """Base of what is added to the loss itself: given by its gradient, divided where the loss is.

    Control variates are no such term: they are measured from the steps that clients took.
    """

    def gradient(self, parameter: Tensor, name: str, client: Context) -> Tensor:
        """With respect to one of the trained parameters."""
        raise NotImplementedError

    def correct(self, gradients: Tensors, trained: Tensors, client: Context) -> Tensors:
        divisor = client[DIVISOR]
        added = {name: self.gradient(trained[name], name, client) for name in gradients}
        if divisor is not None:
            added = {name: gradient / divisor for name, gradient in added.items()}
        return {name: g + added[name] for name, g in gradients.items()}


@dataclass(frozen=True)
class Pull(Term):
    """μ/2·|w - w_received|²: keeps a client near the model it was sent."""

    mu: float
    reads = ("received",)

    def gradient(self, parameter: Tensor, name: str, client: Context) -> Tensor:
        anchor: Tensor = client["received"][name]
        return self.mu * (parameter - anchor)


@dataclass(frozen=True)
class Decay(Term):
    """δ/2·|w|²: weight decay, in the step itself and not in the optimiser."""

    delta: float

    def gradient(self, parameter: Tensor, name: str, client: Context) -> Tensor:
        return self.delta * parameter


@dataclass(frozen=True)
class ControlVariates(Correction):
    """g - c_k + c: replaces the client's own drift by the mean drift of all (SCAFFOLD)."""

    reads = ("own_control", "control")

    def correct(self, gradients: Tensors, trained: Tensors, client: Context) -> Tensors:
        own, everyone = client["own_control"], client["control"]
        return {n: g - own[n] + everyone[n] for n, g in gradients.items()}
