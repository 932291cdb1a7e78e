"""Models of sequences: token ids in a row (0 is padding), and signals of channels by time.

Padding changes nothing: what a model makes of a sample does not depend on how many zeros follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.models.registry import Classifier, Hidden, Shape, Vocabulary, register
from fedskew.models.vae import fully_connected
from fedskew.registry.knobs import Knob

Units = Annotated[int, Knob("numbers that stand for a step of a sequence", ge=1)]
Layers = Annotated[int, Knob("layers on top of one another", ge=1)]
Dropout = Annotated[float, Knob("share of values dropped in training", ge=0, lt=1)]
BOTH = ("tokens", "signals")


class Steps(nn.Module):
    """A vector for every step of a sequence, and which steps are no padding.

    Of token ids there is a table; the channels of a signal are mixed.
    """

    def __init__(self, shape: Shape, vocabulary: int, units: int) -> None:
        super().__init__()
        self.reads_tokens = vocabulary > 0
        self.made = (
            nn.Embedding(vocabulary, units, padding_idx=0)
            if vocabulary
            else nn.Linear(shape[0], units)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.reads_tokens:
            return self.made(x), x != 0
        x = x.transpose(1, 2)
        return self.made(x), torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)


def mean_of_steps(steps: Tensor, held: Tensor) -> Tensor:
    """The mean [samples, units] over the steps that are held.

    >>> mean_of_steps(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[3.]])
    """
    weight = held.unsqueeze(-1).to(steps.dtype)
    return (steps * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


class MeanOfTokens(nn.Module):
    """What stands for a text is the mean of what stands for its words."""

    def __init__(self, shape: Shape, vocabulary: int, units: int) -> None:
        super().__init__()
        self.steps = Steps(shape, vocabulary, units)

    def forward(self, x: Tensor) -> Tensor:
        return mean_of_steps(*self.steps(x))


class Recurrent(nn.Module):
    """The mean output of recurrent layers, which read a sequence from its start."""

    def __init__(self, steps: Steps, layers: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.steps, self.layers = steps, layers

    def forward(self, x: Tensor) -> Tensor:
        made, held = self.steps(x)
        return mean_of_steps(self.layers(made)[0], held)


class Encoder(nn.Module):
    """The mean output of torch's transformer layers, which normalise first (pre-norm)."""

    def __init__(self, steps: Steps, units: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.steps, self.units = steps, units
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                units, heads, 2 * units, dropout, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.last = nn.LayerNorm(units)

    def forward(self, x: Tensor) -> Tensor:
        made, held = self.steps(x)
        made = made + positions(made.shape[1], self.units).to(made)
        for layer in self.layers:
            made = layer(made, src_key_padding_mask=~held)
        return mean_of_steps(self.last(made), held)


def positions(length: int, units: int) -> Tensor:
    """Sines and cosines of every place, each pair slower than the one before (Vaswani et al.).

    >>> positions(2, 4).round(decimals=2).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]]
    """
    rates = torch.exp(torch.arange(0, units, 2) * (-math.log(10_000.0) / units))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(start_dim=1)[:, :units]


@register("embedding", kinds=("tokens",))
def embedding(
    shape: Shape,
    classes: int,
    *,
    vocabulary: Vocabulary = 0,
    units: Units = 32,
    hidden: Hidden = (32,),
) -> Classifier:
    """Texts by the mean of their words' vectors: quick, and hard to beat where data are few."""
    body = [
        MeanOfTokens(shape, vocabulary, units), *fully_connected([units, *hidden]), nn.ReLU(),
    ]  # fmt: skip
    return Classifier(nn.Sequential(*body), nn.Linear([units, *hidden][-1], classes))


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Callable[..., Classifier]:
    """A model of torch's recurrent layers of one kind."""

    def made(
        shape: Shape,
        classes: int,
        *,
        vocabulary: Vocabulary = 0,
        units: Units = 32,
        layers: Layers = 1,
        dropout: Dropout = 0.0,
    ) -> Classifier:
        if dropout and layers == 1:
            raise ConfigError(
                "dropout is between recurrent layers: set layers to 2, or leave it out."
            )
        stacked = kind(units, units, layers, dropout=dropout, batch_first=True)
        return Classifier(
            Recurrent(Steps(shape, vocabulary, units), stacked), nn.Linear(units, classes)
        )

    which = "an LSTM" if kind is nn.LSTM else "a GRU"
    made.__doc__ = f"Sequences by {which}: the mean of its outputs over what is no padding."
    return made


lstm = register("lstm", kinds=BOTH)(_recurrent(nn.LSTM))
gru = register("gru", kinds=BOTH)(_recurrent(nn.GRU))


@register("transformer", kinds=BOTH)
def transformer(
    shape: Shape,
    classes: int,
    *,
    vocabulary: Vocabulary = 0,
    units: Units = 32,
    layers: Layers = 2,
    heads: Annotated[int, Knob("heads of attention in each layer", ge=1)] = 4,
    dropout: Dropout = 0.1,
) -> Classifier:
    """Sequences by a small transformer with fixed positions: the mean over what is no padding."""
    if units % heads:
        raise ConfigError(f"units of a transformer must be a multiple of heads = {heads}: {units}.")
    encoder = Encoder(Steps(shape, vocabulary, units), units, layers, heads, dropout)
    return Classifier(encoder, nn.Linear(units, classes))


@register("conv1d", kinds=("signals",))
def conv1d(
    shape: Shape,
    classes: int,
    *,
    channels: Annotated[int, Knob("channels of every convolution", ge=1)] = 32,
    layers: Layers = 3,
    kernel: Annotated[int, Knob("steps of time that a convolution looks at", ge=1)] = 5,
) -> Classifier:
    """Signals by convolutions over time with GroupNorm, halved in between, and their mean."""
    if shape[1] < 2 ** (layers - 1):
        raise ConfigError(
            f"a conv1d of {layers} layers needs {2 ** (layers - 1)} steps of time, but a signal "
            f"has {shape[1]}: lower layers."
        )
    # Two channels in a group at least: of the few steps that are left at the end, a norm of one
    # channel alone keeps little more than signs.
    groups = math.gcd(8, channels // 2) if channels % 2 == 0 else 1
    body: list[nn.Module] = []
    for number in range(layers):
        body += [
            nn.Conv1d(channels if number else shape[0], channels, kernel, padding=kernel // 2),
            nn.GroupNorm(groups, channels),
            nn.ReLU(),
            *([nn.MaxPool1d(2)] if number < layers - 1 else []),
        ]
    pooling = [nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*body, *pooling), nn.Linear(channels, classes))
