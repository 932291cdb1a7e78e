"""Models without a hidden layer."""

from __future__ import annotations

from math import prod

from torch import nn

from fedskew.models.registry import Classifier, Shape, register


@register("logistic")
def logistic(shape: Shape, classes: int) -> Classifier:
    """Multinomial logistic regression: all parameters are in the head."""
    return Classifier(nn.Flatten(), nn.Linear(prod(shape), classes))
