"""Losses that want features distributed alike in all of a client's environments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedskew.errors import ConfigError
from fedskew.parts.invariance import EnvironmentErm, answers, by_moments
from fedskew.parts.objective import Batch, Bound, Context

WIDTHS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
"""The γ of the Gaussian kernels exp(-γ·|x - y|²) whose sum MMD compares environments by."""


@dataclass(frozen=True)
class Aligned(EnvironmentErm):
    """mean_e L_e + γ·(mean distance of two environments' features)."""

    in_parts = True
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < math.inf:
            raise ConfigError(f"gamma must not be negative, not {self.gamma}.")

    def distances(self, features: Tensor, batch: Batch) -> Tensor:
        """Of every two environments [E, E]; 0 on the diagonal."""
        raise NotImplementedError

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        features, _, risks = answers(model, batch)
        pairs = batch.present[:, None] * batch.present[None, :]
        # Each pair is there twice, and so is each of P·(P-1) in the denominator.
        count = (pairs.sum() - batch.present.sum()).clamp(min=1.0)
        distance = (self.distances(features, batch) * pairs).sum() / count
        return batch.over_environments(risks) + self.gamma * distance


@dataclass(frozen=True)
class Mmd(Aligned):
    """The squared maximum mean discrepancy, Kxx + Kyy - 2·Kxy, each K a mean of seven kernels."""

    alone = "mmd is empirical risk"

    def distances(self, features: Tensor, batch: Batch) -> Tensor:
        real = batch.by_environment(batch.mask)
        shares = real / real.sum(dim=1, keepdim=True).clamp(min=1.0)
        return squared_distances(between_environments(gaussian_kernels(features), shares))


def gaussian_kernels(features: Tensor) -> Tensor:
    """Σ_γ exp(-γ·|x - y|²) of every two samples."""
    # Distances do not change with the origin, but products of vectors far from it round worse.
    centred = features - features.mean(dim=0).detach()
    products = centred @ centred.T
    squares = (centred * centred).sum(dim=1)
    distances = (squares[:, None] + squares[None, :] - 2.0 * products).clamp(min=0.0)
    itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
    distances = distances.masked_fill(itself, 0.0)
    return torch.stack([torch.exp(-width * distances) for width in WIDTHS]).sum(dim=0)


@dataclass(frozen=True)
class Coral(Aligned):
    """Mean squared differences of mean features, and of their covariances.

    Covariances never exist: with X the centred samples of an environment,
    Σ_ij C_ij·C'_ij is the sum of the squared entries of X·X'ᵀ over (n-1)·(n'-1).
    """

    alone = "coral is empirical risk"

    def distances(self, features: Tensor, batch: Batch) -> Tensor:
        means, deviations, real = by_moments(features, batch)
        between_means = (means[:, None] - means[None, :]).square().mean(dim=2)
        deviations = deviations.flatten(end_dim=1)
        shares = real / (real.sum(dim=1, keepdim=True) - 1.0).clamp(min=1.0)
        products = between_environments((deviations @ deviations.T).square(), shares)
        return between_means + squared_distances(products) / features.shape[1] ** 2


def between_environments(kernel: Tensor, shares: Tensor) -> Tensor:
    """Σ_ij s_i·s_j·k_ij, i of one environment and j of another [E, E], with s [E, B]."""
    count = len(shares)
    own = torch.eye(count, dtype=shares.dtype, device=shares.device)
    places = (own[:, :, None] * shares[None]).reshape(count, -1)
    return places @ kernel @ places.T


def squared_distances(products: Tensor) -> Tensor:
    """|a - b|² of every two vectors, from their inner products."""
    squares = products.diagonal()
    return squares[:, None] + squares[None, :] - 2.0 * products
