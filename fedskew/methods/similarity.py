"""Bodies trained under a frozen head, and models mixed by how alike their clients are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Adapt, Card, Phase, Recipe, Reduction, method
from fedskew.methods.baselines import WEIGHTS, Weights, weighting
from fedskew.parts.aggregate import Mean
from fedskew.parts.groups import InGroups
from fedskew.parts.mix import BySimilarity, Mix, SelfMix
from fedskew.parts.report import Report
from fedskew.parts.select import EVERYTHING, Select, only
from fedskew.parts.similarity import Fingerprint, Kernel, Mode, Probe

Part = Literal["body", "all"]
Tuned = Literal["all", "head", "body"]


def fine_tuning(fine_tune: Tuned, epochs: int) -> Adapt | None:
    """Epochs on the client's own training data, of the whole model or of one part."""
    if fine_tune not in ("all", "head", "body"):
        raise ConfigError(f"fine_tune must be 'all', 'head' or 'body', not {fine_tune!r}.")
    if epochs < 0:
        raise ConfigError(f"fine_tune_epochs must not be negative, not {epochs}.")
    part = EVERYTHING if fine_tune == "all" else only(fine_tune)
    return Adapt((Phase(part, epochs=epochs),)) if epochs else None


def mixed(
    part: Part, aggregates: Mix, reports: tuple[Report, ...], tuned: Tuned, epochs: int
) -> Recipe:
    """Models mixed per client: bodies under a frozen head, or whole models."""
    if part not in ("body", "all"):
        raise ConfigError(f"part must be 'body' or 'all', not {part!r}.")
    moves: Select = only("body") if part == "body" else EVERYTHING
    return Recipe(
        trains=(Phase(moves),), shares=moves, reports=reports, aggregates=aggregates,
        adapts=fine_tuning(tuned, epochs),
    )  # fmt: skip


FINE_TUNE = "what fine-tuning moves before the last score: 'all', 'head' or 'body'"
FINE_TUNE_EPOCHS = "epochs of it, 0 for none; [evaluate] overrides both"
PART = "'body' (mixed under a frozen head) or 'all' (whole models)"
SIMILARITY = {
    "mode": "what is compared: 'feature' (covariances of the features on own data), 'probe' "
    "(Gram matrices on shared inputs) or 'own' (Gram matrices on own samples: the thesis to the "
    "letter, which measures nothing)",
    "kernel": "'linear' or 'rbf' (width: the median squared distance)",
    "debiased": "unrelated clients then count as 0 on average; negative estimates are 0",
    "samples": "probe or own samples compared, ≥ 2 (≥ 4 debiased); 'feature' uses all it has",
    "probe": "'noise' (unit normal inputs) or 'public' (the first of federation.public)",
    "sharpen": "exponent on similarities, ≥ 0; 0 is the plain mean, 1 the thesis, large keeps the "
    "most alike only",
    "self_weight": "fixed weight of the own model, 0-1 (none: as similarities give it)",
    "neighbours": "only so many most similar others count (none: all)",
    "cap": "most that one other client can weigh, 0-1; what is above goes to the own model",
}


@method(
    "fedbabu",
    Card(
        summary="Only the body is trained and averaged; the head stays as it was initialised.",
        paper="Oh, Kim & Yun 2022, FedBABU.",
        update="body ← mean of bodies trained under the frozen head; then fine-tuning",
        knobs={"weights": WEIGHTS, "fine_tune": FINE_TUNE, "fine_tune_epochs": FINE_TUNE_EPOCHS},
        sends="the body's parameters",
        fails="before fine-tuning the head is random: read its score after it",
    ),
)
def fedbabu(
    weights: Weights = "uniform", fine_tune: Tuned = "all", fine_tune_epochs: int = 5
) -> Recipe:
    body = only("body")
    return Recipe(
        trains=(Phase(body),),
        shares=body,
        aggregates=Mean(weighting(weights)),
        adapts=fine_tuning(fine_tune, fine_tune_epochs),
    )


@method(
    "fedshibu",
    Card(
        summary="FedBABU with a body per client: others' bodies weighted by similarity to it.",
        paper="Sreemathy Raj et al. 2022, FedSHIBU.",
        update="S_ij = CKA(client i, client j); body_i ← Σ_j S_ij·body_j / Σ_l S_il",
        knobs={**SIMILARITY, "fine_tune": FINE_TUNE, "fine_tune_epochs": FINE_TUNE_EPOCHS},
        reduces=(Reduction({"sharpen": 0.0}, "fedbabu"),),
        sends="the body's parameters and the upper half of one centred, normalised matrix: "
        "d(d+1)/2 numbers for d features (64: 8.3 kB, 512: 525 kB), n(n+1)/2 for n probe samples "
        "(50: 5.1 kB); raw representations would be n·d (50 x 64: 12.8 kB, 50 x 512: 102 kB). A "
        "linear matrix tells the geometry of the features up to rotation and scale: of public "
        "inputs in 'probe', of all own data together in 'feature', of single own samples in 'own'",
        fails="where the own body outweighs everybody it is local training under a random head: "
        "compare local and self-mix",
        defaults="won on validation data of two seeds and six splits of real data: 'feature' with "
        "sharpen = 16 (mean accuracy 78.5 %; 71.7, 77.7 and 78.0 at 4, 8 and 32; 78.2 with the RBF "
        "kernel, 77.4 for 'probe', both at 16). Where groups of clients share labels, 4 did better",
    ),
)
def fedshibu(
    mode: Mode = "feature",
    kernel: Kernel = "linear",
    debiased: bool = False,
    samples: int = 50,
    probe: Probe = "noise",
    sharpen: float = 16.0,
    self_weight: float | None = None,
    neighbours: int | None = None,
    cap: float = 1.0,
    fine_tune: Tuned = "all",
    fine_tune_epochs: int = 5,
) -> Recipe:
    report = Fingerprint(mode, kernel, debiased, samples, probe)
    aggregates = BySimilarity(
        sharpen=sharpen, self_weight=self_weight, neighbours=neighbours, cap=cap,
        longest=report.longest,
    )  # fmt: skip
    return mixed("body", aggregates, (report,), fine_tune, fine_tune_epochs)


@method(
    "fedavg-crsm",
    Card(
        summary="FedAvg with a whole model per client, weighted by similarity as in FedSHIBU.",
        paper="Sreemathy Raj 2023, similarity-based aggregation without decoupling.",
        update="S_ij = CKA(client i, client j); w_i ← Σ_j S_ij·w_j / Σ_l S_il",
        knobs={**SIMILARITY, "fine_tune": FINE_TUNE, "fine_tune_epochs": FINE_TUNE_EPOCHS},
        reduces=(Reduction({"sharpen": 0.0}, "fedavg", {"weights": "uniform"}),),
        sends="model parameters and one matrix as in FedSHIBU",
        fails="as FedSHIBU",
    ),
)
def fedavg_crsm(
    mode: Mode = "feature",
    kernel: Kernel = "linear",
    debiased: bool = False,
    samples: int = 50,
    probe: Probe = "noise",
    sharpen: float = 16.0,
    self_weight: float | None = None,
    neighbours: int | None = None,
    cap: float = 1.0,
    fine_tune: Tuned = "all",
    fine_tune_epochs: int = 0,
) -> Recipe:
    report = Fingerprint(mode, kernel, debiased, samples, probe)
    aggregates = BySimilarity(
        sharpen=sharpen, self_weight=self_weight, neighbours=neighbours, cap=cap,
        longest=report.longest,
    )  # fmt: skip
    return mixed("all", aggregates, (report,), fine_tune, fine_tune_epochs)


@method(
    "grouped",
    Card(
        summary="Averaging inside groups of clients: given, or found from their similarity.",
        paper="Sreemathy Raj et al. 2022, the motivating experiment; finding groups is ours.",
        update="body_i ← mean of the bodies of i's group",
        knobs={"groups": "'found' (hierarchical clustering of the similarity matrix each round, "
               "as many groups as make the best silhouette), or lists of clients, by name or by "
               "place among the sorted names",
               "part": PART, "weights": WEIGHTS,
               **{name: SIMILARITY[name]
                  for name in ("mode", "kernel", "debiased", "samples", "probe")},
               "fine_tune": FINE_TUNE, "fine_tune_epochs": FINE_TUNE_EPOCHS},
        sends="the mixed parameters; with found groups also one matrix as in FedSHIBU",
        fails="wrong groups divide the data for nothing",
    ),
)  # fmt: skip
def grouped(
    groups: Literal["found"] | Sequence[Sequence[str | int]] = "found",
    part: Part = "body",
    weights: Weights = "uniform",
    mode: Mode = "feature",
    kernel: Kernel = "linear",
    debiased: bool = False,
    samples: int = 50,
    probe: Probe = "noise",
    fine_tune: Tuned = "all",
    fine_tune_epochs: int = 5,
) -> Recipe:
    finds = groups == "found"
    if not finds and (isinstance(groups, str) or not all(_is_group(group) for group in groups)):
        raise ConfigError(f"groups must be 'found' or lists of clients, not {groups!r}.")
    given = None if finds else tuple(tuple(group) for group in groups)
    report = Fingerprint(mode, kernel, debiased, samples, probe)
    aggregates = InGroups(weighting(weights), given, report.longest)
    return mixed(part, aggregates, (report,) if finds else (), fine_tune, fine_tune_epochs)


def _is_group(group: object) -> bool:
    return isinstance(group, list | tuple) and len(group) > 0


@method(
    "self-mix",
    Card(
        summary="A control: a fixed weight on the own model, the rest spread over all others.",
        paper="What self-weight alone explains of similarity-weighted methods.",
        update="body_i ← λ·body_i + (1-λ)·mean of the other bodies",
        knobs={"self_weight": "λ, 0-1, or 'measured': each round the mean self-weight that "
               "FedSHIBU with the settings below would have given these clients",
               "part": PART,
               **{name: SIMILARITY[name]
                  for name in ("mode", "kernel", "debiased", "samples", "probe", "sharpen")},
               "fine_tune": FINE_TUNE, "fine_tune_epochs": FINE_TUNE_EPOCHS},
        sends="the mixed parameters; where λ is measured also one matrix as in FedSHIBU",
        fails="it knows nothing about who is similar: that is its purpose",
    ),
)  # fmt: skip
def self_mix(
    self_weight: float | Literal["measured"] = 0.5,
    part: Part = "body",
    mode: Mode = "feature",
    kernel: Kernel = "linear",
    debiased: bool = False,
    samples: int = 50,
    probe: Probe = "noise",
    sharpen: float = 16.0,
    fine_tune: Tuned = "all",
    fine_tune_epochs: int = 5,
) -> Recipe:
    reports: tuple[Report, ...] = ()
    if self_weight == "measured":
        report = Fingerprint(mode, kernel, debiased, samples, probe)
        aggregates = SelfMix(measured=BySimilarity(sharpen=sharpen, longest=report.longest))
        reports = (report,)
    elif isinstance(self_weight, str) or not 0 <= self_weight <= 1:
        raise ConfigError(f"self_weight must be from 0 to 1 or 'measured', not {self_weight!r}.")
    else:
        aggregates = SelfMix(self_weight=float(self_weight))
    return mixed(part, aggregates, reports, fine_tune, fine_tune_epochs)
