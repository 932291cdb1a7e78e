"""A server that trusts the clients' mean where their updates agree in sign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedskew.parts.aggregate import (
    Aggregator,
    BySize,
    ServerState,
    Update,
    Weighting,
    normalised,
    weighted_mean,
)

ROUNDING = 1e-6
"""Tolerance for weights that should sum to one."""


@dataclass(frozen=True)
class MaskedMean(Aggregator):
    """x + m·Σ p_k·(y_k - x), with m = 1 where A = |Σ p_k·sign(y_k - x)| ≥ τ, else A.

    Statistics of BatchNorm have no sign to agree on: they are averaged.
    """

    tau: float
    weighting: Weighting = field(default_factory=BySize)

    def wanted(self, clients: Sequence[str], state: ServerState) -> Sequence[str]:
        return self.weighting.wanted(clients, state)

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        weights, notes = normalised(self.weighting, updates, state)
        target = weighted_mean(updates, weights)
        for name in target.keys() - state.buffers:
            current, mean = state.shared[name], target[name]
            agreement = self._agreement([u.tensors[name] - current for u in updates], weights)
            softened = current + agreement * (mean - current)
            target[name] = torch.where(agreement >= self.tau - ROUNDING, mean, softened)
        return replace(
            state, shared={**state.shared, **target}, notes=notes,
            measured=self.weighting.measured(updates, weights, state),
        )  # fmt: skip

    @staticmethod
    def _agreement(changes: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        total = torch.zeros_like(changes[0])
        for change, weight in zip(changes, weights, strict=True):
            total.add_(change.sign(), alpha=weight)
        return total.abs()
