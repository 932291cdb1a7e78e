"""Reptile across clients: the server takes a partial step towards what clients learned."""

from __future__ import annotations

from dataclasses import replace

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Recipe
from fedskew.methods.common import Base, Weights, based_on, weighting
from fedskew.methods.registry import Card, ReducesTo, method
from fedskew.parts.aggregate import BySize, Uniform
from fedskew.parts.select import NOTHING
from fedskew.parts.step import Reptile

THESIS_STEP = Reptile()


def in_the_way(recipe: Recipe, weights: Weights) -> str | None:
    """Why the server of a recipe cannot take a Reptile step, if it cannot."""
    aggregates = recipe.aggregates
    if recipe.shares == NOTHING:
        return "shares nothing, so there is no target to step towards"
    if aggregates.several:
        return "makes several models, so there is no single target to step towards"
    if not recipe.steps.whole:
        return "has a server step of its own, which eta would replace"
    if aggregates.weighting is None and weights != "uniform":
        return "does not weigh clients, so leave out weights"
    if aggregates.weighting not in (None, BySize(), Uniform()):
        return "has weights of its own, which weights would replace"
    return None


@method(
    "fedreptile",
    Card(
        summary="Any method with one model for all, whose server takes a small step towards its "
        "target.",
        paper="Nichol et al. 2018, On First-Order Meta-Learning Algorithms (Reptile), with clients "
        "as tasks; the step of the federated CI-VAE thesis (Bologna).",
        update="θ ← θ + η·(target - θ), the target as the base's server makes it: the mean of θ_k",
        reduces=(ReducesTo("fedavg", at={"eta": 1.0}, given={"weights": "uniform"}),),
        sends="what the base sends",
        fails="a small η needs many rounds: at 0.35 about three times as many as FedAvg; judge it "
        "by its adapted scores (evaluate.fine_tune_epochs, evaluate.shots)",
        defaults="η = 0.35 and equal weights are from the thesis' text; its code weighs by size "
        "and takes a first step of 1",
    ),
)
def fedreptile(
    base: Base = "fedavg", step: Reptile = THESIS_STEP, weights: Weights = "uniform"
) -> Recipe:
    name, recipe = based_on(base)
    if why := in_the_way(recipe, weights):
        raise ConfigError(f"base = {name!r} {why}.")
    aggregates = recipe.aggregates.reweighted(weighting(weights)) or recipe.aggregates
    return replace(recipe, aggregates=aggregates, steps=step)
