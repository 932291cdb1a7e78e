"""Optimiser steps on stacked parameters, in place and in one fused call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


@dataclass(frozen=True)
class Optimiser:
    """SGD or Adam with its settings; its state is fresh each time a client starts training."""

    kind: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start(self, parameters: list[Tensor]) -> OptimiserState:
        return OptimiserState(self, parameters)

    def travelled_per_gradient(self) -> float:
        """How far the parameters finally move for one unit of a gradient, over the learning rate.

        Momentum ρ repeats every gradient 1 + ρ + ρ² + ... = 1/(1-ρ) times.
        """
        return 1.0 / (1.0 - self.momentum) if self.kind == "sgd" else 1.0


@dataclass
class OptimiserState:
    """Moments of a stack of clients that all began at the same step."""

    optimiser: Optimiser
    parameters: list[Tensor]
    first: list[Any] = field(init=False)
    second: list[Tensor] = field(init=False)
    steps: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        adam_kind = self.optimiser.kind == "adam"
        self.first = [torch.zeros_like(p) if adam_kind else None for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters] if adam_kind else []
        self.steps = [torch.zeros(()) for _ in self.parameters] if adam_kind else []

    def narrow(self, count: int) -> None:
        """Keep only the first ``count`` clients of the stack."""
        self.parameters = [p[:count] for p in self.parameters]
        self.first = [m if m is None else m[:count] for m in self.first]
        self.second = [v[:count] for v in self.second]

    def step(self, gradients: list[Tensor]) -> None:
        settings = self.optimiser
        if settings.kind == "adam":
            adam(
                self.parameters, gradients, self.first, self.second, [], self.steps,
                fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=settings.lr,
                weight_decay=settings.weight_decay, eps=1e-8, maximize=False,
            )  # fmt: skip
        else:
            sgd(
                self.parameters, gradients, self.first,
                fused=True, weight_decay=settings.weight_decay, momentum=settings.momentum,
                lr=settings.lr, dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip
