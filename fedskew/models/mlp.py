"""Fully connected networks."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import nn

from fedskew.models.registry import Classifier, Hidden, Shape, register


@register("mlp")
def mlp(shape: Shape, classes: int, *, hidden: Hidden = (200, 200)) -> Classifier:
    """Fully connected ReLU network; two hidden layers of 200 are the "2NN" of FedAvg's paper."""
    widths = [prod(shape), *hidden]
    body: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        body += [nn.Linear(wide, narrow), nn.ReLU()]
    return Classifier(nn.Sequential(*body), nn.Linear(widths[-1], classes))


@register("har-mlp")
def har_mlp(shape: Shape, classes: int) -> Classifier:
    """The activity classifier of the federated CI-VAE work: hidden layers of 128 and 64."""
    return mlp(shape, classes, hidden=(128, 64))
