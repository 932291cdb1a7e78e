"""Variational autoencoders: an encoder that describes codes, a decoder that decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from fedskew.models.registry import VAE, Hidden, Latent, Shape, register


class Vae(nn.Module):
    """An encoder and a decoder, all parameters named ``encoder.*`` or ``decoder.*``.

    The encoder gives 2·latent numbers per sample: the mean of its code, then its log-variances.
    Called as a whole, the model decodes the means.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latent: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.latent = latent

    def forward(self, x: Tensor) -> Tensor:
        drawn: Tensor = self.decoder(self.encoder(x)[:, : self.latent])
        return drawn


class LogVariance(nn.Module):
    """Reads the second half of its input as log standard deviations: log σ² = 2·log σ."""

    def forward(self, codes: Tensor) -> Tensor:
        mean, log_deviation = codes.chunk(2, dim=1)
        return torch.cat([mean, 2.0 * log_deviation], dim=1)


def fully_connected(widths: Sequence[int]) -> list[nn.Module]:
    """Linear layers with a ReLU between them."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return layers[:-1]


@register("beta-vae", parts=VAE)
def beta_vae(shape: Shape, classes: int, *, latent: Latent = 2, hidden: Hidden = (512, 256)) -> Vae:
    """Fully connected VAE of the latent-weights thesis; its decoder ends in a sigmoid (0..1)."""
    size = prod(shape)
    encoder = [nn.Flatten(), *fully_connected([size, *hidden, 2 * latent]), LogVariance()]
    decoder = [
        *fully_connected([latent, *reversed(hidden), size]),
        nn.Sigmoid(),
        nn.Unflatten(1, shape),
    ]
    return Vae(nn.Sequential(*encoder), nn.Sequential(*decoder), latent)


@register("conv-vae", min_side=12, parts=VAE)
def conv_vae(shape: Shape, classes: int, *, latent: Latent = 128) -> Vae:
    """Convolutional VAE of the one-class-per-client paper; its decoder ends in tanh (-1..1)."""
    channels, *image = shape
    inner = [(side - 4) // 2 + 1 for side in image]
    small = [(side - 5) // 2 + 1 for side in inner]
    # A transposed convolution cannot know how many rows a stride of two left over.
    grown = nn.ConvTranspose2d(16, 6, 5, stride=2, output_padding=_left_over(small, inner, 5))
    drawn = nn.ConvTranspose2d(6, channels, 4, stride=2, output_padding=_left_over(inner, image, 4))
    codes = 16 * prod(small)
    encoder = [
        nn.Conv2d(channels, 6, 4, stride=2), nn.ReLU(), nn.Conv2d(6, 16, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(codes, 2 * latent),
    ]  # fmt: skip
    decoder = [
        nn.Linear(latent, codes), nn.Unflatten(1, (16, *small)), grown, nn.ReLU(), drawn, nn.Tanh(),
    ]  # fmt: skip
    return Vae(nn.Sequential(*encoder), nn.Sequential(*decoder), latent)


def _left_over(small: Sequence[int], large: Sequence[int], kernel: int) -> tuple[int, int]:
    height, width = (b - ((s - 1) * 2 + kernel) for s, b in zip(small, large, strict=True))
    return height, width
