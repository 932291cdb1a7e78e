"""What is added to a client's gradient before it takes a step."""

from __future__ import annotations

from dataclasses import dataclass

from fedskew.parts.objective import Context
from fedskew.types import Tensors


class Correction:
    """Base of all corrections; works on one client's tensors."""

    reads: tuple[str, ...] = ()

    def correct(self, gradients: Tensors, trained: Tensors, client: Context) -> Tensors:
        raise NotImplementedError


@dataclass(frozen=True)
class Pull(Correction):
    """The gradient of μ/2·|w - w_received|²: keeps a client near the model it was sent."""

    mu: float
    reads = ("received",)

    def correct(self, gradients: Tensors, trained: Tensors, client: Context) -> Tensors:
        anchor = client["received"]
        return {n: g + self.mu * (trained[n] - anchor[n]) for n, g in gradients.items()}


@dataclass(frozen=True)
class ControlVariates(Correction):
    """g - c_k + c: replaces the client's own drift by everyone's (SCAFFOLD)."""

    reads = ("own_control", "control")

    def correct(self, gradients: Tensors, trained: Tensors, client: Context) -> Tensors:
        own, everyone = client["own_control"], client["control"]
        return {n: g - own[n] + everyone[n] for n, g in gradients.items()}
