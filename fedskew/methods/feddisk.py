"""Densities in a federation: MADEs, and sample weights made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Card, ModelChoice, Recipe, Reduction, Stage, find, method
from fedskew.methods.discrepancy import based_on
from fedskew.methods.generative import classless
from fedskew.methods.sample_weights import SampleWeightsLeft
from fedskew.parts.density import DensityLoss, KeepBest, within_unit
from fedskew.parts.ratio import Estimator, KeepDensity, SampleWeights

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster

TRAIN: dict[str, Any] = {
    "optimiser": "adam", "lr": 0.003, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0,
    "lr_steps": [], "batch_size": 32,
}  # fmt: skip
"""How MADEs train unless the user says otherwise, whatever the classifier does."""


@dataclass(frozen=True)
class FittingMade(ModelChoice):
    """The MADE of the data's kind: for values in 0..1, or for any."""

    def fitting(self, roster: Roster) -> dict[str, Any]:
        return {"name": "made" if within_unit(roster) else "gaussian-made"}


@method(
    "made",
    Card(
        summary="A density estimator (MADE) of everybody's data, trained by any method, or alone.",
        paper="Germain et al. 2015, MADE: Masked Autoencoder for Distribution Estimation.",
        update="the base's, on -Σ_d log p(x_d | earlier inputs)",
        knobs={"base": "the method that trains it, a name or {name = …, knob = …}"},
        sends="what the base sends",
        fails="grey pixels are taken for probabilities, so its values compare models but are no "
        "densities; binarise = true or model 'gaussian-made' give densities",
    ),
)
def made(base: str | Mapping[str, Any] = "fedavg") -> Recipe:
    _, recipe = classless(base)
    return replace(recipe, objective=DensityLoss())


@method(
    "feddisk",
    Card(
        summary="Any method with sample weights that make each client's data stand for everybody's "
        "(feature skew).",
        paper="Nguyen, Wu and Chang 2023, Federated Learning for distribution skewed data using "
        "sample weights (FedDisk).",
        update="the base's, on (1/B)·Σ α(x)·loss, α = p(x)/q_k(x) with mean 1 a client: p from a "
        "federated MADE, q_k from the client's own",
        knobs={"base": "the method that is given weights, a name or {name = …, knob = …}",
               "estimator": "'likelihood' (ratio of the two densities, tempered on validation "
               "data), 'sampled' (a classifier between own samples and draws from everybody's "
               "MADE), 'cross-fitted' (the paper's classifier, held out), 'literal' (the paper's), "
               "'oracle' (the truth, where known), 'equal' (all 1)",
               "clip": "no weight above this or below 1/this, before they are scaled, > 1",
               "density": "the density model, a name or {name = …, knob = …}; for just 'made', "
               "'gaussian-made' takes its place where inputs lie outside 0..1",
               "density_rounds": "at most so many rounds for everybody's MADE",
               "density_patience": "rounds without a better validation loss that end it",
               "density_train": "settings of [train] for MADEs, e.g. {lr = 0.001, epochs = 1}",
               "local_epochs": "at most so many epochs for each client's own MADE, which keeps the "
               "state that explains its validation data best",
               "warm": "clients' own MADEs begin from everybody's"},
        reduces=(Reduction({"estimator": "equal", "density_rounds": 1, "local_epochs": 1},
                           "fedavg"),),
        sends="what the base sends, and before that a MADE every round; weights stay at the client",
        fails="weights only move clients towards the same aim: a model that fits everything, or "
        "short local training, gains nothing from them, and few effective samples cost much",
        defaults="the estimator errs least where the truth is known (docs/results/"
        "density-ratio.md); clip lets the paper's probabilities lie in 5 to 95 %",
    ),
)  # fmt: skip
def feddisk(
    base: str | Mapping[str, Any] = "fedavg",
    estimator: Estimator = "likelihood",
    clip: float = 19.0,
    density: str | Mapping[str, Any] = "made",
    density_rounds: int = 100,
    density_patience: int = 3,
    density_train: Mapping[str, Any] | None = None,
    local_epochs: int = 100,
    warm: bool = True,
) -> Recipe:
    name, recipe = based_on(base)
    if recipe.pools or recipe.prepares:
        why = "pools everybody's data" if recipe.pools else "has stages of its own"
        raise ConfigError(f"base = {name!r} {why}, so its clients cannot be given weights.")
    for knob, value in (
        ("density_rounds", density_rounds), ("density_patience", density_patience),
        ("local_epochs", local_epochs),
    ):  # fmt: skip
        if value < 1:
            raise ConfigError(f"{knob} must be at least 1, not {value}.")
    own = {} if density_train is None else density_train
    if not isinstance(own, Mapping) or "rounds" in own:
        raise ConfigError(
            f"density_train must be settings of [train] but rounds (see density_rounds and "
            f"local_epochs), like {{lr = 0.001}}, not {own!r}."
        )
    train = {**TRAIN, "patience": density_patience, **own}
    given = {"name": density} if isinstance(density, str) else density
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ConfigError(f"density must name a model, like 'made', not {density!r}.")
    model = FittingMade() if density == "made" else dict(given)
    together = Stage(
        "density", made(), density_rounds, {"epochs": 2, **train}, model,
        hands_over=(KeepDensity(warm),), hands="selected", score_every=1,
    )  # fmt: skip
    alone = find("local").recipe()
    apart = Stage(
        "local-density",
        replace(alone, objective=DensityLoss(), reports=(KeepBest(),)),
        local_epochs,
        {**train, "epochs": 1, "clients_per_round": None},
        model,
        hands_over=(SampleWeights(estimator, clip),),
        score_every=1,
    )
    return replace(recipe, prepares=(together, apart), leaves=(*recipe.leaves, SampleWeightsLeft()))
