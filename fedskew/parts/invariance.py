"""Losses over a client's environments: what should hold in all of them alike, and how much.

A penalty compares the environments a client has; those it lacks are padding and count for nothing.
Sample weights scale cross-entropies and their slopes; features are taken as they come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.parts.losses import slopes_of
from fedskew.parts.objective import Batch, Bound, Context, Erm

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster


@dataclass(frozen=True)
class Annealed:
    """A penalty's multiplier: ``before`` in a client's first ``steps`` steps, then ``after``."""

    before: float
    after: float
    steps: int

    def __post_init__(self) -> None:
        for value in (self.before, self.after, self.steps):
            if not 0 <= value < math.inf:
                raise ConfigError(f"a penalty's multipliers and steps must be >= 0, not {value}.")

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def at(self, step: Tensor | None) -> Tensor:
        """The multiplier for a client that has made so many steps; None if they do not matter."""
        if not self.changes:
            return torch.full((), float(self.after))
        assert step is not None, "an objective with a multiplier that changes counts steps"
        return torch.where(step < self.steps, float(self.before), float(self.after))


@dataclass(frozen=True)
class EnvironmentErm(Erm):
    """The mean loss over one batch from each environment.

    With ``by_environment`` false a client is one environment and gets ordinary batches.
    """

    by_environment: bool = field(default=True, kw_only=True)
    alone: ClassVar[str] = ""
    """What the objective comes down to for a client with one environment."""

    def remarks(self, roster: Roster) -> tuple[str, ...]:
        if not self.alone:
            return ()
        single = everybody = len(roster.seen)
        if self.by_environment:
            single = clients_with_one_environment(roster)
        found = []
        if single:
            found.append(
                f"{single} of {everybody} clients have one environment only: for them {self.alone}."
            )
        if single < everybody and roster.environments_by == "random":
            found.append(
                "environments are random shares of a client's samples, so there is nothing to "
                "tell them apart by: set federation.environments, or a skew that makes some."
            )
        return tuple(found)


def clients_with_one_environment(roster: Roster) -> int:
    """How many clients train on samples of a single environment.

    >>> from fedskew.federate.roster import Member, Roster
    >>> ann, bob = (Member(n, {}, environments=e) for n, e in (("ann", (2, 0)), ("bob", (1, 1))))
    >>> clients_with_one_environment(Roster("toy", (3,), ("a",), (ann, bob)))
    1
    """
    present = roster.counts("environments") > 0
    return int((present.sum(axis=1) == 1).sum())


@dataclass(frozen=True)
class Penalised(EnvironmentErm):
    """mean_e L_e + Σ λ·penalty; subclasses have a field for each λ and say what they penalise.

    ``rescale`` divides the whole by the largest λ of the moment where that is above 1: a λ of 100
    otherwise makes steps 100 times as long, which plain SGD does not survive. Pulls and weight
    decay are divided with it, so that it changes the length of steps and not what is minimised.
    """

    in_parts = True
    rescale: bool = field(default=False, kw_only=True)

    @property
    def multipliers(self) -> tuple[Annealed, ...]:
        """All fields that are one, in order."""
        values = (getattr(self, known.name) for known in fields(self))
        return tuple(value for value in values if isinstance(value, Annealed))

    def penalties(
        self, features: Tensor, logits: Tensor, risks: Tensor, batch: Batch
    ) -> tuple[Tensor, ...]:
        """One number for each multiplier."""
        raise NotImplementedError

    @property
    def counts_steps(self) -> bool:  # type: ignore[override]
        return any(multiplier.changes for multiplier in self.multipliers)

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        features, logits, risks = answers(model, batch)
        penalties = self.penalties(features, logits, risks, batch)
        loss = batch.over_environments(risks)
        for multiplier, penalty in zip(self.multipliers, penalties, strict=True):
            loss = loss + multiplier.at(batch.step) * penalty
        return loss / self.divisor(batch) if self.divides else loss

    @property
    def divides(self) -> bool:  # type: ignore[override]
        return self.rescale

    def divisor(self, batch: Batch) -> Tensor:
        lams = (multiplier.at(batch.step) for multiplier in self.multipliers)
        return reduce(torch.maximum, lams).clamp(min=1.0)


def answers(model: Bound, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The features and logits of all samples, and the risk of each environment."""
    features = model.part("body", batch.x)
    logits = model.part("head", features)
    risks = batch.risks(batch.losses(logits))
    return features.flatten(start_dim=1), logits, risks


class InHalves(Penalised):
    """Base of penalties that compare two halves of every batch."""

    def check(self, module: nn.Module, roster: Roster, batch_size: int) -> None:
        if batch_size % 2:
            raise ConfigError(
                f"train.batch_size must be even, not {batch_size}: the penalty of IRM multiplies "
                "the slopes of two halves of each batch."
            )
        super().check(module, roster, batch_size)


@dataclass(frozen=True)
class Irm(InHalves):
    """Invariant risk minimisation: one scale of the logits should be best in every environment."""

    penalty: Annealed = Annealed(1.0, 100.0, 500)
    alone = "irm compares two halves of one batch, so it shrinks logits and seeks no invariance"

    def penalties(
        self, features: Tensor, logits: Tensor, risks: Tensor, batch: Batch
    ) -> tuple[Tensor, ...]:
        return (batch.over_environments(squared_slopes(logits, batch)),)


def squared_slopes(logits: Tensor, batch: Batch) -> Tensor:
    """By environment, an unbiased estimate of |d/ds L(s·z, y)|² at s = 1; it may be negative.

    It is the product of the slopes of two halves of the batch, every other sample and those
    between. A sample's slope is z·∂L/∂z; a half without samples has slope 0.
    """
    slopes = slopes_of(logits, batch.y, batch.loss)
    slopes, real = batch.by_environment(slopes * batch.weight), batch.by_environment(batch.mask)
    first, second = (
        slopes[:, start::2].sum(dim=1) / real[:, start::2].sum(dim=1).clamp(min=1.0)
        for start in (0, 1)
    )
    return first * second


@dataclass(frozen=True)
class Vrex(Penalised):
    """Risk extrapolation: the environments' risks should not vary."""

    penalty: Annealed = Annealed(1.0, 10.0, 500)
    alone = "vrex is empirical risk"

    def penalties(
        self, features: Tensor, logits: Tensor, risks: Tensor, batch: Batch
    ) -> tuple[Tensor, ...]:
        deviations = risks - batch.over_environments(risks)
        return (batch.over_environments(deviations.square()),)


@dataclass(frozen=True)
class IbErm(Penalised):
    """Information bottleneck: features should vary no more than they have to."""

    penalty: Annealed = Annealed(0.0, 100.0, 500)
    alone = "ib-erm is empirical risk with a penalty on the variance of features"

    def penalties(
        self, features: Tensor, logits: Tensor, risks: Tensor, batch: Batch
    ) -> tuple[Tensor, ...]:
        return (batch.over_environments(feature_variance(features, batch)),)


def feature_variance(features: Tensor, batch: Batch) -> Tensor:
    """By environment, the unbiased variance over samples, its mean over features.

    It is 0 where there are fewer than two samples.
    """
    _, deviations, real = by_moments(features, batch)
    squares = deviations.square().mean(dim=2).sum(dim=1)
    return squares / (real.sum(dim=1) - 1.0).clamp(min=1.0)


def by_moments(features: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """By environment: the mean features [E, D], what is left of each sample [E, B, D] without
    it (0 for padding), and which samples are real [E, B]."""
    values, real = batch.by_environment(features), batch.by_environment(batch.mask)
    counts = real.sum(dim=1).clamp(min=1.0)
    means = (values * real[:, :, None]).sum(dim=1) / counts[:, None]
    return means, (values - means[:, None]) * real[:, :, None], real


@dataclass(frozen=True)
class IbIrm(InHalves):
    """IRM's penalty and the information bottleneck's."""

    irm: Annealed = Annealed(1.0, 100.0, 500)
    ib: Annealed = Annealed(0.0, 100.0, 500)
    alone = "ib-irm shrinks logits and the variance of features and seeks no invariance"

    def penalties(
        self, features: Tensor, logits: Tensor, risks: Tensor, batch: Batch
    ) -> tuple[Tensor, ...]:
        slopes = batch.over_environments(squared_slopes(logits, batch))
        return slopes, batch.over_environments(feature_variance(features, batch))
