"""Variational autoencoders in a federation: averaged, weighted by their codes, or distilled."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Recipe, Stage
from fedskew.methods.common import Base, based_on
from fedskew.methods.registry import Card, ReducesTo, method
from fedskew.models.registry import CLASSIFIER
from fedskew.parts.aggregate import Aggregator, BySize, BySteps, Mean, Uniform, Weighting
from fedskew.parts.begin import Begin, Own
from fedskew.parts.discrepancy import LABELS, ByDiscrepancy, Control, FixedWeights, LabelDiscrepancy
from fedskew.parts.distil import FromDecoders, SendDecoder
from fedskew.parts.generative import (
    ByLoss,
    LatentDiscrepancy,
    LocalLoss,
    RememberingMean,
    VaeLoss,
)
from fedskew.parts.report import Report
from fedskew.parts.select import EVERYTHING, NOTHING
from fedskew.parts.step import LearningRate
from fedskew.registry.knobs import Knob

WEIGHTS: dict[str, Weighting] = {
    "samples": BySize(),
    "batches": BySteps(),
    "uniform": Uniform(),
    "loss": ByLoss(),
}
SharedStart = Annotated[bool, Knob("false: each client starts from a model of its own")]
THESIS_LOSS = VaeLoss()
THESIS_RULE = ByDiscrepancy(alpha=0.5, b=0.0, normalise=False)
DRAWN_CODES = LatentDiscrepancy()
DEFAULTS = "β, reductions and β = 1 in scores are those of the latent-weights thesis"
REVEALS = "a decoder draws what its client holds: with one class per client, that class"


def classless(base: Base) -> tuple[str, Recipe]:
    """A method that another is built on, and that must not need a classifier's body and head."""
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
        summary="A variational autoencoder, trained by any method with client weights, or alone.",
        paper="Kingma and Welling 2014; Higgins et al. 2017 (β-VAE); Wu and Sharma 2022 (one class "
        "per client, with sync = false and shared_start = false).",
        update="the base's, on |x - dec(z)|² + β·KL(enc(x) ‖ N(0, I)), z ~ enc(x)",
        sends="what the base sends; with weights = 'loss' also the client's training loss",
        fails="the average of models trained apart draws nothing: latent spaces do not align; "
        + REVEALS,
        defaults=DEFAULTS,
    ),
)
def vae(
    base: Base = "fedavg",
    loss: VaeLoss = THESIS_LOSS,
    weights: Annotated[
        Literal["samples", "batches", "uniform", "loss"] | None,
        Knob("what clients are weighted by ('loss': its inverse); none: as in the base"),
    ] = None,
    sync: Annotated[
        bool, Knob("false: clients never load the average and train on, as the paper's did")
    ] = True,
    shared_start: SharedStart = True,
    server_lr: Annotated[
        float | None,
        Knob("step of the server towards its target; none: as in the base", gt=0),
    ] = None,
    divergence: Annotated[
        bool, Knob("record how far each client's weights are from the mean")
    ] = False,
) -> Recipe:
    name, recipe = classless(base)
    recipe = replace(recipe, objective=loss)
    if sync and not shared_start:
        raise ConfigError("shared_start = false needs sync = false: the average replaces all.")
    aggregates: Aggregator | None = recipe.aggregates
    if weights is not None:
        aggregates = recipe.aggregates.reweighted(WEIGHTS[weights])
        if weights == "loss":
            recipe = replace(recipe, reports=(*recipe.reports, LocalLoss(loss)))
    if divergence and aggregates is not None:
        aggregates = aggregates.with_divergence()
    if aggregates is None:
        raise ConfigError(
            f"base = {name!r} computes no weighted mean, so leave out weights and divergence."
        )
    if not sync and not aggregates.averages:
        raise ConfigError(
            f"base = {name!r} does more than average the clients' models, which needs "
            "clients that load the result: leave out sync."
        )
    if server_lr is not None and recipe.shares == NOTHING:
        raise ConfigError(f"base = {name!r} shares nothing, so leave out server_lr.")
    return replace(
        recipe,
        aggregates=aggregates,
        steps=recipe.steps if server_lr is None else LearningRate(server_lr),
        begins=Begin() if sync else Own(EVERYTHING, apart=not shared_start),
    )


SENDS = (
    "model parameters, and four numbers: how far its codes are from N(0, 1), how many samples it "
    "has, how many latent dimensions are in use, and a random number"
)
NOISE = "few samples look far from N(0, 1) by chance (about 1.3/√n): small clients lose weight"


@method(
    "latent-weights",
    Card(
        summary="β-VAE twice: the first finds clients with unusual codes, the second gives them "
        "less weight.",
        paper="Page 2024, Aggregation Weight Modifications Using Latent Space Insights.",
        update="p_k ∝ max(0, n_k - α·d_k + b), d_k the mean W1 distance of the client's codes from "
        "N(0, 1) under a finished federated β-VAE; a new one is then trained with these weights",
        reduces=(ReducesTo("vae", at={"alpha": 0.0, "b": 0.0}),),
        sends=SENDS + "; with control = 'labels' also how unbalanced its labels are",
        fails="with a large α only one client is left; " + NOISE,
        defaults=DEFAULTS + "; so are raw distances and b = 0",
    ),
)
def latent_weights(
    rule: ByDiscrepancy = THESIS_RULE,
    codes: LatentDiscrepancy = DRAWN_CODES,
    control: Control = "none",
    loss: VaeLoss = THESIS_LOSS,
) -> Recipe:
    plain = vae("fedavg", loss)
    weighting = FixedWeights(rule, control)
    reports: tuple[Report, ...] = (codes,)
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
        update="as latent-weights, with d_k measured on the current model at regular intervals; "
        "until the first measurement, weights are by size",
        reduces=(ReducesTo("vae", at={"alpha": 0.0, "b": 0.0}),),
        sends=SENDS + ", at regular intervals",
        fails="weights measured early may cut off clients for good; " + NOISE,
        defaults=DEFAULTS,
    ),
)
def latent_weights_online(
    rule: ByDiscrepancy = THESIS_RULE,
    codes: LatentDiscrepancy = DRAWN_CODES,
    every: Annotated[int, Knob("rounds from one measurement to the next", ge=1)] = 5,
    loss: VaeLoss = THESIS_LOSS,
) -> Recipe:
    return replace(
        vae("fedavg", loss),
        reports=(replace(codes, every=every),),
        aggregates=RememberingMean(rule),
    )


@method(
    "distilled-vae",
    Card(
        summary="Clients train VAEs apart and send their decoders; the server learns from samples.",
        paper="Made here, after the one-class-per-client paper's finding that averages fail.",
        update="x ~ Σ n_k/n · dec_k(z), z ~ N(0, I) or the client's components; one VAE is trained "
        "on such x",
        sends="once, the decoder and the number of samples; with components also where codes lie",
        fails="what no decoder draws is lost, blur is learnt from blur, and inputs must lie where "
        "the decoder draws (normalise = 'unit' or 'signed'); " + REVEALS,
        defaults=DEFAULTS,
    ),
)
def distilled_vae(
    local_rounds: Annotated[
        int | None, Knob("rounds that clients first train apart; none: as many as the run's", ge=1)
    ] = None,
    samples: Annotated[
        int | None,
        Knob("how many samples the server draws; none: as many as all clients hold", ge=1),
    ] = None,
    components: Annotated[
        int, Knob("Gaussians that describe each client's codes; 0: use the prior", ge=0)
    ] = 10,
    shared_start: SharedStart = True,
    loss: VaeLoss = THESIS_LOSS,
) -> Recipe:
    alone, pooled = vae("local", loss), vae("central", loss)
    stage = Stage(
        "apart",
        replace(alone, begins=Own(NOTHING, apart=not shared_start)),
        rounds=local_rounds,
        train={"clients_per_round": None},  # every decoder must have been trained
        hands_over=(SendDecoder(components),),
    )
    return replace(pooled, invents=FromDecoders(samples), prepares=(stage,))
