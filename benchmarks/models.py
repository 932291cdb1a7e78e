"""The models of the workloads, as plain modules that every contender can use unchanged.

They are written here and not imported from fedskew so that a peer's process needs nothing but
torch; the fedskew contender must build models with the same parameter counts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def logistic() -> nn.Module:
    return nn.Linear(784, 10)


def two_layer() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def fedavg_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def femnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def har_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(144, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 6)
    )


class BetaVae(nn.Module):
    """784-512-256-2 and back; ``spread`` is the logarithm of the standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.mean = nn.Linear(256, 2)
        self.spread = nn.Linear(256, 2)
        self.decoder = nn.Sequential(
            nn.Linear(2, 256),
            nn.ReLU(),
            nn.Linear(256, 512),
            nn.ReLU(),
            nn.Linear(512, 784),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        z = mean + spread.exp() * torch.randn_like(mean)
        return self.decoder(z), mean, spread


class MaskedLinear(nn.Linear):
    """A linear layer without the connections where the mask is 0."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class Made(nn.Module):
    """784-30-784: the log odds of each pixel given those before it."""

    def __init__(self) -> None:
        super().__init__()
        pixels = torch.arange(1, 785)
        # The degrees of fedskew's own MADE, so that both train the same connections.
        degrees = torch.from_numpy(np.random.default_rng(1).integers(1, 784, size=30))
        self.hidden = MaskedLinear((degrees[:, None] >= pixels).float())
        self.output = MaskedLinear((pixels[:, None] > degrees).float())

    def forward(self, x: Tensor) -> Tensor:
        return self.output(F.relu(self.hidden(x))).clamp(-15.0, 15.0)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def vae_loss(model: nn.Module, x: Tensor, beta: float) -> Tensor:
    """Mean over the batch of the summed squared error plus beta times the KL divergence."""
    image, mean, spread = model(x)
    error = (image - x).square().sum(1)
    divergence = -0.5 * (1 + 2 * spread - mean.square() - (2 * spread).exp()).sum(1)
    return (error + beta * divergence).mean()


def density_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The negative log-density of an image in nats, mean over the batch."""
    return F.binary_cross_entropy_with_logits(model(x), x, reduction="none").sum(1).mean()


def vae_training_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return vae_loss(model, x, beta=10.0)
