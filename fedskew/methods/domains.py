"""What clients minimise so that the model holds in environments nobody trained on.

Each is an objective; the method named ``base`` does all the rest, so any objective goes with any
aggregator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Adapt, Card, Phase, Recipe, Reduction, method
from fedskew.methods.baselines import not_negative
from fedskew.methods.discrepancy import based_on
from fedskew.parts.agreement import AndMask, GroupDro, Mldg, SandMask
from fedskew.parts.invariance import (
    Annealed,
    Coral,
    EnvironmentErm,
    IbErm,
    IbIrm,
    Irm,
    Mmd,
    Vrex,
)
from fedskew.parts.objective import Erm, Objective

Base = str | Mapping[str, Any]

BASE = "the method that aggregates, a name or {name = …, knob = …}"
ENVIRONMENTS = "false: every client is one environment, whatever its samples are"
BEFORE = "the same before the switch"
ANNEAL = "the client's step, over all rounds, at which the multiplier switches"
RESCALE = "divide the loss by its multiplier where that is above 1, so that plain SGD survives it"
PENALTY_KNOBS = {
    "base": BASE, "lam": "λ after the switch, ≥ 0", "before": BEFORE, "anneal": ANNEAL,
    "rescale": RESCALE, "environments": ENVIRONMENTS,
}  # fmt: skip
ANNEALED_DEFAULTS = "DomainBed's; the optimiser starts afresh each round, not at the switch"
SENDS = "what the base sends; environments never leave the client"
NO_BATCH_NORM = "refused: each environment passes through the model by itself"
DOMAINBED = "as in DomainBed, Gulrajani and Lopez-Paz 2021, In Search of Lost Domain Generalization"


def with_objective(base: Base, objective: Objective) -> Recipe:
    """The recipe of a base whose clients minimise something else; they adapt by plain ERM."""
    name, recipe = based_on(base)
    own = [phase.objective for phase in recipe.trains if phase.objective is not None]
    if recipe.pools or recipe.prepares or own or not recipe.objective.replaceable:
        why = "pools everybody's data" if recipe.pools else "has an objective of its own"
        raise ConfigError(
            f"base = {name!r} {why}, so its clients cannot be given another: choose one like "
            "'fedavg', 'fedprox', 'scaffold', 'fednova' or 'fedgma'."
        )
    phases = recipe.adapts.phases if recipe.adapts else (Phase(),)
    adapts = replace(
        recipe.adapts or Adapt(phases),
        phases=tuple(replace(phase, objective=Erm()) for phase in phases),
    )
    return replace(recipe, objective=objective, adapts=adapts)


def objective(name: str, card: Card) -> Callable[[Callable[..., Recipe]], Callable[..., Recipe]]:
    """Register a method that only says what clients minimise."""
    return method(name, replace(card, side="objective"))


def annealed(lam: float, before: float, anneal: int, names: tuple[str, str]) -> Annealed:
    """A multiplier that switches once, its parts checked."""
    if anneal < 0:
        raise ConfigError(f"anneal must not be negative, not {anneal}.")
    return Annealed(not_negative(names[1], before), not_negative(names[0], lam), anneal)


@objective(
    "erm",
    Card(
        summary="Any method on batches that hold equally many samples of each environment.",
        paper="Vapnik 1998; " + DOMAINBED + ".",
        update="the base's, on the mean cross-entropy over one batch per environment",
        knobs={"base": BASE, "environments": ENVIRONMENTS},
        reduces=(Reduction({"environments": False}, "fedavg"),),
        sends=SENDS,
        fails="a feature that gives labels away in training but not elsewhere is learned",
        plain=True,
    ),
)
def erm(base: Base = "fedavg", environments: bool = True) -> Recipe:
    return with_objective(base, EnvironmentErm(by_environment=environments))


@objective(
    "irm",
    Card(
        summary="Any method whose clients want one classifier to be optimal in all environments.",
        paper="Arjovsky et al. 2019, Invariant Risk Minimization; " + DOMAINBED + ".",
        update="mean_e L_e + λ·mean_e g₁·g₂, g_h the slope of half a batch's loss in a factor on "
        "the logits",
        knobs=PENALTY_KNOBS,
        reduces=(Reduction({"lam": 0.0, "before": 0.0}, "erm"),),
        sends=SENDS,
        fails="with one environment it only shrinks logits; an odd batch has no two halves; "
        "λ = 100 without rescale wants Adam",
        defaults=ANNEALED_DEFAULTS,
    ),
)  # fmt: skip
def irm(
    base: Base = "fedavg",
    lam: float = 100.0,
    before: float = 1.0,
    anneal: int = 500,
    rescale: bool = False,
    environments: bool = True,
) -> Recipe:
    penalty = annealed(lam, before, anneal, ("lam", "before"))
    return with_objective(base, Irm(penalty, rescale=rescale, by_environment=environments))


@objective(
    "vrex",
    Card(
        summary="Any method whose clients want equal losses in all environments.",
        paper="Krueger et al. 2021, Out-of-Distribution Generalization via Risk Extrapolation; "
        + DOMAINBED + ".",
        update="mean_e L_e + λ·mean_e (L_e - mean L)²",
        knobs=PENALTY_KNOBS,
        reduces=(Reduction({"lam": 0.0, "before": 0.0}, "erm"),
                 Reduction({"environments": False}, "fedavg")),
        sends=SENDS,
        fails="with one environment it is ERM; an environment that is harder for good reason is "
        "levelled too",
        defaults=ANNEALED_DEFAULTS,
    ),
)  # fmt: skip
def vrex(
    base: Base = "fedavg",
    lam: float = 10.0,
    before: float = 1.0,
    anneal: int = 500,
    rescale: bool = False,
    environments: bool = True,
) -> Recipe:
    penalty = annealed(lam, before, anneal, ("lam", "before"))
    return with_objective(base, Vrex(penalty, rescale=rescale, by_environment=environments))


@objective(
    "ib-erm",
    Card(
        summary="Any method whose clients squeeze the features' variance (information bottleneck).",
        paper="Ahuja et al. 2021, Invariance Principle Meets Information Bottleneck; "
        + DOMAINBED + ".",
        update="mean_e L_e + λ·mean_e (mean over features of their variance in the batch)",
        knobs=PENALTY_KNOBS,
        reduces=(Reduction({"lam": 0.0, "before": 0.0}, "erm"),),
        sends=SENDS,
        fails="a large λ squeezes what the label needs, too",
        defaults=ANNEALED_DEFAULTS,
    ),
)  # fmt: skip
def ib_erm(
    base: Base = "fedavg",
    lam: float = 100.0,
    before: float = 0.0,
    anneal: int = 500,
    rescale: bool = False,
    environments: bool = True,
) -> Recipe:
    penalty = annealed(lam, before, anneal, ("lam", "before"))
    return with_objective(base, IbErm(penalty, rescale=rescale, by_environment=environments))


@objective(
    "ib-irm",
    Card(
        summary="IRM and the information bottleneck together.",
        paper="Ahuja et al. 2021, Invariance Principle Meets Information Bottleneck; "
        + DOMAINBED + ".",
        update="IRM's loss + λ_ib·mean_e (mean over features of their variance in the batch)",
        knobs={"base": BASE, "lam": "IRM's λ after the switch, ≥ 0", "before": BEFORE,
               "ib": "λ_ib after the switch, ≥ 0", "ib_before": BEFORE, "anneal": ANNEAL,
               "rescale": RESCALE, "environments": ENVIRONMENTS},
        reduces=(Reduction({"ib": 0.0, "ib_before": 0.0}, "irm"),
                 Reduction({"lam": 0.0, "before": 0.0}, "ib-erm")),
        sends=SENDS,
        fails="as irm and ib-erm",
        defaults=ANNEALED_DEFAULTS,
    ),
)  # fmt: skip
def ib_irm(
    base: Base = "fedavg",
    lam: float = 100.0,
    before: float = 1.0,
    ib: float = 100.0,
    ib_before: float = 0.0,
    anneal: int = 500,
    rescale: bool = False,
    environments: bool = True,
) -> Recipe:
    penalty = annealed(lam, before, anneal, ("lam", "before"))
    bottleneck = annealed(ib, ib_before, anneal, ("ib", "ib_before"))
    return with_objective(
        base, IbIrm(penalty, bottleneck, rescale=rescale, by_environment=environments)
    )


@objective(
    "mmd",
    Card(
        summary="Any method whose clients want features distributed alike in all environments.",
        paper="Li et al. 2018, Domain Generalization with Adversarial Feature Learning (its "
        "discrepancy); " + DOMAINBED + ".",
        update="mean_e L_e + γ·mean over pairs of Kxx + Kyy - 2·Kxy, K a sum of seven Gaussian "
        "kernels",
        knobs={"base": BASE, "gamma": "γ, ≥ 0", "environments": ENVIRONMENTS},
        reduces=(Reduction({"gamma": 0.0}, "erm"), Reduction({"environments": False}, "fedavg")),
        sends=SENDS,
        fails="environments with other shares of labels have other features for good reason",
        defaults="DomainBed's",
    ),
)
def mmd(base: Base = "fedavg", gamma: float = 1.0, environments: bool = True) -> Recipe:
    return with_objective(base, Mmd(gamma, by_environment=environments))


@objective(
    "coral",
    Card(
        summary="Any method whose clients want equal means and covariances of features.",
        paper="Sun and Saenko 2016, Deep CORAL; " + DOMAINBED + ".",
        update="mean_e L_e + γ·mean over pairs of mean (Δ mean)² + mean (Δ covariance)²",
        knobs={"base": BASE, "gamma": "γ, ≥ 0", "environments": ENVIRONMENTS},
        reduces=(Reduction({"gamma": 0.0}, "erm"), Reduction({"environments": False}, "fedavg")),
        sends=SENDS,
        fails="environments with other shares of labels have other features for good reason",
        defaults="DomainBed's",
    ),
)
def coral(base: Base = "fedavg", gamma: float = 1.0, environments: bool = True) -> Recipe:
    return with_objective(base, Coral(gamma, by_environment=environments))


@objective(
    "mldg",
    Card(
        summary="Any method whose steps in one environment must also help in another.",
        paper="Li et al. 2018, Learning to Generalize: Meta-Learning for Domain Generalization "
        "(first order); " + DOMAINBED + ".",
        update="mean over cyclic pairs (i, j) of G_i(w) + β·G_j(w after one step along G_i)",
        knobs={"base": BASE, "beta": "β, ≥ 0", "environments": ENVIRONMENTS},
        reduces=(Reduction({"beta": 0.0}, "erm"),),
        sends=SENDS,
        batch_norm=NO_BATCH_NORM,
        fails="costs two gradients a step; β > 0 makes steps longer, too; with one environment it "
        "only looks ahead",
        defaults="DomainBed's; the step ahead is the first one of the run's own optimiser",
    ),
)
def mldg(base: Base = "fedavg", beta: float = 1.0, environments: bool = True) -> Recipe:
    return with_objective(base, Mldg(beta, by_environment=environments))


@objective(
    "groupdro",
    Card(
        summary="Any method whose clients lean towards the environment that is worst off.",
        paper="Sagawa et al. 2020, Distributionally Robust Neural Networks; " + DOMAINBED + ".",
        update="Σ q_e·L_e, q_e ← q_e·exp(η·L_e), normalised; the client remembers q",
        knobs={"base": BASE, "eta": "η, ≥ 0", "environments": ENVIRONMENTS},
        reduces=(Reduction({"eta": 0.0}, "erm"), Reduction({"environments": False}, "fedavg")),
        sends=SENDS,
        fails="one environment of nonsense gets all attention",
        defaults="DomainBed's",
    ),
)
def groupdro(base: Base = "fedavg", eta: float = 0.01, environments: bool = True) -> Recipe:
    return with_objective(base, GroupDro(eta, by_environment=environments))


@objective(
    "and-mask",
    Card(
        summary="Any method whose clients follow only what environments agree on in sign.",
        paper="Parascandolo et al. 2021, Learning Explanations That Are Hard to Vary; "
        + DOMAINBED
        + ".",
        update="mean_e g_e where |mean_e sign g_e| ≥ τ, else 0; over the share kept in the tensor",
        knobs={"base": BASE, "tau": "τ, above 0 and up to 1", "environments": ENVIRONMENTS},
        sends=SENDS,
        batch_norm=NO_BATCH_NORM,
        fails="many environments seldom agree; with one environment it is ERM, rescaled where "
        "gradients are zero",
        defaults="DomainBed's",
    ),
)
def and_mask(base: Base = "fedavg", tau: float = 1.0, environments: bool = True) -> Recipe:
    return with_objective(base, AndMask(tau, by_environment=environments))


@objective(
    "sand-mask",
    Card(
        summary="Any method whose clients follow the more what environments agree on more.",
        paper="Shahtalebi et al. 2021, SAND-mask; " + DOMAINBED + ".",
        update="mean_e g_e·max(0, tanh(k·(|mean_e sign g_e| - τ)/var_e g_e)); over the share kept "
        "in the tensor",
        knobs={"base": BASE, "tau": "τ, from 0 up to, not including, 1", "k": "sharpness, > 0",
               "environments": ENVIRONMENTS},
        sends=SENDS,
        batch_norm=NO_BATCH_NORM,
        fails="gradients so small that k over their variance is huge make it a hard mask",
        defaults="DomainBed's k; its τ = 1 masks everything for ever, so τ is 0.5",
    ),
)  # fmt: skip
def sand_mask(
    base: Base = "fedavg", tau: float = 0.5, k: float = 10.0, environments: bool = True
) -> Recipe:
    return with_objective(base, SandMask(tau, k, by_environment=environments))
