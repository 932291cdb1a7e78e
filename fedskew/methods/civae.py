"""Class-informed VAEs in a federation, and the classifiers they are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Adapt, Card, Phase, Recipe, method
from fedskew.federate.recipe import Reduction as Equal
from fedskew.methods.baselines import (
    SERVER_LR,
    WEIGHTS,
    Weights,
    fedavg,
    local,
    server_step,
    weighting,
)
from fedskew.methods.generative import REVEALS, classless
from fedskew.methods.reptile import STEP, fedreptile
from fedskew.parts.aggregate import MeanAndVolunteer
from fedskew.parts.begin import Begin, Own
from fedskew.parts.civae import CivaeLoss
from fedskew.parts.generative import Encoded, Reduction
from fedskew.parts.select import EVERYTHING, but, only

Newcomers = Literal["mean", "volunteer", "none"]

EPOCHS = 20
"""How long the methods of this file adapt unless evaluate.fine_tune_epochs says otherwise."""
THESIS = "the federated CI-VAE thesis (University of Bologna)"
LOSS = {
    "beta": "weight of the codes' divergence, ≥ 0",
    "alpha": "weight of the cross-entropy of their classes, ≥ 0",
    "l1": "weight of the absolute weights of all layers, ≥ 0",
    "scale": "what the codes' deviation is multiplied by when one is drawn, ≥ 0",
    "reconstruction": "a sample's squared errors: their 'sum' or 'mean'",
    "kl": "a sample's divergences over latent dimensions: their 'sum' or 'mean'",
    "l1_reduction": "the absolute weights: their 'sum' or 'mean'",
    "classifies": "the classifier learns from a drawn code ('sample') or the mean code ('mean')",
    "sampled": "score with a drawn code (true) or with the mean code",
    "adapt_alpha": "alpha while a client adapts, ≥ 0",
}
OBJECTIVE = "|x - dec(z)|² + β·KL(enc(x) ‖ N(0, I)) + α·CE(cls(z), y), z ~ enc(x)"
ADAPTS = (
    "a client adapts encoder and decoder; the classifier is frozen, so that classes stay where "
    "they are"
)
DEFAULTS = (
    "β, α, the halved deviation, the reductions and α = 1 in adaptation are the thesis' code; so "
    "is l1 = 0, for its L1 terms never reach the loss (its text says 0.1). Scores take the mean "
    "code, which gives one answer a sample; the thesis draws one (sampled = true)"
)


def _objective(knobs: Mapping[str, Any]) -> tuple[CivaeLoss, Adapt]:
    """What a CI-VAE minimises, in training and while it adapts."""
    settings = dict(knobs)
    adapt_alpha = settings.pop("adapt_alpha")
    if not adapt_alpha >= 0:
        raise ConfigError(f"adapt_alpha must not be negative, not {adapt_alpha}.")
    objective = CivaeLoss(**settings)
    adapting = replace(objective, alpha=adapt_alpha)
    return objective, Adapt((Phase(but("classifier"), EPOCHS, objective=adapting),))


@method(
    "civae",
    Card(
        summary="A VAE whose codes a linear classifier reads, trained by any method of one model.",
        paper="Nabian et al. 2023 (CI-VAE); settings of " + THESIS + ".",
        update=f"the base's, on {OBJECTIVE}",
        knobs={"base": "the method that trains it, a name or {name = …, knob = …}", **LOSS},
        sends="what the base sends",
        fails="a small latent space cannot tell clients' features apart, a large one has holes; "
        + REVEALS,
        defaults=DEFAULTS,
    ),
)  # fmt: skip
def civae(
    base: str | Mapping[str, Any] = "fedavg",
    beta: float = 1.0,
    alpha: float = 3.0,
    l1: float = 0.0,
    scale: float = 0.5,
    reconstruction: Reduction = "sum",
    kl: Reduction = "mean",
    l1_reduction: Reduction = "sum",
    classifies: Encoded = "sample",
    sampled: bool = False,
    adapt_alpha: float = 1.0,
) -> Recipe:
    knobs = {n: v for n, v in locals().items() if n != "base"}
    objective, adapts = _objective(knobs)
    return replace(classless(base)[1], objective=objective, adapts=adapts)


@method(
    "fedreptile-civae",
    Card(
        summary="The whole CI-VAE shared, and a small step towards the mean: made to be adapted.",
        paper="FedRep CI-VAE of " + THESIS + "; Nichol et al. 2018 (Reptile).",
        update=f"θ ← θ + η·(mean of θ_k - θ) over clients trained on {OBJECTIVE}; {ADAPTS}",
        knobs={**STEP, **LOSS},
        reduces=(Equal({"eta": 1.0, "weights": "size"}, "civae"),),
        fails="a small η needs many rounds; clients all alike teach it nothing about adapting; "
        + REVEALS,
        defaults="η and equal weights are the thesis' text; its code weighs by size and takes a "
        "first step of 1; " + DEFAULTS,
    ),
)  # fmt: skip
def fedreptile_civae(
    eta: float = 0.35,
    first: float | None = None,
    decay: float = 1.0,
    weights: Weights = "uniform",
    beta: float = 1.0,
    alpha: float = 3.0,
    l1: float = 0.0,
    scale: float = 0.5,
    reconstruction: Reduction = "sum",
    kl: Reduction = "mean",
    l1_reduction: Reduction = "sum",
    classifies: Encoded = "sample",
    sampled: bool = False,
    adapt_alpha: float = 1.0,
) -> Recipe:
    knobs = {n: v for n, v in locals().items() if n in LOSS}
    return fedreptile({"name": "civae", **knobs}, eta, first, decay, weights)


@method(
    "fed-civae",
    Card(
        summary="A CI-VAE whose classifier is shared; encoder and decoder stay each client's own.",
        paper="Fed CI-VAE of " + THESIS + ".",
        update=f"classifier ← Σ (n_k/n)·classifier_k over clients trained on {OBJECTIVE}; a client "
        "goes on with its own encoder and decoder, so that all draw one latent space",
        knobs={"encoder": "what a newcomer begins with: the 'mean' of all encoders, a "
               "'volunteer's (the first client by name), or 'none' of them but an untrained one",
               "decoder": "the same of decoders",
               "weights": WEIGHTS, "server_lr": SERVER_LR, **LOSS},
        sends="the classifier; encoders and decoders never leave the client, unless newcomers "
        "shall have them",
        fails="for clients it has not seen: the mean of encoders trained apart reads nothing well; "
        + REVEALS,
        defaults="nothing but the classifier is sent; the thesis sends all, and gives newcomers "
        "the mean encoder and a volunteer's decoder; " + DEFAULTS,
    ),
)  # fmt: skip
def fed_civae(
    encoder: Newcomers = "none",
    decoder: Newcomers = "none",
    weights: Weights = "size",
    server_lr: float = 1.0,
    beta: float = 1.0,
    alpha: float = 3.0,
    l1: float = 0.0,
    scale: float = 0.5,
    reconstruction: Reduction = "sum",
    kl: Reduction = "mean",
    l1_reduction: Reduction = "sum",
    classifies: Encoded = "sample",
    sampled: bool = False,
    adapt_alpha: float = 1.0,
) -> Recipe:
    knobs = {n: v for n, v in locals().items() if n in LOSS}
    objective, adapts = _objective(knobs)
    private = {"encoder": encoder, "decoder": decoder}
    for part, source in private.items():
        if source not in ("mean", "volunteer", "none"):
            raise ConfigError(f"{part} must be 'mean', 'volunteer' or 'none', not {source!r}.")
    kept = [part for part, source in private.items() if source != "none"]
    return Recipe(
        objective=objective,
        shares=only("classifier", *kept),
        begins=Own(only(*kept)) if kept else Begin(),
        aggregates=MeanAndVolunteer(
            weighting(weights),
            volunteers=tuple(part for part, source in private.items() if source == "volunteer"),
        ),
        steps=server_step(server_lr),
        adapts=adapts,
    )  # fmt: skip


@method(
    "local-classifier",
    Card(
        summary="Every client trains a classifier alone; a newcomer begins from nothing.",
        paper="Local CL of " + THESIS + ".",
        update="w_k ← SGD(w_k) on the client's data; a newcomer trains all of a fresh model on "
        "what labels it has",
        reduces=(Equal({}, "local"),),
        sends="nothing",
        batch_norm="private",
        fails="with few samples per client, above all for newcomers",
    ),
)
def local_classifier() -> Recipe:
    return replace(local(), adapts=Adapt((Phase(EVERYTHING, EPOCHS),)))


@method(
    "fed-classifier",
    Card(
        summary="FedAvg of a classifier, whose last layer each client then fits to its own data.",
        paper="Fed CL of " + THESIS + ".",
        update="w ← Σ (n_k/n)·w_k; a client adapts the head, the body is frozen",
        knobs={"weights": WEIGHTS, "server_lr": SERVER_LR},
        reduces=(Equal({}, "fedavg"),),
        fails="where clients' inputs differ more than a last layer can make up for",
    ),
)
def fed_classifier(weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    return replace(fedavg(weights, server_lr), adapts=Adapt((Phase(only("head"), EPOCHS),)))
