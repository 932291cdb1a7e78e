"""What clients minimise so that the model holds in environments nobody trained on.

Each is an objective; the method named ``base`` does all the rest, so any objective goes with any
aggregator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Adapt, Phase, Recipe
from fedskew.methods.common import Base, based_on
from fedskew.methods.registry import Card, F, ReducesTo, method
from fedskew.parts.alignment import Coral, Mmd
from fedskew.parts.invariance import (
    Annealed,
    EnvironmentErm,
    IbErm,
    IbIrm,
    Irm,
    Vrex,
)
from fedskew.parts.objective import Erm, Objective
from fedskew.registry.knobs import Knob

ByEnvironment = Annotated[
    bool, Knob("false: every client is one environment, whatever its samples are")
]
After = Annotated[float, Knob("multiplier after the switch", ge=0, tries=(1.0, 10.0, 100.0))]
Before = Annotated[float, Knob("multiplier before the switch", ge=0)]
Gamma = Annotated[float, Knob("γ, weight of the distance", ge=0, tries=(0.1, 1.0, 10.0))]


@dataclass(frozen=True)
class Penalty:
    """A penalty whose multiplier λ switches once."""

    lam: After
    before: Before
    anneal: Annotated[
        int,
        Knob(
            "the client's step, over all rounds, at which the multiplier switches",
            ge=0,
            tries=(100, 500),
        ),
    ] = 500
    rescale: Annotated[
        bool,
        Knob(
            "divide the loss, pulls and weight decay by a multiplier above 1, so that plain SGD "
            "survives it"
        ),
    ] = False
    environments: ByEnvironment = True

    def of(self, kind: type[Irm] | type[Vrex] | type[IbErm]) -> Objective:
        """The objective with this penalty."""
        multiplier = Annealed(self.before, self.lam, self.anneal)
        return kind(multiplier, rescale=self.rescale, by_environment=self.environments)


IRM = Penalty(lam=100.0, before=1.0)
VREX = Penalty(lam=10.0, before=1.0)
IB_ERM = Penalty(lam=100.0, before=0.0)


DOMAINBED_SWITCH = "DomainBed's; the optimiser starts afresh each round, not at the switch"
SENDS = "what the base sends; environments never leave the client"
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


def objective(name: str, card: Card) -> Callable[[F], F]:
    """Register a method that only says what clients minimise."""
    return method(name, replace(card, side="objective"))


@objective(
    "erm",
    Card(
        summary="Any method on batches that hold equally many samples of each environment.",
        paper="Vapnik 1998; " + DOMAINBED + ".",
        update="the base's, on the mean cross-entropy over one batch per environment",
        reduces=(ReducesTo("fedavg", at={"environments": False}),),
        sends=SENDS,
        fails="a feature that gives labels away in training but not elsewhere is learned",
        plain=True,
    ),
)
def erm(base: Base = "fedavg", environments: ByEnvironment = True) -> Recipe:
    return with_objective(base, EnvironmentErm(by_environment=environments))


@objective(
    "irm",
    Card(
        summary="Any method whose clients want one classifier to be optimal in all environments.",
        paper="Arjovsky et al. 2019, Invariant Risk Minimization; " + DOMAINBED + ".",
        update="mean_e L_e + λ·mean_e g₁·g₂, g_h the slope of half a batch's loss in a factor on "
        "the logits",
        reduces=(ReducesTo("erm", at={"lam": 0.0, "before": 0.0}),),
        sends=SENDS,
        fails="with one environment it only shrinks logits; an odd batch has no two halves; "
        "λ = 100 without rescale wants Adam",
        defaults=DOMAINBED_SWITCH,
    ),
)
def irm(base: Base = "fedavg", penalty: Penalty = IRM) -> Recipe:
    return with_objective(base, penalty.of(Irm))


@objective(
    "vrex",
    Card(
        summary="Any method whose clients want equal losses in all environments.",
        paper="Krueger et al. 2021, Out-of-Distribution Generalization via Risk Extrapolation; "
        + DOMAINBED
        + ".",
        update="mean_e L_e + λ·mean_e (L_e - mean L)²",
        reduces=(
            ReducesTo("erm", at={"lam": 0.0, "before": 0.0}),
            ReducesTo("fedavg", at={"environments": False}),
        ),
        sends=SENDS,
        fails="with one environment it is ERM; an environment that is harder for good reason is "
        "levelled too",
        defaults=DOMAINBED_SWITCH,
    ),
)
def vrex(base: Base = "fedavg", penalty: Penalty = VREX) -> Recipe:
    return with_objective(base, penalty.of(Vrex))


@objective(
    "ib-erm",
    Card(
        summary="Any method whose clients squeeze the features' variance (information bottleneck).",
        paper="Ahuja et al. 2021, Invariance Principle Meets Information Bottleneck; "
        + DOMAINBED
        + ".",
        update="mean_e L_e + λ·mean_e (mean over features of their variance in the batch)",
        reduces=(ReducesTo("erm", at={"lam": 0.0, "before": 0.0}),),
        sends=SENDS,
        fails="a large λ squeezes what the label needs, too",
        defaults=DOMAINBED_SWITCH,
    ),
)
def ib_erm(base: Base = "fedavg", penalty: Penalty = IB_ERM) -> Recipe:
    return with_objective(base, penalty.of(IbErm))


@objective(
    "ib-irm",
    Card(
        summary="IRM and the information bottleneck together.",
        paper="Ahuja et al. 2021, Invariance Principle Meets Information Bottleneck; "
        + DOMAINBED
        + ".",
        update="IRM's loss + λ_ib·mean_e (mean over features of their variance in the batch)",
        reduces=(
            ReducesTo("irm", at={"ib": 0.0, "ib_before": 0.0}),
            ReducesTo("ib-erm", at={"lam": 0.0, "before": 0.0}),
        ),
        sends=SENDS,
        fails="as irm and ib-erm",
        defaults=DOMAINBED_SWITCH,
    ),
)
def ib_irm(
    base: Base = "fedavg", penalty: Penalty = IRM, ib: After = 100.0, ib_before: Before = 0.0
) -> Recipe:
    multipliers = (
        Annealed(penalty.before, penalty.lam, penalty.anneal),
        Annealed(ib_before, ib, penalty.anneal),
    )
    loss = IbIrm(*multipliers, rescale=penalty.rescale, by_environment=penalty.environments)
    return with_objective(base, loss)


@objective(
    "mmd",
    Card(
        summary="Any method whose clients want features distributed alike in all environments.",
        paper="Li et al. 2018, Domain Generalization with Adversarial Feature Learning (its "
        "discrepancy); " + DOMAINBED + ".",
        update="mean_e L_e + γ·mean over pairs of Kxx + Kyy - 2·Kxy, K a sum of seven Gaussian "
        "kernels",
        reduces=(
            ReducesTo("erm", at={"gamma": 0.0}),
            ReducesTo("fedavg", at={"environments": False}),
        ),
        sends=SENDS,
        fails="environments with other shares of labels have other features for good reason",
        defaults="DomainBed's",
    ),
)
def mmd(base: Base = "fedavg", gamma: Gamma = 1.0, environments: ByEnvironment = True) -> Recipe:
    return with_objective(base, Mmd(gamma, by_environment=environments))


@objective(
    "coral",
    Card(
        summary="Any method whose clients want equal means and covariances of features.",
        paper="Sun and Saenko 2016, Deep CORAL; " + DOMAINBED + ".",
        update="mean_e L_e + γ·mean over pairs of mean (Δ mean)² + mean (Δ covariance)²",
        reduces=(
            ReducesTo("erm", at={"gamma": 0.0}),
            ReducesTo("fedavg", at={"environments": False}),
        ),
        sends=SENDS,
        fails="environments with other shares of labels have other features for good reason",
        defaults="DomainBed's",
    ),
)
def coral(base: Base = "fedavg", gamma: Gamma = 1.0, environments: ByEnvironment = True) -> Recipe:
    return with_objective(base, Coral(gamma, by_environment=environments))
