"""Reptile across clients: the server goes a part of the way towards what clients learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Card, Recipe, Reduction, method
from fedskew.methods.baselines import WEIGHTS, Weights, weighting
from fedskew.methods.discrepancy import based_on
from fedskew.parts.aggregate import BySize, Uniform
from fedskew.parts.select import NOTHING
from fedskew.parts.step import Reptile

STEP = {
    "eta": "step of the server towards its target, > 0; 1 is the target itself",
    "first": "the step of round 1, where another is wanted (the reference code takes 1)",
    "decay": "factor on the step from round to round, > 0",
    "weights": WEIGHTS,
}


def in_the_way(recipe: Recipe, weights: Weights) -> str | None:
    """Why the server of a recipe cannot take a Reptile step, if it cannot."""
    aggregates = recipe.aggregates
    if recipe.shares == NOTHING:
        return "shares nothing, so there is no target to step towards"
    if aggregates.several:
        return "makes several models, so there is no one target to step towards"
    if not recipe.steps.whole:
        return "has a server step of its own, which eta would replace"
    if aggregates.weighting is None and weights != "uniform":
        return "weighs no clients, so leave out weights"
    if aggregates.weighting not in (None, BySize(), Uniform()):
        return "has weights of its own, which weights would replace"
    return None


@method(
    "fedreptile",
    Card(
        summary="Any method with one model for all, whose server takes a small step towards its "
        "target.",
        paper="Nichol et al. 2018, On First-Order Meta-Learning Algorithms (Reptile), with clients "
        "for tasks; the step of the federated CI-VAE thesis (Bologna).",
        update="θ ← θ + η·(target - θ), the target as the base's server makes it: the mean of θ_k",
        knobs={"base": "the method whose target is approached, a name or {name = …, knob = …}",
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
    if why := in_the_way(recipe, weights):
        raise ConfigError(f"base = {name!r} {why}.")
    for knob, value in (("eta", eta), ("first", first), ("decay", decay)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{knob} must be above 0, not {value}.")
    aggregates = recipe.aggregates.reweighted(weighting(weights)) or recipe.aggregates
    return replace(recipe, aggregates=aggregates, steps=Reptile(eta, first, decay))
