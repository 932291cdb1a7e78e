"""Sample weights that make a client's data represent all clients' data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from fedskew.errors import ConfigError
from fedskew.models.made import BernoulliMade
from fedskew.parts.density import BEST, explained, made_of
from fedskew.parts.objective import Bound
from fedskew.parts.ratio import ESTIMATORS, Estimator, Evidence, TooFew
from fedskew.parts.report import SAMPLE_WEIGHT, SHARED, Finished, Report, Reported
from fedskew.registry.knobs import Knob, check_fields

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster

EVERYBODY = "global_density"
WEIGHING = "weighing"
FINE, NOT_FINITE, TOO_FEW, ALL_EQUAL = range(4)
"""The outcome of a client's weights; except for the first, all weights are 1."""


def clipped_weights(log_weights: Tensor, clip: float) -> tuple[Tensor, int]:
    """Weights clipped to 1/clip..clip and then scaled to mean 1, and what went wrong.

    >>> clipped_weights(torch.tensor([0.0, 100.0]), clip=3.0)
    (tensor([0.5000, 1.5000]), 0)
    """
    if not bool(torch.isfinite(log_weights).all()):
        return torch.ones(len(log_weights)), NOT_FINITE
    bound = math.log(clip)
    weights = log_weights.double().clamp(-bound, bound).exp()
    if float(weights.max()) == float(weights.min()):
        return torch.ones(len(log_weights)), ALL_EQUAL
    return (weights / weights.mean()).float(), FINE


def effective_size(weights: Tensor) -> float:
    """How many equally weighted samples are equivalent: (Σα)²/Σα².

    >>> effective_size(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    2.0
    """
    return float(weights.double().sum() ** 2 / weights.double().square().sum())


@dataclass(frozen=True)
class KeepDensity(Report):
    """Keeps the shared model at the client; with ``warm`` the client's own starts from it."""

    warm: bool = False
    tells = ""

    def report(self, finished: Finished) -> Reported:
        keeps = {EVERYBODY: dict(finished.trained)}
        return Reported(keeps={**keeps, SHARED: dict(finished.trained)} if self.warm else keeps)


@dataclass(frozen=True)
class SampleWeights(Report):
    """Keeps the weight of each training sample and the outcome; nothing is sent."""

    estimator: Annotated[
        Estimator,
        Knob(
            "'likelihood' (ratio of the two densities, tempered on validation data), 'sampled' (a "
            "classifier between own samples and draws from the shared MADE), 'cross-fitted' (the "
            "paper's classifier, held out), 'literal' (the paper's), 'oracle' (the truth, where "
            "known), 'equal' (all 1)",
            tries=("likelihood", "sampled"),
        ),
    ] = "likelihood"
    clip: Annotated[
        float, Knob("limit: weights lie between 1/clip and clip before they are scaled", gt=1)
    ] = 19.0
    tells = ""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, roster: Roster) -> None:
        if self.estimator == "oracle" and not roster.law_known:
            raise ConfigError(
                f"estimator 'oracle' needs data whose law is known, which {roster.name} is not."
            )

    def report(self, finished: Finished) -> Reported:
        (x, _), (validation, _) = finished.samples(), finished.samples("validation")
        everybody = Bound(finished.module, finished.private[EVERYBODY])
        own = Bound(finished.module, finished.private.get(BEST, finished.private[EVERYBODY]))
        evidence = Evidence(x, validation, everybody, own, finished.rng, finished.log_ratio)
        power = math.nan
        try:
            estimate = ESTIMATORS[self.estimator](evidence)
        except TooFew:
            weights, trouble = torch.ones(len(x)), TOO_FEW
        else:
            weights, trouble = clipped_weights(estimate.log_weights, self.clip)
            power = estimate.power
        found = {"entropy": _entropy(own, validation), "power": power, "trouble": float(trouble)}
        outcome = {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}
        return Reported(keeps={SAMPLE_WEIGHT: {"w": weights}, WEIGHING: outcome})


def _entropy(own: Bound, validation: Tensor) -> float:
    """Bits per sample under the client's own model: at least the entropy, if inputs are binary.

    Real-valued inputs have no entropy that bounds anything: NaN.
    """
    if not isinstance(made_of(own), BernoulliMade) or not len(validation):
        return math.nan
    return -float(explained(own, validation).sum(dim=1).mean()) / math.log(2.0)
