"""Differential privacy for the clients of other methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Card, Recipe, Reduction, method
from fedskew.methods.baselines import not_negative
from fedskew.methods.discrepancy import based_on
from fedskew.parts.accounting import accounting
from fedskew.parts.aggregate import Uniform
from fedskew.parts.private import Private
from fedskew.parts.report import PERSONAL
from fedskew.parts.select import EVERYTHING


def in_the_way(recipe: Recipe) -> str | None:
    """Why clipping and noise would not make a recipe private, if they would not."""
    if recipe.pools:
        return "it pools raw data"
    if not recipe.aggregates.averages:
        return "its server takes no plain mean of the clients' models"
    if recipe.reports:
        return "its clients send more than their models"
    if recipe.begins.personal:
        return "its clients do not begin with what the server sent"
    if recipe.prepares:
        return "an earlier stage of it would not be private"
    return None


def remembers(recipe: Recipe) -> bool:
    """Whether what a client sends may depend on rounds it took part in before."""
    phases = [phase for phase in recipe.trains if phase.model == "shared"]
    private = recipe.shares != EVERYTHING and any(p.trains != recipe.shares for p in phases)
    objectives = (recipe.objective, *recipe.shared_objectives)
    reads = [part.reads for part in objectives]
    reads += [part.reads for phase in phases for part in phase.corrects]
    reads_own = any(PERSONAL in names for names in reads)
    return private or reads_own or any(o.counts_steps or o.remembers for o in objectives)


@method(
    "private",
    Card(
        summary="Any method that takes a plain mean, with clipped updates and noise: client-level "
        "differential privacy.",
        paper="McMahan et al. 2018, Learning Differentially Private Recurrent Language Models; "
        "accounting: Wang et al. 2019, Subsampled Rényi Differential Privacy.",
        update="mean of w + (w_k - w)·min(1, C/|w_k - w|), plus N(0, (σ·C)²)/participants; all "
        "count alike; then the base's step towards that mean",
        knobs={"base": "the method that is made private, a name or {name = …, knob = …}",
               "clip": "C, the longest change a client may send, > 0; near the median norm that a "
               "run without noise records",
               "noise": "σ, deviation of the noise over C, ≥ 0; 0 only clips and promises nothing",
               "delta": "the chance at which ε may fail to hold, between 0 and 1: well below one "
               "over the number of clients"},
        reduces=(Reduction({"clip": 1e30, "noise": 0.0}, "fedavg", {"weights": "uniform"}),),
        sends="model parameters; nobody learns from the shared model, by more than a factor e^ε, "
        "whether a client or another in its place took part. Noise from the run's seed is for "
        "research that can be repeated: a deployment needs a secret one. Outside the promise are "
        "the choice of a round by validation scores, what clients keep or adapt for themselves, "
        "who failed, and the run folder, whose losses, scores and norms are a simulation's",
        batch_norm="statistics are clipped and noised with the rest, variances kept from falling "
        "below 0, counters not sent; GroupNorm stands it better",
        fails="few clients: the noise in the mean falls with their number, and grows with √"
        "parameters; long local training makes long updates, of which clipping takes most",
    ),
)  # fmt: skip
def private(
    base: str | Mapping[str, Any] = "fedavg",
    clip: float = 1.0,
    noise: float = 1.0,
    delta: float = 1e-5,
) -> Recipe:
    name, recipe = based_on(base)
    if not 0 < clip < math.inf:
        raise ConfigError(f"clip must be above 0, not {clip}.")
    if not not_negative("noise", noise) < math.inf:
        raise ConfigError(f"noise must be a finite number, not {noise}.")
    if not 0 < delta < 1:
        raise ConfigError(f"delta must be between 0 and 1, not {delta}.")
    why, mean = in_the_way(recipe), recipe.aggregates.reweighted(Uniform())
    if why or mean is None:
        why = why or "its server cannot be told to count all clients alike"
        raise ConfigError(f"base = {name!r} cannot be made private: {why}.")
    if noise:
        accounting()  # a run must not find out at its end that it cannot be accounted for
    aggregates = Private(mean, clip, noise, delta, remembers(recipe))
    return replace(recipe, aggregates=aggregates)
