"""Bodies trained under a frozen head, and models mixed by the similarity of their clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Adapt, Phase, Recipe
from fedskew.methods.common import Weights, weighting
from fedskew.methods.registry import Card, ReducesTo, method
from fedskew.parts.aggregate import Mean
from fedskew.parts.groups import InGroups
from fedskew.parts.mix import BySimilarity, Mix, SelfMix, Sharpen
from fedskew.parts.report import Report
from fedskew.parts.select import EVERYTHING, Select, only
from fedskew.parts.similarity import Fingerprint
from fedskew.registry.knobs import Knob

Part = Annotated[
    Literal["body", "all"], Knob("what is mixed: the body under a frozen head, or whole models")
]


@dataclass(frozen=True)
class FineTuning:
    """Epochs on the client's own training data, of the whole model or of one part."""

    fine_tune: Annotated[
        Literal["all", "head", "body"], Knob("what fine-tuning moves before the last score")
    ] = "all"
    fine_tune_epochs: Annotated[
        int, Knob("epochs of fine-tuning, 0 for none; [evaluate] overrides both", ge=0)
    ] = 5

    @property
    def adapts(self) -> Adapt | None:
        part = EVERYTHING if self.fine_tune == "all" else only(self.fine_tune)
        epochs = self.fine_tune_epochs
        return Adapt((Phase(part, epochs=epochs),)) if epochs else None


FIVE_EPOCHS = FineTuning()
NO_TUNING = FineTuning(fine_tune_epochs=0)
FEATURES = Fingerprint("feature")
SHARP = BySimilarity(sharpen=16.0)


def mixed(part: Part, aggregates: Mix, reports: tuple[Report, ...], tuning: FineTuning) -> Recipe:
    """Models mixed per client: bodies under a frozen head, or whole models."""
    moves: Select = only("body") if part == "body" else EVERYTHING
    return Recipe(
        trains=(Phase(moves),),
        shares=moves,
        reports=reports,
        aggregates=aggregates,
        adapts=tuning.adapts,
    )


def mixed_by_similarity(
    part: Part, report: Fingerprint, mix: BySimilarity, tuning: FineTuning
) -> Recipe:
    return mixed(part, replace(mix, longest=report.longest), (report,), tuning)


@method(
    "fedbabu",
    Card(
        summary="Only the body is trained and averaged; the head stays as it was initialised.",
        paper="Oh, Kim & Yun 2022, FedBABU.",
        update="body ← mean of bodies trained under the frozen head; then fine-tuning",
        sends="the body's parameters",
        fails="before fine-tuning the head is random: use the score after fine-tuning",
    ),
)
def fedbabu(weights: Weights = "uniform", tuning: FineTuning = FIVE_EPOCHS) -> Recipe:
    body = only("body")
    return Recipe(
        trains=(Phase(body),),
        shares=body,
        aggregates=Mean(weighting(weights)),
        adapts=tuning.adapts,
    )


@method(
    "fedshibu",
    Card(
        summary="FedBABU with a body per client: others' bodies weighted by similarity to it.",
        paper="Sreemathy Raj et al. 2022, FedSHIBU.",
        update="S_ij = CKA(client i, client j); body_i ← Σ_j S_ij·body_j / Σ_l S_il",
        reduces=(ReducesTo("fedbabu", at={"sharpen": 0.0}),),
        sends="the body's parameters and the upper half of one centred, normalised matrix: "
        "d(d+1)/2 numbers for d features (64: 8.3 kB, 512: 525 kB), n(n+1)/2 for n probe samples "
        "(50: 5.1 kB); raw representations would be n·d (50 x 64: 12.8 kB, 50 x 512: 102 kB). A "
        "linear matrix reveals the geometry of the features up to rotation and scale: of public "
        "inputs in 'probe', of all own data together in 'feature', of single own samples in 'own'",
        fails="if the own body outweighs all others it is local training under a random head: "
        "compare local and self-mix",
        defaults="best on validation data of two seeds and six splits of real data: 'feature' with "
        "sharpen = 16 (mean accuracy 78.5 %; 71.7, 77.7 and 78.0 at 4, 8 and 32; 78.2 with the RBF "
        "kernel, 77.4 for 'probe', both at 16). Where groups of clients share labels, 4 did better",
    ),
)
def fedshibu(
    report: Fingerprint = FEATURES, mix: BySimilarity = SHARP, tuning: FineTuning = FIVE_EPOCHS
) -> Recipe:
    return mixed_by_similarity("body", report, mix, tuning)


@method(
    "fedavg-crsm",
    Card(
        summary="FedAvg with a whole model per client, weighted by similarity as in FedSHIBU.",
        paper="Sreemathy Raj 2023, similarity-based aggregation without decoupling.",
        update="S_ij = CKA(client i, client j); w_i ← Σ_j S_ij·w_j / Σ_l S_il",
        reduces=(ReducesTo("fedavg", at={"sharpen": 0.0}, given={"weights": "uniform"}),),
        sends="model parameters and one matrix as in FedSHIBU",
        fails="as FedSHIBU",
    ),
)
def fedavg_crsm(
    report: Fingerprint = FEATURES, mix: BySimilarity = SHARP, tuning: FineTuning = NO_TUNING
) -> Recipe:
    return mixed_by_similarity("all", report, mix, tuning)


@method(
    "grouped",
    Card(
        summary="Averaging inside groups of clients: given, or found from their similarity.",
        paper="Sreemathy Raj et al. 2022, the motivating experiment; finding groups is ours.",
        update="body_i ← mean of the bodies of i's group",
        sends="the mixed parameters; with found groups also one matrix as in FedSHIBU",
        fails="wrong groups divide the data for nothing",
    ),
)
def grouped(
    groups: Annotated[
        Literal["found"] | Sequence[Sequence[str | int]],
        Knob(
            "'found' (hierarchical clustering of the similarity matrix each round, with as many "
            "groups as give the best silhouette), or lists of clients, by name or by place among "
            "the sorted names"
        ),
    ] = "found",
    part: Part = "body",
    weights: Weights = "uniform",
    report: Fingerprint = FEATURES,
    tuning: FineTuning = FIVE_EPOCHS,
) -> Recipe:
    finds = groups == "found"
    if not all(groups):
        raise ConfigError(f"every group in groups must have clients, not {groups!r}.")
    given = None if finds else tuple(tuple(group) for group in groups)
    aggregates = InGroups(weighting(weights), given, report.longest)
    return mixed(part, aggregates, (report,) if finds else (), tuning)


@method(
    "self-mix",
    Card(
        summary="A control: a fixed weight on the own model, the rest spread over all others.",
        paper="Shows how much of similarity-weighted methods self-weight alone explains.",
        update="body_i ← λ·body_i + (1-λ)·mean of the other bodies",
        sends="the mixed parameters; where λ is measured also one matrix as in FedSHIBU",
        fails="it knows nothing about who is similar: that is its purpose",
    ),
)
def self_mix(
    self_weight: Annotated[
        float | Literal["measured"],
        Knob(
            "λ, or 'measured': each round the mean self-weight that FedSHIBU with the knobs below "
            "would have given these clients",
            ge=0,
            le=1,
            tries=(0.25, 0.5, 0.75),
        ),
    ] = 0.5,
    part: Part = "body",
    report: Fingerprint = FEATURES,
    sharpen: Sharpen = 16.0,
    tuning: FineTuning = FIVE_EPOCHS,
) -> Recipe:
    if isinstance(self_weight, str):
        measured = BySimilarity(sharpen=sharpen, longest=report.longest)
        return mixed(part, SelfMix(measured=measured), (report,), tuning)
    return mixed(part, SelfMix(self_weight=float(self_weight)), (), tuning)
