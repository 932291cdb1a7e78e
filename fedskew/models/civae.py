"""Class-informed variational autoencoders: a linear classifier reads the codes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated

from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.models.registry import VAE, Hidden, Latent, Shape, register
from fedskew.models.vae import Vae, fully_connected
from fedskew.registry.knobs import Knob

CIVAE = (*VAE, "classifier")


class Civae(Vae):
    """A VAE with a linear ``classifier`` on its codes; called as a whole, it classifies.

    The logits are those of the mean codes, so that one input has one answer. Weights are
    initialised as in Keras (Glorot), as in the thesis: with torch's smaller ones, the codes of
    white images carry no information about the image for hundreds of steps.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latent: int, classes: int) -> None:
        super().__init__(encoder, decoder, latent)
        self.classifier = nn.Linear(latent, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.encoder(x)[:, : self.latent])
        return logits


@register("conv-civae", min_side=4, parts=CIVAE)
def conv_civae(shape: Shape, classes: int, *, latent: Latent = 7) -> Civae:
    """Convolutional CI-VAE for handwriting; its decoder ends in a sigmoid (0..1)."""
    channels, *image = shape
    if any(side % 4 for side in image):
        raise ConfigError(
            f"model 'conv-civae' needs images whose sides are multiples of 4, not "
            f"{image[0]}x{image[1]}: set federation.image, e.g. {{side = 28}}."
        )
    small = [side // 4 for side in image]
    features = 32 * prod(small)
    encoder = [
        nn.Conv2d(channels, 16, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 2 * latent),
    ]  # fmt: skip
    decoder = [
        nn.Linear(latent, 100), nn.ReLU(), nn.Linear(100, features), nn.ReLU(),
        nn.Unflatten(1, (32, *small)),
        nn.ConvTranspose2d(32, 32, 3, stride=2, padding=1, output_padding=1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 3, stride=2, padding=1, output_padding=1), nn.ReLU(),
        nn.ConvTranspose2d(16, channels, 1), nn.Sigmoid(),
    ]  # fmt: skip
    return Civae(nn.Sequential(*encoder), nn.Sequential(*decoder), latent, classes)


@register("dense-civae", parts=CIVAE)
def dense_civae(
    shape: Shape,
    classes: int,
    *,
    latent: Latent = 3,
    hidden: Hidden = (64, 32),
    decoder_hidden: Annotated[
        Sequence[int], Knob("units of the decoder's hidden layers, first to last", ge=1)
    ] = (16, 32, 64),
) -> Civae:
    """Fully connected CI-VAE for phone sensors; its decoder ends in a sigmoid (0..1)."""
    size = prod(shape)
    encoder = [nn.Flatten(), *fully_connected([size, *hidden, 2 * latent])]
    decoder = [
        *fully_connected([latent, *decoder_hidden, size]), nn.Sigmoid(), nn.Unflatten(1, shape),
    ]  # fmt: skip
    return Civae(nn.Sequential(*encoder), nn.Sequential(*decoder), latent, classes)
