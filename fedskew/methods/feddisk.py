"""Densities in a federation: MADEs, and sample weights computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from fedskew.errors import ConfigError
from fedskew.federate.recipe import ModelChoice, Recipe, Stage
from fedskew.methods.common import Base, based_on
from fedskew.methods.generative import classless
from fedskew.methods.registry import Card, ReducesTo, find, method
from fedskew.methods.sample_weights import SampleWeightsLeft
from fedskew.parts.density import DensityLoss, KeepBest, within_unit
from fedskew.parts.sample_weights import KeepDensity, SampleWeights
from fedskew.registry.knobs import Knob

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster

TRAIN: dict[str, Any] = {
    "optimiser": "adam",
    "lr": 0.003,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "lr_decay": 1.0,
    "lr_steps": [],
    "batch_size": 32,
}
"""How MADEs train unless the user changes it, whatever the classifier's settings are."""
BY_LIKELIHOOD = SampleWeights()


@dataclass(frozen=True)
class FittingMade(ModelChoice):
    """The MADE that fits the data: for values in 0..1, or for any values."""

    def fitting(self, roster: Roster) -> dict[str, Any]:
        return {"name": "made" if within_unit(roster) else "gaussian-made"}


@method(
    "made",
    Card(
        summary="A density estimator (MADE) of all clients' data, trained by any method, or alone.",
        paper="Germain et al. 2015, MADE: Masked Autoencoder for Distribution Estimation.",
        update="the base's, on -Σ_d log p(x_d | earlier inputs)",
        sends="what the base sends",
        fails="grey pixels are taken as probabilities, so its values compare models but are not "
        "densities; binarise = true or model 'gaussian-made' give densities",
    ),
)
def made(base: Base = "fedavg") -> Recipe:
    _, recipe = classless(base)
    return replace(recipe, objective=DensityLoss())


@method(
    "feddisk",
    Card(
        summary="Any method with sample weights that make each client's data represent all "
        "clients' data (feature skew).",
        paper="Nguyen, Wu and Chang 2023, Federated Learning for distribution skewed data using "
        "sample weights (FedDisk).",
        update="the base's, on (1/B)·Σ α(x)·loss, α = p(x)/q_k(x) with mean 1 per client: p from a "
        "federated MADE, q_k from the client's own",
        reduces=(
            ReducesTo("fedavg", at={"estimator": "equal", "density_rounds": 1, "local_epochs": 1}),
        ),
        sends="what the base sends, and before that a MADE every round; weights stay at the client",
        fails="weights only give clients the same target: a model that fits everything, or short "
        "local training, gains nothing from them, and few effective samples cost a lot",
        defaults="this estimator had the smallest error where the truth is known (docs/results/"
        "density-ratio.md); clip lets the paper's probabilities lie in 5 to 95 %",
    ),
)
def feddisk(
    base: Base = "fedavg",
    weights: SampleWeights = BY_LIKELIHOOD,
    density: Annotated[
        str | Mapping[str, Any],
        Knob(
            "the density model, a name or {name = …, knob = …}; for just 'made', 'gaussian-made' "
            "takes its place where inputs lie outside 0..1"
        ),
    ] = "made",
    density_rounds: Annotated[int, Knob("most rounds for the shared MADE", ge=1)] = 100,
    density_patience: Annotated[
        int, Knob("rounds with a worse validation loss than the best that end it", ge=1)
    ] = 3,
    density_train: Annotated[
        Mapping[str, Any] | None,
        Knob("settings of [train] for MADEs, e.g. {lr = 0.001, epochs = 1}"),
    ] = None,
    local_epochs: Annotated[
        int,
        Knob(
            "most epochs for each client's own MADE, which keeps the state with the best "
            "likelihood of its validation data",
            ge=1,
        ),
    ] = 100,
    warm: Annotated[bool, Knob("clients' own MADEs start from the shared one")] = True,
) -> Recipe:
    name, recipe = based_on(base)
    if recipe.pools or recipe.prepares:
        why = "pools everybody's data" if recipe.pools else "has stages of its own"
        raise ConfigError(f"base = {name!r} {why}, so its clients cannot be given weights.")
    if "rounds" in (density_train or {}):
        raise ConfigError(
            "density_train must not set rounds: density_rounds and local_epochs do that."
        )
    train = {**TRAIN, "patience": density_patience, **(density_train or {})}
    given = {"name": density} if isinstance(density, str) else density
    if not isinstance(given.get("name"), str):
        raise ConfigError(f"density must name a model, like 'made', not {density!r}.")
    model = FittingMade() if density == "made" else dict(given)
    together = Stage(
        "density",
        made(),
        density_rounds,
        {"epochs": 2, **train},
        model,
        hands_over=(KeepDensity(warm),),
        hands="selected",
        score_every=1,
    )
    alone = find("local").recipe()
    apart = Stage(
        "local-density",
        replace(alone, objective=DensityLoss(), reports=(KeepBest(),)),
        local_epochs,
        {**train, "epochs": 1, "clients_per_round": None},
        model,
        hands_over=(weights,),
        score_every=1,
    )
    return replace(recipe, prepares=(together, apart), leaves=(*recipe.leaves, SampleWeightsLeft()))
