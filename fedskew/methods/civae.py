"""Class-informed VAEs in a federation, and the classifiers they are compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fedskew.federate.recipe import Adapt, Phase, Recipe
from fedskew.methods.baselines import fedavg, local
from fedskew.methods.common import BY_SIZE, Base, Server, Weights
from fedskew.methods.generative import REVEALS, classless
from fedskew.methods.registry import Card, ReducesTo, method
from fedskew.methods.reptile import THESIS_STEP, fedreptile
from fedskew.parts.aggregate import MeanAndVolunteer
from fedskew.parts.begin import Begin, Own
from fedskew.parts.civae import CivaeLoss
from fedskew.parts.select import EVERYTHING, but, only
from fedskew.parts.step import Reptile
from fedskew.registry.knobs import Knob, values_of

Newcomers = Annotated[
    Literal["mean", "volunteer", "none"],
    Knob(
        "what a newcomer starts from: the 'mean' of all clients', that of a 'volunteer' (the "
        "first client by name), or 'none': an untrained one"
    ),
]
AdaptAlpha = Annotated[float, Knob("alpha while a client adapts", ge=0)]
THESIS_LOSS = CivaeLoss()

EPOCHS = 20
"""Epochs of adaptation in this file's methods, unless evaluate.fine_tune_epochs is set."""
THESIS = "the federated CI-VAE thesis (University of Bologna)"
OBJECTIVE = "|x - dec(z)|² + β·KL(enc(x) ‖ N(0, I)) + α·CE(cls(z), y), z ~ enc(x)"
ADAPTS = (
    "a client adapts encoder and decoder; the classifier is frozen, so that classes stay where "
    "they are"
)
DEFAULTS = (
    "β, α, the halved deviation, the reductions and α = 1 in adaptation are from the thesis' code; "
    "so is l1 = 0, because its L1 terms never reach the loss (its text says 0.1). Scores take the "
    "mean code, which gives one answer per sample; the thesis draws one (sampled = true)"
)


def _adapting(loss: CivaeLoss, alpha: float) -> Adapt:
    """How a CI-VAE adapts: all but its classifier, which keeps the classes where they are."""
    return Adapt((Phase(but("classifier"), EPOCHS, objective=replace(loss, alpha=alpha)),))


@method(
    "civae",
    Card(
        summary="A VAE with a linear classifier on its codes, trained by any method of one model.",
        paper="Nabian et al. 2023 (CI-VAE); settings of " + THESIS + ".",
        update=f"the base's, on {OBJECTIVE}",
        sends="what the base sends",
        fails="a small latent space cannot tell clients' features apart, a large one has holes; "
        + REVEALS,
        defaults=DEFAULTS,
    ),
)
def civae(
    base: Base = "fedavg", loss: CivaeLoss = THESIS_LOSS, adapt_alpha: AdaptAlpha = 1.0
) -> Recipe:
    _, recipe = classless(base)
    return replace(recipe, objective=loss, adapts=_adapting(loss, adapt_alpha))


@method(
    "fedreptile-civae",
    Card(
        summary="The whole CI-VAE shared, and a small step towards the mean: made to be adapted.",
        paper="FedRep CI-VAE of " + THESIS + "; Nichol et al. 2018 (Reptile).",
        update=f"θ ← θ + η·(mean of θ_k - θ) over clients trained on {OBJECTIVE}; {ADAPTS}",
        reduces=(ReducesTo("civae", at={"eta": 1.0, "weights": "size"}),),
        fails="a small η needs many rounds; clients all alike teach it nothing about adapting; "
        + REVEALS,
        defaults="η and equal weights are from the thesis' text; its code weighs by size and takes "
        "a first step of 1; " + DEFAULTS,
    ),
)
def fedreptile_civae(
    step: Reptile = THESIS_STEP,
    weights: Weights = "uniform",
    loss: CivaeLoss = THESIS_LOSS,
    adapt_alpha: AdaptAlpha = 1.0,
) -> Recipe:
    base = {"name": "civae", **values_of(loss), "adapt_alpha": adapt_alpha}
    return fedreptile(base, step, weights)


@method(
    "fed-civae",
    Card(
        summary="A CI-VAE whose classifier is shared; encoder and decoder stay each client's own.",
        paper="Fed CI-VAE of " + THESIS + ".",
        update=f"classifier ← Σ (n_k/n)·classifier_k over clients trained on {OBJECTIVE}; a client "
        "continues with its own encoder and decoder, so that all use one latent space",
        sends="the classifier; encoders and decoders never leave the client, unless newcomers "
        "should get them",
        fails="for unseen clients: the mean of encoders trained apart encodes nothing well; "
        + REVEALS,
        defaults="nothing but the classifier is sent; the thesis sends all, and gives newcomers "
        "the mean encoder and a volunteer's decoder; " + DEFAULTS,
    ),
)
def fed_civae(
    encoder: Newcomers = "none",
    decoder: Newcomers = "none",
    server: Server = BY_SIZE,
    loss: CivaeLoss = THESIS_LOSS,
    adapt_alpha: AdaptAlpha = 1.0,
) -> Recipe:
    private = {"encoder": encoder, "decoder": decoder}
    kept = [part for part, source in private.items() if source != "none"]
    volunteers = tuple(part for part, source in private.items() if source == "volunteer")
    return Recipe(
        objective=loss,
        shares=only("classifier", *kept),
        begins=Own(only(*kept)) if kept else Begin(),
        aggregates=MeanAndVolunteer(server.weighting, volunteers=volunteers),
        steps=server.step,
        adapts=_adapting(loss, adapt_alpha),
    )


@method(
    "local-classifier",
    Card(
        summary="Every client trains a classifier alone; a newcomer starts with an untrained one.",
        paper="Local CL of " + THESIS + ".",
        update="w_k ← SGD(w_k) on the client's data; a newcomer trains all of a fresh model on "
        "the labels it has",
        reduces=(ReducesTo("local"),),
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
        reduces=(ReducesTo("fedavg"),),
        fails="where clients' inputs differ more than a last layer can make up for",
    ),
)
def fed_classifier(server: Server = BY_SIZE) -> Recipe:
    return replace(fedavg(server), adapts=Adapt((Phase(only("head"), EPOCHS),)))
