"""Reptile across clients: the server goes a part of the way towards what clients learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedskew.errors import ConfigError
from fedskew.methods.baselines import WEIGHTS, Weights, weighting
from fedskew.methods.discrepancy import based_on
from fedskew.parts.aggregate import BySize, Mean, ReptileMean, Uniform
from fedskew.recipe import Card, Recipe, Reduction, method

STEP = {
    "eta": "step of the server towards the mean, > 0; 1 is the mean itself",
    "first": "the step of round 1, where another is wanted (the reference code takes 1)",
    "decay": "factor on the step from round to round, > 0",
    "weights": WEIGHTS,
}


@method(
    "fedreptile",
    Card(
        summary="Any method by weighted mean, whose server takes a small step towards the mean.",
        paper="Nichol et al. 2018, On First-Order Meta-Learning Algorithms (Reptile), with clients "
        "for tasks; the step of the federated CI-VAE thesis (Bologna).",
        update="θ ← θ + η·(mean of θ_k - θ)",
        knobs={"base": "the method whose mean is approached, a name or {name = …, knob = …}",
               **STEP},
        reduces=(Reduction({"eta": 1.0}, "fedavg", {"weights": "uniform"}),),
        sends="what the base sends",
        fails="a small η needs many rounds: at 0.35 about three times as many as FedAvg; judge it "
        "by its adapted scores (evaluate.fine_tune_epochs, evaluate.shots)",
        defaults="η = 0.35 and equal weights are the thesis' text; its code weighs by size and "
        "takes a first step of 1",
    ),
)  # fmt: skip
def fedreptile(
    base: str | Mapping[str, Any] = "fedavg",
    eta: float = 0.35,
    first: float | None = None,
    decay: float = 1.0,
    weights: Weights = "uniform",
) -> Recipe:
    name, recipe = based_on(base)
    if type(recipe.aggregates) is not Mean:
        raise ConfigError(f"base = {name!r} takes no plain mean, so there is no step towards it.")
    if recipe.aggregates.weighting not in (BySize(), Uniform()) or recipe.aggregates.server_lr != 1:
        raise ConfigError(
            f"base = {name!r} has weights or a server_lr of its own, which eta and weights replace."
        )
    for knob, value in (("eta", eta), ("first", first), ("decay", decay)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{knob} must be above 0, not {value}.")
    step = ReptileMean(weighting(weights), eta, recipe.aggregates.divergence, first, decay)
    return replace(recipe, aggregates=step)
