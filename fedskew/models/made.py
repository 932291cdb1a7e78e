"""Masked autoencoders that estimate densities (MADE): no output sees its own input or later ones.

p(x) = Π p(x_d | earlier inputs): the degree of input d is its position in an order, the degrees of
hidden units are drawn, and a connection is kept only if the degree does not decrease (to an output:
if it increases). Orders and degrees come from ``mask_seed`` alone, never from a run's seed or a
client, so that the models of all clients can be averaged and compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.errors import ConfigError
from fedskew.models.registry import MADE, Hidden, Shape, register
from fedskew.registry.knobs import Knob

Shuffled = Annotated[bool, Knob("use a random order of the inputs instead of the stored one")]
MaskSeed = Annotated[int, Knob("seed of the masks, the same for all clients", ge=1)]

LEAST_LOG_SCALE = math.log(0.01)
"""The least deviation: without it, a feature that never varies has an infinite density."""
MOST_LOG_ODDS = 15.0
"""A limit: else a pixel that was always black has a log-probability of -∞ if it is not."""


class MaskedLinear(nn.Linear):
    """A linear layer without the connections where the mask is 0."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.shape[1], mask.shape[0])
        # Not part of the state: it follows from the knobs, never changes and is never sent.
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class Made(nn.Module):
    """What both kinds share; all parameters are named ``hidden.*`` or ``output.*``.

    Called as a whole, the model returns the parameters of each input's distribution given the
    earlier ones, [samples, numbers per input, inputs]. Subclasses define what these numbers mean.
    """

    def __init__(
        self, shape: Shape, hidden: Sequence[int], shuffled: bool, mask_seed: int, numbers: int
    ) -> None:
        super().__init__()
        if not hidden:
            raise ConfigError("a MADE needs at least one hidden layer, like hidden = [30].")
        self.shape = shape
        degrees = degrees_of(prod(shape), hidden, shuffled, mask_seed)
        self.order: list[int] = np.argsort(degrees[0]).tolist()
        layers: list[nn.Module] = []
        for before, after in pairwise(degrees):
            layers += [MaskedLinear(_mask(after[:, None] >= before)), nn.ReLU()]
        self.hidden = nn.Sequential(nn.Flatten(), *layers)
        seen = _mask(degrees[0][:, None] > degrees[-1])
        self.output = MaskedLinear(seen.repeat(numbers, 1))

    def forward(self, x: Tensor) -> Tensor:
        described: Tensor = self.output(self.hidden(self.prepared(x)))
        return described.reshape(len(x), -1, len(self.order))

    def prepared(self, x: Tensor) -> Tensor:
        """Samples as the model takes them."""
        return x

    def log_conditionals(self, described: Tensor, x: Tensor) -> Tensor:
        """log p(x_d | earlier inputs) of each sample and input, [samples, inputs]."""
        raise NotImplementedError

    def means(self, described: Tensor) -> Tensor:
        """The mean of each input given the earlier ones, [samples, inputs]."""
        raise NotImplementedError

    def draw(self, described: Tensor, rng: np.random.Generator) -> Tensor:
        """A value of one input for each sample, drawn from the distribution described."""
        raise NotImplementedError

    @torch.no_grad()
    def sample(self, count: int, rng: np.random.Generator) -> Tensor:
        """Samples of the model, input by input in its order."""
        _, first, *rest = self.hidden
        assert isinstance(first, MaskedLinear)
        from_input = (first.weight * first.mask).T
        onwards: Callable[[Tensor], Tensor] = nn.Sequential(*rest)
        weight, inputs = self.output.weight * self.output.mask, len(self.order)
        x = first.weight.new_zeros(count, inputs)
        # From input to input, only what a new value adds to the first layer changes.
        summed = first.bias.expand(count, -1).clone()
        for place in self.order:
            described = F.linear(
                onwards(summed), weight[place::inputs], self.output.bias[place::inputs]
            )
            x[:, place] = self.draw(described, rng)
            summed += x[:, place, None] * from_input[place]
        return x.reshape(count, *self.shape)


class BernoulliMade(Made):
    """Binary inputs; grey ones in [0, 1] count as the probability of being 1.

    For grey inputs the value is not a density (the two cases are not normalised), but the
    difference of two models' values still compares the models.
    """

    def __init__(
        self, shape: Shape, hidden: Sequence[int], shuffled: bool, mask_seed: int, binarise: bool
    ) -> None:
        super().__init__(shape, hidden, shuffled, mask_seed, numbers=1)
        self.binarise = binarise

    def prepared(self, x: Tensor) -> Tensor:
        return (x > 0.5).to(x.dtype) if self.binarise else x

    def log_conditionals(self, described: Tensor, x: Tensor) -> Tensor:
        # The cross-entropy x·log σ(a) + (1 - x)·log(1 - σ(a)), in half as many operations.
        odds = self._odds(described)
        return odds * self.prepared(x).flatten(1) - F.softplus(odds)

    def means(self, described: Tensor) -> Tensor:
        return self._odds(described).sigmoid()

    def draw(self, described: Tensor, rng: np.random.Generator) -> Tensor:
        uniform = torch.from_numpy(rng.random(len(described), dtype=np.float32))
        return (uniform.to(described) < self._odds(described.unsqueeze(2))[:, 0].sigmoid()).to(
            described
        )

    def _odds(self, described: Tensor) -> Tensor:
        return described[:, 0].clamp(-MOST_LOG_ODDS, MOST_LOG_ODDS)


class GaussianMade(Made):
    """Real-valued inputs, each a mixture of Gaussians: log shares, means, log deviations."""

    def __init__(
        self, shape: Shape, hidden: Sequence[int], shuffled: bool, mask_seed: int, components: int
    ) -> None:
        super().__init__(shape, hidden, shuffled, mask_seed, numbers=3 * components)

    def log_conditionals(self, described: Tensor, x: Tensor) -> Tensor:
        log_share, mean, log_scale = self._components(described)
        standard = (x.flatten(1).unsqueeze(1) - mean) * (-log_scale).exp()
        log_density = -0.5 * standard.square() - log_scale - 0.5 * math.log(2.0 * math.pi)
        return torch.logsumexp(log_share + log_density, dim=1)

    def means(self, described: Tensor) -> Tensor:
        log_share, mean, _ = self._components(described)
        return (log_share.exp() * mean).sum(dim=1)

    def draw(self, described: Tensor, rng: np.random.Generator) -> Tensor:
        log_share, mean, log_scale = (t[:, :, 0] for t in self._components(described[:, :, None]))
        below = log_share.exp().cumsum(dim=1)[:, :-1]
        uniform = torch.from_numpy(rng.random((len(described), 1), dtype=np.float32)).to(described)
        chosen = (uniform > below).sum(dim=1, keepdim=True)
        noise = torch.from_numpy(rng.standard_normal(len(described), dtype=np.float32))
        scale = log_scale.gather(1, chosen)[:, 0].exp()
        return mean.gather(1, chosen)[:, 0] + scale * noise.to(described)

    def _components(self, described: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shares, mean, log_scale = described.chunk(3, dim=1)
        return shares.log_softmax(dim=1), mean, log_scale.clamp(min=LEAST_LOG_SCALE)


def degrees_of(
    inputs: int, hidden: Sequence[int], shuffled: bool, mask_seed: int
) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The degrees of the inputs and of each hidden layer's units.

    Inputs have 1..D in their natural order or in a random one; a hidden unit has a number from the
    smallest of the layer before it up to D - 1.
    """
    rng = np.random.default_rng(mask_seed)
    order = np.arange(1, inputs + 1)
    degrees = [rng.permutation(order) if shuffled else order]
    for units in hidden:
        least = int(degrees[-1].min())
        degrees.append(rng.integers(least, max(inputs, least + 1), size=units))
    return degrees


def _mask(connected: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Tensor:
    return torch.from_numpy(connected.astype(np.float32))


@register("made", parts=MADE)
def made(
    shape: Shape,
    classes: int,
    *,
    hidden: Hidden = (30,),
    shuffled: Shuffled = False,
    mask_seed: MaskSeed = 1,
    binarise: Annotated[bool, Knob("round inputs to 0 or 1, which gives true densities")] = False,
) -> BernoulliMade:
    """MADE for binary or grey inputs in 0..1: one or more hidden layers, the same mask for all."""
    return BernoulliMade(shape, hidden, shuffled, mask_seed, binarise)


@register("gaussian-made", parts=MADE)
def gaussian_made(
    shape: Shape,
    classes: int,
    *,
    hidden: Hidden = (64,),
    components: Annotated[int, Knob("Gaussians of each input's mixture", ge=1)] = 3,
    shuffled: Shuffled = False,
    mask_seed: MaskSeed = 1,
) -> GaussianMade:
    """MADE for real-valued inputs: each, given the earlier ones, is a mixture of Gaussians."""
    return GaussianMade(shape, hidden, shuffled, mask_seed, components)
