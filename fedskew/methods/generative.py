"""Variational autoencoders in a federation: averaged, weighed by their codes, or distilled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Card, Recipe, Stage, method
from fedskew.federate.recipe import Reduction as Equal
from fedskew.methods.baselines import SERVER_LR, server_step
from fedskew.methods.discrepancy import ALL_ZERO, based_on
from fedskew.models.registry import CLASSIFIER
from fedskew.parts.aggregate import Aggregator, BySize, BySteps, Mean, Uniform, Weighting
from fedskew.parts.begin import Begin, Own
from fedskew.parts.discrepancy import (
    LABELS,
    AllZero,
    ByDiscrepancy,
    Control,
    LabelDiscrepancy,
    Settled,
)
from fedskew.parts.distil import FromDecoders, SendDecoder
from fedskew.parts.generative import (
    ByLoss,
    Encoded,
    LatentDiscrepancy,
    LocalLoss,
    Reduction,
    RememberingMean,
    VaeLoss,
)
from fedskew.parts.report import Report
from fedskew.parts.select import EVERYTHING, NOTHING

Weights = Literal["samples", "batches", "uniform", "loss"]
WEIGHTS: dict[str, Weighting] = {
    "samples": BySize(), "batches": BySteps(), "uniform": Uniform(), "loss": ByLoss(),
}  # fmt: skip

LOSS = {
    "beta": "weight of the codes' divergence in training, ≥ 0",
    "eval_beta": "its weight in scores, ≥ 0",
    "reconstruction": "a sample's squared errors: their 'sum' or 'mean'",
    "kl": "a sample's divergences over latent dimensions: their 'sum' or 'mean'",
    "sampled": "score with a drawn code (true) or with the mean code",
}
DEFAULTS = "β, reductions and β = 1 in scores are the latent-weights thesis' own"
REVEALS = "a decoder draws what its client holds: with one class a client, its class"


def classless(base: str | Mapping[str, Any]) -> tuple[str, Recipe]:
    """A method another is built on, which must not tell a classifier's body from its head."""
    name, recipe = based_on(base)
    chosen = [recipe.shares, *(phase.trains for phase in recipe.trains)]
    parts = {part for select in chosen for part in (*select.only, *select.but)}
    if parts & set(CLASSIFIER) or any(phase.objective for phase in recipe.trains):
        raise ConfigError(f"base = {name!r} is made for classifiers, which this model is not.")
    if not recipe.objective.replaceable or recipe.extends or recipe.prepares:
        raise ConfigError(f"base = {name!r} brings a loss, a model or stages of its own.")
    return name, recipe


@method(
    "vae",
    Card(
        summary="A variational autoencoder, trained by any method that weighs clients, or alone.",
        paper="Kingma and Welling 2014; Higgins et al. 2017 (β-VAE); Wu and Sharma 2022 (one class "
        "per client, with sync = false and shared_start = false).",
        update="the base's, on |x - dec(z)|² + β·KL(enc(x) ‖ N(0, I)), z ~ enc(x)",
        knobs={**LOSS,
               "base": "the method that trains it, a name or {name = …, knob = …}",
               "weights": "'samples', 'batches', 'uniform', 'loss' (1/loss); none: the base's own",
               "sync": "false: clients never load the average and train on, as the paper's did",
               "shared_start": "false, with sync = false: each begins with a model of its own",
               "server_lr": f"{SERVER_LR}; none: the base's own",
               "divergence": "record how far each client's weights are from the mean"},
        sends="what the base sends; with weights = 'loss' also the client's training loss",
        fails="the average of models trained apart draws nothing: latent spaces do not align; "
        + REVEALS,
        defaults=DEFAULTS,
    ),
)  # fmt: skip
def vae(
    base: str | Mapping[str, Any] = "fedavg",
    beta: float = 10.0,
    eval_beta: float = 1.0,
    reconstruction: Reduction = "sum",
    kl: Reduction = "sum",
    sampled: bool = True,
    weights: Weights | None = None,
    sync: bool = True,
    shared_start: bool = True,
    server_lr: float | None = None,
    divergence: bool = False,
) -> Recipe:
    name, recipe = classless(base)
    objective = VaeLoss(beta, eval_beta, reconstruction, kl, sampled)
    recipe = replace(recipe, objective=objective)
    if sync and not shared_start:
        raise ConfigError("shared_start = false needs sync = false: the average replaces all.")
    aggregates: Aggregator | None = recipe.aggregates
    if weights is not None:
        if weights not in WEIGHTS:
            raise ConfigError(f"weights must be one of {', '.join(WEIGHTS)}, not {weights!r}.")
        aggregates = recipe.aggregates.reweighted(WEIGHTS[weights])
        if weights == "loss":
            recipe = replace(recipe, reports=(*recipe.reports, LocalLoss(objective)))
    if divergence and aggregates is not None:
        aggregates = aggregates.with_divergence()
    if aggregates is None:
        raise ConfigError(
            f"base = {name!r} takes no weighted mean, so leave out weights and divergence."
        )
    if not sync and not aggregates.averages:
        raise ConfigError(
            f"base = {name!r} does other things than average the clients' models, which needs "
            "clients that load the result: leave out sync."
        )
    if server_lr is not None and recipe.shares == NOTHING:
        raise ConfigError(f"base = {name!r} shares nothing, so leave out server_lr.")
    return replace(
        recipe,
        aggregates=aggregates,
        steps=recipe.steps if server_lr is None else server_step(server_lr),
        begins=Begin() if sync else Own(EVERYTHING, apart=not shared_start),
    )


RULE = {
    "alpha": "what a unit of discrepancy takes from a client's share, ≥ 0",
    "b": "added to every client's share",
    "encoded": "codes are one draw a sample ('sample') or their means ('mean')",
    "normalise": "divide discrepancies by their sum",
    "all_zero": ALL_ZERO,
}
SENDS = (
    "model parameters, and four numbers: how far its codes are from N(0, 1), how many samples and "
    "latent dimensions in use it has, and a lot"
)
NOISE = "few samples look far from N(0, 1) by chance (about 1.3/√n): small clients lose weight"


@method(
    "latent-weights",
    Card(
        summary="β-VAE twice: the first finds clients whose codes are odd, the second heeds them "
        "less.",
        paper="Page 2024, Aggregation Weight Modifications Using Latent Space Insights.",
        update="p_k ∝ max(0, n_k - α·d_k + b), d_k the mean W1 distance of the client's codes from "
        "N(0, 1) under a finished federated β-VAE; a new one is then trained with these weights",
        knobs={**RULE, **LOSS,
               "control": "what to use in the weights' place, to see what they add: 'none'; 'best' "
               "(the best client alone); 'random' (as many clients, by lot); 'labels' (FedDisco's "
               "weights, as uneven)"},
        reduces=(Equal({"alpha": 0.0, "b": 0.0}, "vae"),),
        sends=SENDS + "; with control = 'labels' also how lopsided its labels are",
        fails="with a large α nobody but one client is left; " + NOISE,
        defaults=DEFAULTS + "; so are raw distances and b = 0",
    ),
)  # fmt: skip
def latent_weights(
    alpha: float = 0.5,
    b: float = 0.0,
    encoded: Encoded = "sample",
    normalise: bool = False,
    all_zero: AllZero = "size",
    control: Control = "none",
    beta: float = 10.0,
    eval_beta: float = 1.0,
    reconstruction: Reduction = "sum",
    kl: Reduction = "sum",
    sampled: bool = True,
) -> Recipe:
    plain = vae("fedavg", beta, eval_beta, reconstruction, kl, sampled)
    weighting = Settled(ByDiscrepancy(alpha, b, normalise, all_zero), control)
    reports: tuple[Report, ...] = (LatentDiscrepancy(encoded),)
    if control == "labels":
        reports += (LabelDiscrepancy(group=LABELS),)
    return replace(
        plain,
        aggregates=Mean(weighting),
        prepares=(Stage("baseline", plain, hands_over=reports),),
    )


@method(
    "latent-weights-online",
    Card(
        summary="β-VAE whose clients' weights follow their codes while it trains.",
        paper="Proposed as future work by Page 2024; made here.",
        update="as latent-weights, with d_k measured on the model of the moment every so many "
        "rounds; sizes decide until the first time",
        knobs={**RULE, **LOSS, "every": "rounds from one measurement to the next, ≥ 1"},
        reduces=(Equal({"alpha": 0.0, "b": 0.0}, "vae"),),
        sends=SENDS + ", every so many rounds",
        fails="weights measured early may cut off clients for good; " + NOISE,
        defaults=DEFAULTS,
    ),
)
def latent_weights_online(
    alpha: float = 0.5,
    b: float = 0.0,
    every: int = 5,
    encoded: Encoded = "sample",
    normalise: bool = False,
    all_zero: AllZero = "size",
    beta: float = 10.0,
    eval_beta: float = 1.0,
    reconstruction: Reduction = "sum",
    kl: Reduction = "sum",
    sampled: bool = True,
) -> Recipe:
    plain = vae("fedavg", beta, eval_beta, reconstruction, kl, sampled)
    return replace(
        plain,
        reports=(LatentDiscrepancy(encoded, every),),
        aggregates=RememberingMean(ByDiscrepancy(alpha, b, normalise, all_zero)),
    )


@method(
    "distilled-vae",
    Card(
        summary="Clients train VAEs apart and send their decoders; the server learns from samples.",
        paper="Made here, after the one-class-per-client paper's finding that averages fail.",
        update="x ~ Σ n_k/n · dec_k(z), z ~ N(0, I) or the client's components; one VAE is trained "
        "on such x",
        knobs={**LOSS,
               "local_rounds": "rounds clients train apart first (none: as many as the run's)",
               "samples": "how many the server draws (none: as many as clients hold together)",
               "components": "Gaussians each client describes its codes by; 0: the prior does",
               "shared_start": "false: each client begins with a model of its own"},
        sends="once, the decoder and the number of samples, with components also where codes lie",
        fails="what no decoder draws is lost, blur is learnt from blur, and inputs must lie where "
        "the decoder draws (normalise = 'unit' or 'signed'); " + REVEALS,
        defaults=DEFAULTS,
    ),
)  # fmt: skip
def distilled_vae(
    local_rounds: int | None = None,
    samples: int | None = None,
    components: int = 10,
    shared_start: bool = True,
    beta: float = 10.0,
    eval_beta: float = 1.0,
    reconstruction: Reduction = "sum",
    kl: Reduction = "sum",
    sampled: bool = True,
) -> Recipe:
    for name, value, least in (
        ("local_rounds", local_rounds, 1), ("samples", samples, 1), ("components", components, 0),
    ):  # fmt: skip
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}.")
    alone = vae("local", beta, eval_beta, reconstruction, kl, sampled)
    pooled = vae("central", beta, eval_beta, reconstruction, kl, sampled)
    stage = Stage(
        "apart",
        replace(alone, begins=Own(NOTHING, apart=not shared_start)),
        rounds=local_rounds,
        train={"clients_per_round": None},  # everybody's decoder must have learnt something
        hands_over=(SendDecoder(components),),
    )
    return replace(pooled, invents=FromDecoders(samples), prepares=(stage,))
