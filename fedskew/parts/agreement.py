"""Client steps that compare its environments' gradients or weigh their losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from fedskew.engine.evaluate import trains_batch_statistics
from fedskew.errors import ConfigError
from fedskew.parts.invariance import EnvironmentErm
from fedskew.parts.losses import Loss, task_losses
from fedskew.parts.objective import Batch, Bound, Context
from fedskew.types import Tensors

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster

SHARES = "log_shares"
"""GroupDRO's memory: the logarithm of every environment's share of the loss."""
EPSILON = 1e-8
"""Adam's ε, which is added to the root of its second moment."""
ROUNDING = 1e-6
"""The tolerance of a threshold on a count of signs."""
ALONE_VARIANCE = 1e-17
"""Replaces the variance of one environment's gradient, which does not exist."""
LEAST_VARIANCE = 1e-30
"""The least variance: equal gradients agree completely, and the variance is a divisor."""


@dataclass(frozen=True)
class PerEnvironment(EnvironmentErm):
    """Base of objectives that need the gradient of each environment by itself."""

    def check(self, module: nn.Module, roster: Roster, batch_size: int) -> None:
        super().check(module, roster, batch_size)
        if trains_batch_statistics(module):
            raise ConfigError(
                "this method passes each environment through the model separately, which "
                "BatchNorm and the like would see as separate batches: choose a "
                "model without them, such as 'cnn-groupnorm', 'cnn' or 'mlp'."
            )


def risk_on(module: nn.Module, fixed: Tensors, loss: Loss) -> Callable[..., Tensor]:
    """The weighted mean loss of one environment, as a function of what is trained."""

    def risk(trained: Tensors, x: Tensor, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        losses = task_losses(Bound(module, {**fixed, **trained})(x), y, loss)
        return (losses * weight).sum() / mask.sum().clamp(min=1.0)

    return risk


def samples_of(batch: Batch) -> tuple[Tensor, ...]:
    """What a risk is made of, each as [E, B, ...]."""
    parts = (batch.x, batch.y, batch.mask, batch.weight)
    return tuple(batch.by_environment(part) for part in parts)


def gradients_by_environment(
    module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch
) -> tuple[list[Tensors], Tensor, Tensors]:
    """Every environment's gradient and risk [E], and the buffers, which stay as they are.

    An environment the client lacks has risk and gradient 0. Environments are processed one after
    the other: under vmap the filters of a convolution get one gradient per environment by a grouped
    convolution, which has no fast kernel; and a stack of large gradients does not fit into the
    core's cache.
    """
    follow = grad_and_value(risk_on(module, fixed, batch.loss))
    results = [follow(trained, *samples) for samples in zip(*samples_of(batch), strict=True)]
    gradients = [gradient for gradient, _ in results]
    risks = torch.stack([risk for _, risk in results])
    return gradients, risks, Bound(module, {**fixed, **trained}).buffers


def total(tensors: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, tensors)


class Masked(PerEnvironment):
    """The mean gradient, each entry multiplied by how far environments agree on it.

    It is divided by the mean of the mask over a tensor, so that steps keep their length.
    """

    def mask(self, gradients: list[Tensor], mean: Tensor, present: Tensor) -> Tensor:
        """A factor from 0 to 1 for each entry of one tensor, given every environment's gradient
        and their mean; gradients of absent environments are 0."""
        raise NotImplementedError

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        found, risks, buffers = gradients_by_environment(module, trained, fixed, batch)
        present = batch.present
        followed = {}
        for name in trained:
            gradients = [gradient[name] for gradient in found]
            mean = total(gradients) / present.sum().clamp(min=1.0)
            mask = self.mask(gradients, mean, present)
            followed[name] = mask * mean / (1e-10 + mask.mean())
        return followed, batch.over_environments(risks), buffers


@dataclass(frozen=True)
class AndMask(Masked):
    """Follows only entries whose sign environments agree on: |mean sign| >= τ."""

    tau: float = 1.0
    alone = "and-mask is empirical risk, rescaled where gradients are zero"

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise ConfigError(f"tau must be above 0 and at most 1, not {self.tau}.")

    def mask(self, gradients: list[Tensor], mean: Tensor, present: Tensor) -> Tensor:
        agreed = total(gradient.sign() for gradient in gradients).abs()
        return (agreed >= self.tau * present.sum() - ROUNDING).to(mean.dtype)


@dataclass(frozen=True)
class SandMask(Masked):
    """A smooth mask: max(0, tanh(k·(|mean sign| - τ)/variance over environments))."""

    tau: float = 0.5
    k: float = 10.0
    alone = "sand-mask is empirical risk, rescaled where gradients are zero"

    def __post_init__(self) -> None:
        if self.tau >= 1:
            raise ConfigError(
                f"tau must be below 1, not {self.tau}: environments agree to 1 at most, so nothing "
                "would ever be learned."
            )
        if not self.tau >= 0:
            raise ConfigError(f"tau must not be negative, not {self.tau}.")
        if not 0 < self.k < math.inf:
            raise ConfigError(f"k must be above 0, not {self.k}.")

    def mask(self, gradients: list[Tensor], mean: Tensor, present: Tensor) -> Tensor:
        count = present.sum().clamp(min=1.0)
        agreed = total(gradient.sign() for gradient in gradients).abs() / count - self.tau
        deviations = zip(present, (gradient - mean for gradient in gradients), strict=True)
        squares = total(here * deviation.square() for here, deviation in deviations)
        variance = squares / (count - 1.0).clamp(min=1.0)
        variance = torch.where(count > 1, variance, ALONE_VARIANCE).clamp(min=LEAST_VARIANCE)
        return torch.tanh(self.k * agreed / variance).clamp(min=0.0)


@dataclass(frozen=True)
class Mldg(PerEnvironment):
    """Meta-learning, first order: a step in one environment should also help in another.

    Environments are arranged in a random circle, and j is the one after i: the client follows the
    mean of G_i + β·G_j, where G_j is taken after one step along G_i. That step is the first one its
    own optimiser would take; the loss is the mean of L_i + β·L_j there.
    """

    beta: float = 1.0
    reads = ("lr", "adaptive")
    alone = "mldg is empirical risk with a doubled gradient, half of it from a step ahead"

    def __post_init__(self) -> None:
        if not 0 <= self.beta < math.inf:
            raise ConfigError(f"beta must not be negative, not {self.beta}.")

    def noise(self, module: nn.Module, samples: int) -> dict[str, tuple[int, ...]]:
        return {"order": (samples,)}

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        follow = grad_and_value(risk_on(module, fixed, batch.loss))
        samples, following = samples_of(batch), successors(batch)
        nexts = tuple(part.index_select(0, following) for part in samples)
        shares = batch.present / batch.present.sum().clamp(min=1.0)
        parts, losses = [], []
        for share, own, other in zip(
            shares, zip(*samples, strict=True), zip(*nexts, strict=True), strict=True
        ):
            step, here = follow(trained, *own)
            ahead = {n: t - client["lr"] * self._first(step[n], client) for n, t in trained.items()}
            there, after = follow(ahead, *other)
            parts.append({n: share * (step[n] + self.beta * there[n]) for n in trained})
            losses.append(share * (here + self.beta * after))
        gradients = {name: total(part[name] for part in parts) for name in trained}
        return gradients, total(losses), Bound(module, {**fixed, **trained}).buffers

    @staticmethod
    def _first(gradient: Tensor, client: Context) -> Tensor:
        """The direction of the optimiser's first step; for Adam it is g/(|g| + ε)."""
        adaptive = client["adaptive"]
        # One division for both optimisers: this covers every parameter in every environment.
        return gradient / torch.addcmul(
            1.0 - adaptive + EPSILON * adaptive, adaptive, gradient.abs()
        )


def successors(batch: Batch) -> Tensor:
    """The successor of each environment in a circle of those present, drawn at each step."""
    draws = batch.by_environment(batch.noise["order"])[:, 0]
    circle = torch.where(batch.present > 0, draws, math.inf).argsort()
    place = circle.argsort() + 1
    return circle.gather(0, torch.where(place < batch.present.sum(), place, 0))


@dataclass(frozen=True)
class GroupDro(EnvironmentErm):
    """Σ q_e·L_e: the larger an environment's loss, the more its share q_e grows at each step.

    First q_e <- q_e·exp(η·L_e) over the environments a client has, then q is normalised; all
    shares are equal at the start, and the client remembers q.
    """

    eta: float = 0.01
    alone = "groupdro is empirical risk"

    def __post_init__(self) -> None:
        if not 0 <= self.eta < math.inf:
            raise ConfigError(f"eta must not be negative, not {self.eta}.")

    def memory(self, environments: int, parameters: Tensors) -> Tensors:
        return {SHARES: torch.zeros(environments)}

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        def value(trained: Tensors) -> tuple[Tensor, Tensors]:
            model = Bound(module, {**fixed, **trained})
            risks = batch.risks(batch.losses(model(batch.x)))
            shares = self._raised(client[SHARES], risks.detach(), batch.present)
            loss = (shares.exp() * batch.present * risks).sum()
            return loss, {**model.buffers, SHARES: shares}

        gradients, (loss, after) = grad_and_value(value, has_aux=True)(trained)
        return gradients, loss, after

    def _raised(self, shares: Tensor, risks: Tensor, present: Tensor) -> Tensor:
        raised = shares + self.eta * risks
        whole = torch.where(present > 0, raised, -math.inf).logsumexp(dim=0)
        return torch.where(present > 0, raised - whole, shares)
