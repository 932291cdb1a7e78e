"""Methods that leave every client with a model of its own: private heads, and a meta-model."""

from __future__ import annotations

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Adapt, Card, Phase, Recipe, method
from fedskew.methods.baselines import (
    SERVER_LR,
    WEIGHTS,
    Weights,
    not_negative,
    server_step,
    weighting,
)
from fedskew.models.personal_head import with_personal_head
from fedskew.parts.aggregate import Mean
from fedskew.parts.objective import Erm
from fedskew.parts.personal import GenericAndPersonal, OneStepAhead
from fedskew.parts.select import EVERYTHING, but, only


def epochs_or_none(name: str, epochs: int | None) -> int | None:
    if epochs is not None and (not isinstance(epochs, int) or epochs < 1):
        raise ConfigError(f"{name} must be a whole number of at least 1, not {epochs!r}.")
    return epochs


@method(
    "fedper",
    Card(
        summary="FedAvg of the body; every client keeps a head of its own.",
        paper="Arivazhagan et al. 2019, Federated Learning with Personalization Layers.",
        update="body and head train together; body ← Σ (n_k/n)·body_k, the head stays private",
        knobs={"weights": WEIGHTS, "server_lr": SERVER_LR},
        sends="the body's parameters",
        batch_norm="shared with the body: statistics averaged with the same weights",
        fails="an unseen client has an untrained head (fine-tune it); a model whose head is all "
        "there is makes it local training",
    ),
)
def fedper(weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    return Recipe(
        shares=only("body"),
        aggregates=Mean(weighting(weights)),
        steps=server_step(server_lr),
    )


@method(
    "fedrep",
    Card(
        summary="A client fits its private head to the shared body, then the body to that head.",
        paper="Collins et al. 2021, Exploiting Shared Representations (FedRep).",
        update="head_k ← SGD with the body fixed; then body_k ← SGD with head_k fixed; "
        "body ← Σ (n_k/n)·body_k",
        knobs={"head_epochs": "epochs for the head, first (none: the run's own)",
               "body_epochs": "epochs for the body, after it (the paper mostly takes 1)",
               "weights": WEIGHTS, "server_lr": SERVER_LR},
        sends="the body's parameters",
        batch_norm="shared with the body; its statistics also move while the head trains",
        fails="an unseen client has an untrained head (fine-tune it); a body without parameters "
        "leaves nothing to train together",
    ),
)  # fmt: skip
def fedrep(
    head_epochs: int | None = None,
    body_epochs: int | None = 1,
    weights: Weights = "size",
    server_lr: float = 1.0,
) -> Recipe:
    return Recipe(
        trains=(
            Phase(only("head"), epochs=epochs_or_none("head_epochs", head_epochs)),
            Phase(only("body"), epochs=epochs_or_none("body_epochs", body_epochs)),
        ),
        shares=only("body"),
        aggregates=Mean(weighting(weights)),
        steps=server_step(server_lr),
    )


@method(
    "fedrod",
    Card(
        summary="A class-balanced shared model, and a personal head that adds a client's own.",
        paper="Chen & Chao 2022, On Bridging Generic and Personalized FL (FedROD, linear head).",
        update="body f and head g: CE(g(f) + γ·log n_k, y); personal head h_k: CE(g(f) + h_k(f), "
        "y) with g and f fixed; f, g ← mean by size; prediction g(f) + h_k(f)",
        knobs={"gamma": "strength of the balancing, ≥ 0; 0 trains f and g as FedAvg does",
               "weights": WEIGHTS, "server_lr": SERVER_LR},
        sends="model parameters without the personal head's",
        fails="needs a linear head; the balancing has nothing to do where labels are not skewed; "
        "an unseen client predicts with g alone",
    ),
)  # fmt: skip
def fedrod(gamma: float = 1.0, weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    return Recipe(
        objective=GenericAndPersonal(not_negative("gamma", gamma)),
        shares=but("personal"),
        aggregates=Mean(weighting(weights)),
        steps=server_step(server_lr),
        extends=with_personal_head,
    )


@method(
    "per-fedavg",
    Card(
        summary="FedAvg towards a model from which one short step makes a good personal one.",
        paper="Fallah et al. 2020, Personalized Federated Learning (Per-FedAvg, first order).",
        update="w' = w - α·∇F(w; every other sample of the batch), w ← w - lr·∇F(w'; the "
        "others); then the mean by size",
        knobs={"alpha": "rate of the step ahead and of the adaptation, ≥ 0",
               "weights": WEIGHTS, "server_lr": SERVER_LR},
        batch_norm="statistics pass through both halves of a batch and are averaged with the same "
        "weights; a batch of under four samples is used whole for both",
        fails="what is trained for is the adapted model: judge it by its adapted score, after one "
        "epoch at rate α on the client's training data (the paper takes one step) and never on "
        "test data; α = 0 is FedAvg on half of every batch",
    ),
)  # fmt: skip
def per_fedavg(alpha: float = 0.01, weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    return Recipe(
        objective=OneStepAhead(not_negative("alpha", alpha)),
        aggregates=Mean(weighting(weights)),
        steps=server_step(server_lr),
        adapts=Adapt((Phase(EVERYTHING, epochs=1, lr=alpha, objective=Erm()),)),
    )
