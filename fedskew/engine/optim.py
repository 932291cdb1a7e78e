"""Optimiser steps on stacked parameters, in place and in one fused operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedskew.engine.torch_private import fused_adam, fused_sgd


@dataclass(frozen=True)
class Optimiser:
    """SGD or Adam with its settings; its state is fresh each time a client starts training.

    ``start`` makes the state for a stack of clients and ``step`` updates parameters and state in
    place, with operations that a graph can contain. All clients of a stack are at the same step.
    """

    kind: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start(self, parameters: list[Tensor]) -> list[list[Tensor]]:
        """Momentum (SGD), or first moments, second moments and the step count (Adam)."""
        if self.kind == "adam":
            zeros = [[torch.zeros_like(p) for p in parameters] for _ in range(2)]
            # One count for each tensor, all on the client axis so that a stack can be narrowed.
            return [*zeros, [p.new_zeros(len(p)) for p in parameters]]
        return [[torch.zeros_like(p) for p in parameters]] if self.momentum else []

    def step(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        state: list[list[Tensor]],
        lr: Tensor,
    ) -> None:
        # The fused kernels walk through memory in order, whatever the strides.
        gradients = [gradient.contiguous() for gradient in gradients]
        if self.kind == "adam":
            first, second, counts = state
            for count in counts:
                count.add_(1)
            steps = [count[0] for count in counts]
            fused_adam(
                parameters, gradients, first, second, steps, lr, weight_decay=self.weight_decay
            )
        else:
            fused_sgd(
                parameters,
                gradients,
                state[0] if state else [],
                lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
            )

    @property
    def is_plain(self) -> bool:
        """Whether a step is just w - lr·gradient."""
        return self.kind == "sgd" and not self.momentum and not self.weight_decay

    def travelled_per_gradient(self) -> float:
        """How far the parameters finally move per unit of gradient, divided by the learning rate.

        Momentum ρ repeats every gradient 1 + ρ + ρ² + ... = 1/(1-ρ) times.
        """
        return 1.0 / (1.0 - self.momentum) if self.kind == "sgd" else 1.0
