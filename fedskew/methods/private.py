"""Differential privacy for the clients of other methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedskew.errors import ConfigError
from fedskew.federate.privacy import sent_in
from fedskew.federate.recipe import Recipe
from fedskew.methods.common import Base, based_on
from fedskew.methods.registry import Card, ReducesTo, method
from fedskew.parts.accounting import accounting
from fedskew.parts.aggregate import Uniform
from fedskew.parts.private import Private
from fedskew.registry.knobs import Knob


def in_the_way(recipe: Recipe) -> str | None:
    """Why clipping and noise would not make a recipe private, if they would not."""
    if recipe.pools and recipe.invents is None:
        return "it pools raw data"
    if not recipe.aggregates.averages:
        return "its server takes no plain mean of the clients' models"
    if any(report.tells for report in recipe.reports):
        return "its clients send more than their models"
    if recipe.begins.personal:
        return "its clients do not begin with what the server sent"
    if any(list(sent_in(stage)) for stage in recipe.prepares):
        return "an earlier stage of it would not be private"
    return None


@method(
    "private",
    Card(
        summary="Any method that takes a plain mean, with clipped updates and noise: client-level "
        "differential privacy.",
        paper="McMahan et al. 2018, Learning Differentially Private Recurrent Language Models; "
        "accounting: Wang et al. 2019, Subsampled Rényi Differential Privacy; Dong et al. 2022, "
        "Gaussian Differential Privacy.",
        update="mean of w + (w_k - w)·min(1, C/|w_k - w|), plus N(0, (σ·C)²)/participants; all "
        "count alike; then the base's step towards that mean",
        reduces=(
            ReducesTo("fedavg", at={"clip": 1e30, "noise": 0.0}, given={"weights": "uniform"}),
        ),
        sends="model parameters; nobody learns from the shared model, by more than a factor e^ε, "
        "whether a client or another in its place took part. Noise from the run's seed is for "
        "research that can be repeated: a deployment needs a secret one. Outside the promise are "
        "the choice of a round by validation scores, what clients keep or adapt for themselves, "
        "who failed, and the run folder, whose losses, scores and norms are a simulation's: see "
        "docs/privacy.md, also for what of other methods it covers",
        batch_norm="statistics are clipped and noised with the rest, variances kept from falling "
        "below 0, counters not sent; GroupNorm stands it better",
        fails="few clients: the noise in the mean falls with their number, and grows with √"
        "parameters; long local training makes long updates, of which clipping takes most",
    ),
)
def private(
    base: Base = "fedavg",
    clip: Annotated[
        float,
        Knob(
            "C, the longest change a client may send; near the median norm that a run without "
            "noise records",
            gt=0,
            tries=(0.3, 1.0, 3.0),
        ),
    ] = 1.0,
    noise: Annotated[
        float,
        Knob(
            "σ, deviation of the noise over C; 0 only clips and promises nothing",
            ge=0,
            tries=(0.3, 1.0),
            untuned="less noise scores better and promises less",
        ),
    ] = 1.0,
    delta: Annotated[
        float,
        Knob(
            "the chance at which ε may fail to hold: well below one over the number of clients",
            gt=0,
            lt=1,
        ),
    ] = 1e-5,
) -> Recipe:
    name, recipe = based_on(base)
    why, mean = in_the_way(recipe), recipe.aggregates.reweighted(Uniform())
    if why or mean is None:
        why = why or "its server cannot give all clients the same weight"
        raise ConfigError(f"base = {name!r} cannot be made private: {why}.")
    if noise:
        accounting()  # a run must not find out at its end that it cannot be accounted for
    return replace(recipe, aggregates=Private(mean, clip, noise, delta))
