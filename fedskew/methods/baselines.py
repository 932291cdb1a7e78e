"""The references in every comparison, and the classical methods against skew."""

from __future__ import annotations

from typing import Annotated

from fedskew.federate.recipe import Phase, Recipe
from fedskew.methods.common import ALL_ALIKE, BY_SIZE, Epochs, Server
from fedskew.methods.registry import Card, ReducesTo, method
from fedskew.parts.aggregate import Apart, Mean, MeanWithVariates, NormalisedMean
from fedskew.parts.correct import ControlVariates, Pull
from fedskew.parts.masked import MaskedMean
from fedskew.parts.report import LocalLength, VariateChange
from fedskew.parts.select import BATCH_NORM, NOTHING, but
from fedskew.registry.knobs import Knob

Strength = Annotated[
    float,
    Knob("strength of the pull to the received model", ge=0, tries=(0.001, 0.01, 0.1, 1.0)),
]


@method(
    "local",
    Card(
        summary="No federation: every client trains alone on its own data.",
        paper="The lower reference; under extreme label skew often the best method.",
        update="w_k ← SGD(w_k) on the client's data, never combined",
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
        fails="client drift: with skewed labels and long local training the mean is worse than "
        "its members",
        side="aggregator",
        plain=True,
    ),
)
def fedavg(server: Server = BY_SIZE) -> Recipe:
    return Recipe(aggregates=Mean(server.weighting), steps=server.step)


@method(
    "fedprox",
    Card(
        summary="FedAvg whose clients are pulled back towards the model they received.",
        paper="Li et al. 2020, Federated Optimization in Heterogeneous Networks.",
        update="client gradient + μ·(w - w_received), then the mean by size",
        reduces=(ReducesTo("fedavg", at={"mu": 0.0}),),
        fails="a large μ with a large learning rate overshoots (lr·μ must stay below 2)",
        side="aggregator",
    ),
)
def fedprox(mu: Strength = 0.01, server: Server = BY_SIZE) -> Recipe:
    return Recipe(
        trains=(Phase(corrects=(Pull(mu),)),),
        aggregates=Mean(server.weighting),
        steps=server.step,
    )


@method(
    "scaffold",
    Card(
        summary="Control variates replace each client's own drift by everyone's.",
        paper="Karimireddy et al. 2020, SCAFFOLD (option II).",
        update="client gradient - c_k + c; c_k⁺ = c_k - c + (x - y_k)/(S·lr); "
        "x ← x + lr_g·mean(y_k - x); c ← c + (1/N)·Σ(c_k⁺ - c_k)",
        sends="model parameters and as many again for the variates, both ways",
        fails="large learning rates under extreme skew; Adam (its steps are not gradients)",
        side="aggregator",
    ),
)
def scaffold(server: Server = ALL_ALIKE) -> Recipe:
    return Recipe(
        trains=(Phase(corrects=(ControlVariates(),)),),
        reports=(VariateChange(),),
        aggregates=MeanWithVariates(server.weighting),
        steps=server.step,
    )


@method(
    "fednova",
    Card(
        summary="Updates are divided by the client's number of steps before they are averaged.",
        paper="Wang et al. 2020, Tackling the Objective Inconsistency Problem (FedNova).",
        update="x ← x - lr_g·τ_eff·Σ p_k·(x - y_k)/a_k, τ_eff = Σ p_k·a_k",
        sends="model parameters and one number (the length of its accumulated gradients)",
        fails="adaptive optimisers, whose steps have no length in gradients",
        side="aggregator",
    ),
)
def fednova(mu: Strength = 0.0, server: Server = BY_SIZE) -> Recipe:
    pull = (Pull(mu),) if mu else ()
    return Recipe(
        trains=(Phase(corrects=pull),),
        reports=(LocalLength(mu),),
        aggregates=NormalisedMean(server.weighting),
        steps=server.step,
    )


@method(
    "fedgma",
    Card(
        summary="The mean, held back wherever the clients' updates disagree in sign.",
        paper="Tenison et al. 2022, Gradient Masked Averaging for Federated Learning.",
        update="x ← x + lr_g·m·Σ p_k·(y_k - x), m = 1 where A = |Σ p_k·sign(y_k - x)| ≥ τ, else A",
        reduces=(ReducesTo("fedavg", at={"tau": 0.0}),),
        fails="what only some clients can teach (a label few hold) is held back as well, and all "
        "steps become shorter",
        defaults="τ = 0.4 takes what seven of ten equal clients agree on; 1 only what all agree on",
        side="aggregator",
    ),
)
def fedgma(
    tau: Annotated[
        float,
        Knob("τ, least agreement for taking the full mean", ge=0, le=1, tries=(0.2, 0.4, 0.8)),
    ] = 0.4,
    server: Server = BY_SIZE,
) -> Recipe:
    return Recipe(aggregates=MaskedMean(tau, server.weighting), steps=server.step)


@method(
    "fedbn",
    Card(
        summary="FedAvg that leaves every BatchNorm layer at the client.",
        paper="Li et al. 2021, FedBN.",
        update="the mean by size of all parameters but BatchNorm's, which stay private",
        sends="model parameters without BatchNorm's",
        batch_norm="private: scale, shift and running statistics, matched by layer type",
        fails="with a model without BatchNorm it is FedAvg; an unseen client has no statistics",
    ),
)
def fedbn(server: Server = BY_SIZE) -> Recipe:
    return Recipe(
        shares=but(BATCH_NORM),
        aggregates=Mean(server.weighting),
        steps=server.step,
    )


@method(
    "ditto",
    Card(
        summary="FedAvg, plus a personal model per client that is pulled towards the global one.",
        paper="Li et al. 2021, Ditto.",
        update="v_k ← v_k - lr·(∇F_k(v_k) + λ·(v_k - w_received))",
        fails="costs a second training per round; lr·λ must stay below 2",
    ),
)
def ditto(
    lam: Annotated[
        float,
        Knob("strength of the pull; 0 is local training", ge=0, tries=(0.01, 0.1, 1.0, 10.0)),
    ] = 1.0,
    personal_epochs: Epochs = None,
    server: Server = BY_SIZE,
) -> Recipe:
    pull = Pull(lam)
    return Recipe(
        trains=(Phase(), Phase(epochs=personal_epochs, corrects=(pull,), model="personal")),
        aggregates=Mean(server.weighting),
        steps=server.step,
    )
