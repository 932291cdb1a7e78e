"""Objectives that compare environments: where they agree, or which one does worst."""

from __future__ import annotations

from typing import Annotated

from fedskew.federate.recipe import Recipe
from fedskew.methods.common import Base
from fedskew.methods.invariance import DOMAINBED, SENDS, ByEnvironment, objective, with_objective
from fedskew.methods.registry import Card, ReducesTo
from fedskew.parts.agreement import AndMask, GroupDro, Mldg, SandMask
from fedskew.registry.knobs import Knob

NO_BATCH_NORM = "refused: each environment passes through the model by itself"


@objective(
    "mldg",
    Card(
        summary="Any method whose steps in one environment must also help in another.",
        paper="Li et al. 2018, Learning to Generalize: Meta-Learning for Domain Generalization "
        "(first order); " + DOMAINBED + ".",
        update="mean over cyclic pairs (i, j) of G_i(w) + β·G_j(w after one step along G_i)",
        reduces=(ReducesTo("erm", at={"beta": 0.0}),),
        sends=SENDS,
        batch_norm=NO_BATCH_NORM,
        fails="costs two gradients per step; β > 0 also makes steps longer; with one environment "
        "it only looks ahead",
        defaults="DomainBed's; the step ahead is the first one of the run's own optimiser",
    ),
)
def mldg(
    base: Base = "fedavg",
    beta: Annotated[
        float, Knob("β, weight of the other environment after the step", ge=0, tries=(0.5, 1.0))
    ] = 1.0,
    environments: ByEnvironment = True,
) -> Recipe:
    return with_objective(base, Mldg(beta, by_environment=environments))


@objective(
    "groupdro",
    Card(
        summary="Any method whose clients give more weight to environments with a larger loss.",
        paper="Sagawa et al. 2020, Distributionally Robust Neural Networks; " + DOMAINBED + ".",
        update="Σ q_e·L_e, q_e ← q_e·exp(η·L_e), normalised; the client remembers q",
        reduces=(
            ReducesTo("erm", at={"eta": 0.0}),
            ReducesTo("fedavg", at={"environments": False}),
        ),
        sends=SENDS,
        fails="one environment with meaningless labels gets all the weight",
        defaults="DomainBed's",
    ),
)
def groupdro(
    base: Base = "fedavg",
    eta: Annotated[
        float,
        Knob("η, how fast environments' weights follow losses", ge=0, tries=(0.001, 0.01, 0.1)),
    ] = 0.01,
    environments: ByEnvironment = True,
) -> Recipe:
    return with_objective(base, GroupDro(eta, by_environment=environments))


@objective(
    "and-mask",
    Card(
        summary="Any method whose clients follow only gradients whose sign environments agree on.",
        paper="Parascandolo et al. 2021, Learning Explanations That Are Hard to Vary; "
        + DOMAINBED
        + ".",
        update="mean_e g_e where |mean_e sign g_e| ≥ τ, else 0; divided by the share kept in the "
        "tensor",
        sends=SENDS,
        batch_norm=NO_BATCH_NORM,
        fails="many environments rarely agree; with one environment it is ERM, rescaled where "
        "gradients are zero",
        defaults="DomainBed's",
    ),
)
def and_mask(
    base: Base = "fedavg",
    tau: Annotated[
        float, Knob("τ, least agreement for a gradient to count", gt=0, le=1, tries=(0.5, 1.0))
    ] = 1.0,
    environments: ByEnvironment = True,
) -> Recipe:
    return with_objective(base, AndMask(tau, by_environment=environments))


@objective(
    "sand-mask",
    Card(
        summary="Any method whose clients follow gradients more where environments agree more.",
        paper="Shahtalebi et al. 2021, SAND-mask; " + DOMAINBED + ".",
        update="mean_e g_e·max(0, tanh(k·(|mean_e sign g_e| - τ)/var_e g_e)); divided by the share "
        "kept in the tensor",
        sends=SENDS,
        batch_norm=NO_BATCH_NORM,
        fails="with gradients so small that k over their variance is huge it is a hard mask",
        defaults="DomainBed's k; its τ = 1 always masks everything, so τ is 0.5",
    ),
)
def sand_mask(
    base: Base = "fedavg",
    tau: Annotated[
        float,
        Knob(
            "τ, least agreement for a gradient to count; at 1 nothing would be learned",
            ge=0,
            lt=1,
        ),
    ] = 0.5,
    k: Annotated[float, Knob("sharpness of the mask", gt=0, tries=(1.0, 10.0))] = 10.0,
    environments: ByEnvironment = True,
) -> Recipe:
    return with_objective(base, SandMask(tau, k, by_environment=environments))
