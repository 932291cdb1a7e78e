"""What a model's outputs cost, sample by sample: the loss of whatever is to be learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.func import grad
from torch.nn import functional as F

from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob, check_fields

LOSSES = Registry("loss", "losses", Entry)


class Loss:
    """Base of the losses of a number; a user's own is ``module:Class`` with knobs as fields."""

    def of(self, predicted: Tensor, target: Tensor) -> Tensor:
        """One value per sample, both in the unit of the federation's ``y``."""
        raise NotImplementedError


@LOSSES.register("squared")
@dataclass(frozen=True)
class Squared(Loss):
    """(f - y)²: a model learns the mean."""

    def of(self, predicted: Tensor, target: Tensor) -> Tensor:
        return (predicted - target).square()


@LOSSES.register("absolute")
@dataclass(frozen=True)
class Absolute(Loss):
    """|f - y|: a model learns the median."""

    def of(self, predicted: Tensor, target: Tensor) -> Tensor:
        return (predicted - target).abs()


@LOSSES.register("huber")
@dataclass(frozen=True)
class Huber(Loss):
    """(f - y)²/2 up to an error of δ, δ·(|f - y| - δ/2) beyond it: outliers count less."""

    delta: Annotated[
        float, Knob("error beyond which it is linear, in deviations of the target", gt=0)
    ] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, predicted: Tensor, target: Tensor) -> Tensor:
        error = (predicted - target).abs()
        far = self.delta * (error - 0.5 * self.delta)
        return torch.where(error <= self.delta, 0.5 * error.square(), far)


@LOSSES.register("pinball")
@dataclass(frozen=True)
class Pinball(Loss):
    """max(q·(y - f), (q - 1)·(y - f)): a model learns the q-quantile."""

    quantile: Annotated[float, Knob("which quantile is learned", gt=0, lt=1)] = 0.5

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, predicted: Tensor, target: Tensor) -> Tensor:
        short = target - predicted
        return torch.maximum(self.quantile * short, (self.quantile - 1.0) * short)


SQUARED = Squared()


def task_losses(outputs: Tensor, y: Tensor, loss: Loss = SQUARED) -> Tensor:
    """The loss of every sample, chosen by what ``y`` is.

    Class numbers (int64): cross-entropy. Several labels [N, labels]: binary cross-entropy with
    logits, the mean over labels. A number [N]: ``loss`` of the only output.

    >>> task_losses(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0])).tolist()
    [0.0, 4.0]
    """
    if not y.is_floating_point():
        return F.cross_entropy(outputs, y, reduction="none")
    if y.ndim > 1:
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(dim=1)
    return loss.of(outputs[:, 0], y)


def slopes_of(outputs: Tensor, y: Tensor, loss: Loss = SQUARED) -> Tensor:
    """By sample, how fast the loss grows as all outputs grow in proportion: z·∂L/∂z.

    Of a cross-entropy that is Σ_c p_c·z_c - z_y.

    >>> slopes_of(torch.tensor([[3.0]]), torch.tensor([1.0])).tolist()  # 2·(3 - 1)·3
    [12.0]
    """
    if not y.is_floating_point():
        expected = (outputs.softmax(dim=1) * outputs).sum(dim=1)
        return expected - outputs.gather(1, y[:, None]).squeeze(1)

    def whole(given: Tensor) -> Tensor:
        return task_losses(given, y, loss).sum()

    slopes: Tensor = grad(whole)(outputs)
    return (slopes * outputs).sum(dim=1)
