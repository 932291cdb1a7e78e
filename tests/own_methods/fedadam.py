"""FedAdam in a file of a user's own: a step of the server that goes with any target."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedskew.federate.recipe import Recipe
from fedskew.methods import find
from fedskew.parts.step import Step
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class Adam(Step):
    """m ← β₁m + (1-β₁)Δ, v ← β₂v + (1-β₂)Δ², x ← x + lr·m/(√v + τ), with Δ = target - x."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def start(self, parameters: Tensors) -> Groups:
        return {
            "m": {name: torch.zeros_like(x) for name, x in parameters.items()},
            "v": {name: torch.full_like(x, self.tau**2) for name, x in parameters.items()},
        }

    def step(
        self, shared: Tensors, target: Tensors, memory: Groups, round_number: int
    ) -> tuple[Tensors, Groups]:
        moved: Tensors = {}
        m, v = dict(memory["m"]), dict(memory["v"])
        for name, x in shared.items():
            change = target[name] - x
            m[name] = self.beta1 * m[name] + (1 - self.beta1) * change
            v[name] = self.beta2 * v[name] + (1 - self.beta2) * change.square()
            moved[name] = x + self.lr * m[name] / (v[name].sqrt() + self.tau)
        return moved, {"m": m, "v": v}


def fedadam(
    base: str = "fedavg",
    lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> Recipe:
    """Reddi et al. 2021, Adaptive Federated Optimization: Adam on the server, over any target."""
    return replace(find(base).recipe(), steps=Adam(lr, beta1, beta2, tau))
