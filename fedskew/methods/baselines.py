"""The references every comparison carries, and the classical answers to skew."""

from __future__ import annotations

import math
from typing import Literal

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Card, Phase, Recipe, Reduction, method
from fedskew.parts.aggregate import (
    Apart,
    BySize,
    Mean,
    MeanWithVariates,
    NormalisedMean,
    Uniform,
    Weighting,
)
from fedskew.parts.correct import ControlVariates, Pull
from fedskew.parts.masked import MaskedMean
from fedskew.parts.report import LocalLength, VariateChange
from fedskew.parts.select import BATCH_NORM, NOTHING, but
from fedskew.parts.step import LearningRate

Weights = Literal["size", "uniform"]


def weighting(weights: Weights) -> Weighting:
    """The weighting a user names."""
    if weights not in ("size", "uniform"):
        raise ConfigError(f"weights must be 'size' or 'uniform', not {weights!r}.")
    return BySize() if weights == "size" else Uniform()


def server_step(server_lr: float) -> LearningRate:
    """The step a user asks for by a server learning rate."""
    if not 0 < server_lr < math.inf:
        raise ConfigError(f"server_lr must be above 0, not {server_lr}.")
    return LearningRate(server_lr)


def not_negative(name: str, value: float) -> float:
    if value < 0:
        raise ConfigError(f"{name} must not be negative, not {value}.")
    return value


WEIGHTS = "'size' (by training samples) or 'uniform'"
SERVER_LR = "step of the server towards its target, > 0; 1 is the target itself"


@method(
    "local",
    Card(
        summary="No federation: every client trains alone on its own data.",
        paper="The lower reference; under extreme label skew often the best there is.",
        update="w_k ← SGD(w_k) on the client's data, for ever apart",
        sends="nothing",
        batch_norm="private",
        fails="with few samples per client, or test data of classes a client never saw",
        reference="alone",
    ),
)
def local() -> Recipe:
    return Recipe(shares=NOTHING, aggregates=Apart())


@method(
    "central",
    Card(
        summary="All data pooled in one place: the upper reference no federation may reach.",
        paper="The upper reference.",
        update="w ← SGD(w) on the union of all clients' training data",
        sends="all raw data: a reference, not a federated method",
        batch_norm="ordinary",
        fails="it is not federated learning",
        reference="pooled",
    ),
)
def central() -> Recipe:
    return Recipe(pools=True)


@method(
    "fedavg",
    Card(
        summary="Clients train the received model; the server takes the mean weighted by size.",
        paper="McMahan et al. 2017, Communication-Efficient Learning of Deep Networks.",
        update="w ← Σ (n_k/n)·w_k",
        knobs={"weights": WEIGHTS, "server_lr": SERVER_LR},
        fails="client drift: with skewed labels and long local training the mean is worse than "
        "its members",
        side="aggregator",
        plain=True,
    ),
)
def fedavg(weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    return Recipe(aggregates=Mean(weighting(weights)), steps=server_step(server_lr))


@method(
    "fedprox",
    Card(
        summary="FedAvg whose clients are pulled back towards the model they received.",
        paper="Li et al. 2020, Federated Optimization in Heterogeneous Networks.",
        update="client gradient + μ·(w - w_received), then the mean by size",
        knobs={"mu": "strength of the pull, ≥ 0, usually 0.001-1", "weights": WEIGHTS,
               "server_lr": SERVER_LR},
        reduces=(Reduction({"mu": 0.0}, "fedavg"),),
        fails="a large μ with a large learning rate overshoots (lr·μ must stay below 2)",
        side="aggregator",
    ),
)  # fmt: skip
def fedprox(mu: float = 0.01, weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    return Recipe(
        trains=(Phase(corrects=(Pull(not_negative("mu", mu)),)),),
        aggregates=Mean(weighting(weights)),
        steps=server_step(server_lr),
    )


@method(
    "scaffold",
    Card(
        summary="Control variates replace each client's own drift by everyone's.",
        paper="Karimireddy et al. 2020, SCAFFOLD (option II).",
        update="client gradient - c_k + c; c_k⁺ = c_k - c + (x - y_k)/(S·lr); "
        "x ← x + lr_g·mean(y_k - x); c ← c + (1/N)·Σ(c_k⁺ - c_k)",
        knobs={"weights": WEIGHTS, "server_lr": SERVER_LR},
        sends="model parameters and as many again for the variates, both ways",
        fails="large learning rates under extreme skew; Adam (its steps are not gradients)",
        side="aggregator",
    ),
)
def scaffold(weights: Weights = "uniform", server_lr: float = 1.0) -> Recipe:
    return Recipe(
        trains=(Phase(corrects=(ControlVariates(),)),),
        reports=(VariateChange(),),
        aggregates=MeanWithVariates(weighting(weights)),
        steps=server_step(server_lr),
    )


@method(
    "fednova",
    Card(
        summary="Updates are divided by the client's number of steps before they are averaged.",
        paper="Wang et al. 2020, Tackling the Objective Inconsistency Problem (FedNova).",
        update="x ← x - lr_g·τ_eff·Σ p_k·(x - y_k)/a_k, τ_eff = Σ p_k·a_k",
        knobs={"mu": "proximal pull of the clients, ≥ 0", "weights": WEIGHTS,
               "server_lr": SERVER_LR},
        sends="model parameters and one number (the length of its accumulated gradients)",
        fails="adaptive optimisers, whose steps have no length in gradients",
        side="aggregator",
    ),
)  # fmt: skip
def fednova(mu: float = 0.0, weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    pull = (Pull(not_negative("mu", mu)),) if mu else ()
    return Recipe(
        trains=(Phase(corrects=pull),),
        reports=(LocalLength(mu),),
        aggregates=NormalisedMean(weighting(weights)),
        steps=server_step(server_lr),
    )


@method(
    "fedgma",
    Card(
        summary="The mean, held back wherever the clients' updates disagree in sign.",
        paper="Tenison et al. 2022, Gradient Masked Averaging for Federated Learning.",
        update="x ← x + lr_g·m·Σ p_k·(y_k - x), m = 1 where A = |Σ p_k·sign(y_k - x)| ≥ τ, else A",
        knobs={"tau": "τ, agreement from which the mean is taken whole, 0 to 1", "weights": WEIGHTS,
               "server_lr": SERVER_LR},
        reduces=(Reduction({"tau": 0.0}, "fedavg"),),
        fails="what only some clients can teach (a label few hold) is held back as well, and all "
        "steps get shorter",
        defaults="τ = 0.4 takes what seven of ten equal clients agree on; 1 only what all do",
        side="aggregator",
    ),
)  # fmt: skip
def fedgma(tau: float = 0.4, weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    if not 0 <= tau <= 1:
        raise ConfigError(f"tau must be from 0 to 1, not {tau}.")
    return Recipe(aggregates=MaskedMean(tau, weighting(weights)), steps=server_step(server_lr))


@method(
    "fedbn",
    Card(
        summary="FedAvg that leaves every BatchNorm layer at the client.",
        paper="Li et al. 2021, FedBN.",
        update="the mean by size of all parameters but BatchNorm's, which stay private",
        knobs={"weights": WEIGHTS, "server_lr": SERVER_LR},
        sends="model parameters without BatchNorm's",
        batch_norm="private: scale, shift and running statistics, matched by layer type",
        fails="a model without BatchNorm makes it FedAvg; an unseen client has no statistics",
    ),
)
def fedbn(weights: Weights = "size", server_lr: float = 1.0) -> Recipe:
    return Recipe(
        shares=but(BATCH_NORM),
        aggregates=Mean(weighting(weights)),
        steps=server_step(server_lr),
    )


@method(
    "ditto",
    Card(
        summary="FedAvg, and beside it a personal model per client pulled towards the global one.",
        paper="Li et al. 2021, Ditto.",
        update="v_k ← v_k - lr·(∇F_k(v_k) + λ·(v_k - w_received))",
        knobs={"lam": "strength of the pull, ≥ 0; 0 is local training",
               "personal_epochs": "epochs for the personal model (none: the run's own)",
               "weights": WEIGHTS, "server_lr": SERVER_LR},
        fails="costs a second training per round; lr·λ must stay below 2",
    ),
)  # fmt: skip
def ditto(
    lam: float = 1.0,
    personal_epochs: int | None = None,
    weights: Weights = "size",
    server_lr: float = 1.0,
) -> Recipe:
    pull = Pull(not_negative("lam", lam))
    return Recipe(
        trains=(Phase(), Phase(epochs=personal_epochs, corrects=(pull,), model="personal")),
        aggregates=Mean(weighting(weights)),
        steps=server_step(server_lr),
    )
