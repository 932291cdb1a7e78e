"""Methods that give every client its own model: private heads, and a meta-model."""

from __future__ import annotations

from typing import Annotated

from fedskew.federate.recipe import Adapt, Phase, Recipe
from fedskew.methods.common import BY_SIZE, Epochs, Server
from fedskew.methods.registry import Card, method
from fedskew.models.personal_head import with_personal_head
from fedskew.parts.aggregate import Mean
from fedskew.parts.objective import Erm
from fedskew.parts.personal import GenericAndPersonal, OneStepAhead
from fedskew.parts.select import EVERYTHING, but, only
from fedskew.registry.knobs import Knob


@method(
    "fedper",
    Card(
        summary="FedAvg of the body; every client keeps a head of its own.",
        paper="Arivazhagan et al. 2019, Federated Learning with Personalization Layers.",
        update="body and head train together; body ← Σ (n_k/n)·body_k, the head stays private",
        sends="the body's parameters",
        batch_norm="shared with the body: statistics averaged with the same weights",
        fails="an unseen client has an untrained head (fine-tune it); with a model that is only a "
        "head it is local training",
    ),
)
def fedper(server: Server = BY_SIZE) -> Recipe:
    return Recipe(
        shares=only("body"),
        aggregates=Mean(server.weighting),
        steps=server.step,
    )


@method(
    "fedrep",
    Card(
        summary="A client fits its private head to the shared body, then the body to that head.",
        paper="Collins et al. 2021, Exploiting Shared Representations (FedRep).",
        update="head_k ← SGD with the body fixed; then body_k ← SGD with head_k fixed; "
        "body ← Σ (n_k/n)·body_k",
        sends="the body's parameters",
        batch_norm="shared with the body; its statistics also move while the head trains",
        fails="an unseen client has an untrained head (fine-tune it); a body without parameters "
        "leaves nothing to train together",
    ),
)
def fedrep(
    head_epochs: Epochs = None,
    body_epochs: Epochs = 1,
    server: Server = BY_SIZE,
) -> Recipe:
    return Recipe(
        trains=(
            Phase(only("head"), epochs=head_epochs),
            Phase(only("body"), epochs=body_epochs),
        ),
        shares=only("body"),
        aggregates=Mean(server.weighting),
        steps=server.step,
    )


@method(
    "fedrod",
    Card(
        summary="A class-balanced shared model, plus a personal head for each client.",
        paper="Chen & Chao 2022, On Bridging Generic and Personalized FL (FedROD, linear head).",
        update="body f and head g: CE(g(f) + γ·log n_k, y); personal head h_k: CE(g(f) + h_k(f), "
        "y) with g and f fixed; f, g ← mean by size; prediction g(f) + h_k(f)",
        sends="model parameters without the personal head's",
        fails="needs a linear head; the balancing does nothing if labels are not skewed; "
        "an unseen client predicts with g alone",
    ),
)
def fedrod(
    gamma: Annotated[
        float,
        Knob("strength of the balancing; 0 trains f and g as FedAvg does", ge=0, tries=(0.5, 1.0)),
    ] = 1.0,
    server: Server = BY_SIZE,
) -> Recipe:
    return Recipe(
        objective=GenericAndPersonal(gamma),
        shares=but("personal"),
        aggregates=Mean(server.weighting),
        steps=server.step,
        extends=with_personal_head,
    )


@method(
    "per-fedavg",
    Card(
        summary="FedAvg towards a model that one short step turns into a good personal model.",
        paper="Fallah et al. 2020, Personalized Federated Learning (Per-FedAvg, first order).",
        update="w' = w - α·∇F(w; every other sample of the batch), w ← w - lr·∇F(w'; the "
        "others); then the mean by size",
        batch_norm="statistics are updated by both halves of a batch and averaged with the same "
        "weights; a batch of under four samples is used whole for both",
        fails="it trains for the adapted model: judge it by its adapted score, after one "
        "epoch at rate α on the client's training data (the paper takes one step) and never on "
        "test data; α = 0 is FedAvg on half of every batch",
    ),
)
def per_fedavg(
    alpha: Annotated[
        float,
        Knob("rate of the step ahead and of the adaptation", ge=0, tries=(0.001, 0.01, 0.1)),
    ] = 0.01,
    server: Server = BY_SIZE,
) -> Recipe:
    return Recipe(
        objective=OneStepAhead(alpha),
        aggregates=Mean(server.weighting),
        steps=server.step,
        adapts=Adapt((Phase(EVERYTHING, epochs=1, lr=alpha, objective=Erm()),)),
    )
