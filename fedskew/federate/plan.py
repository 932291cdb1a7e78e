"""What the server and the clients of a stage agree on: recipe, model, settings, seed; no data."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import nn

from fedskew.config import Named
from fedskew.engine.evaluate import EvaluationModules
from fedskew.engine.executor import Execution
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.recipe import Adapt, Phase, Recipe
from fedskew.parts.augment import Augmentation
from fedskew.parts.losses import SQUARED, Loss
from fedskew.parts.metrics import rises
from fedskew.parts.objective import ranked_by
from fedskew.parts.report import Report
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.types import Tensors

ModelKind = Literal["global", "personal"]


@dataclass(frozen=True)
class Settings:
    """How clients train unless a phase says otherwise."""

    optimiser: Optimiser = field(default_factory=Optimiser)
    epochs: int = 1
    batch_size: int = 32
    loss: Loss = SQUARED
    """Of a target that is a number."""
    augments: tuple[Augmentation, ...] = ()


@dataclass(frozen=True)
class Plan:
    """One stage: its recipe, the model it starts with, how clients train, and the seed.

    ``model`` is the choice of a model by name, if there is one, ``problem`` what is to be learned
    of a sample, ``metric`` what rounds are chosen by if the user says. ``adapts`` are the
    adaptations after which models may be scored, ``hands_over`` the reports that end the stage:
    tasks refer to both by position.
    """

    recipe: Recipe
    module: nn.Module
    initial: Tensors
    settings: Settings
    execution: Execution
    seed: int
    stage: str = "main"
    model: Named | None = None
    problem: Problem = CLASSIFICATION
    metric: str | None = None
    adapts: tuple[Adapt, ...] = ()
    hands_over: tuple[Report, ...] = ()

    @cached_property
    def evaluation(self) -> EvaluationModules:
        return EvaluationModules(self.module)

    @cached_property
    def blueprint(self) -> nn.Module:
        """The model without its tensors: calling a model swaps them, also for other threads."""
        return copy.deepcopy(self.module).to("meta")

    @cached_property
    def shared(self) -> frozenset[str]:
        return self.recipe.shares.names(self.module)

    @cached_property
    def shared_in_order(self) -> list[str]:
        return sorted(self.shared)

    @cached_property
    def private(self) -> list[str]:
        """Entries of the model a client keeps for the next round."""
        entries = self.module.state_dict().keys()
        return sorted((entries - self.shared) | self.recipe.begins.keeps.names(self.module))

    @cached_property
    def parameters(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.module.named_parameters())

    @cached_property
    def packed(self) -> list[str]:
        """Shared entries that are packed to travel: parameters, not statistics."""
        return sorted(self.shared & self.parameters)

    @property
    def sent_parameters(self) -> int:
        """How many parameters, without statistics, a client sends each round."""
        return sum(self.initial[name].numel() for name in self.shared & self.parameters)

    @cached_property
    def has_personal_phase(self) -> bool:
        return any(phase.model == "personal" for phase in self.recipe.trains)

    @cached_property
    def has_personal_steps(self) -> bool:
        """Whether an objective makes clients' own models beside the shared one."""
        return any(o.personal for o in self.recipe.shared_objectives)

    @cached_property
    def has_global_model(self) -> bool:
        """Whether the shared entries alone make a usable model: private ones were never trained."""
        trained = set().union(*(p.trains.names(self.module) for p in self.recipe.trains))
        return trained <= self.shared

    @cached_property
    def has_personal_models(self) -> bool:
        """Whether clients end with models of their own."""
        recipe = self.recipe
        trained = self.has_personal_phase or self.has_personal_steps
        own = trained or recipe.aggregates.several or recipe.begins.personal
        return own or not self.has_global_model

    @property
    def primary(self) -> str:
        """The metric that rounds are chosen and tables ranked by."""
        return self.metric or ranked_by(self.recipe.objective, self.problem)[0]

    @property
    def higher_is_better(self) -> bool:
        own = ranked_by(self.recipe.objective, self.problem)[1]
        return own if self.metric is None else rises(self.metric, own)

    @property
    def primary_model(self) -> ModelKind:
        return "personal" if self.has_personal_models else "global"

    def trained_by(self, phase: Phase) -> frozenset[str]:
        """The parameters that are trained in a phase."""
        return trained_in(self.module, self.parameters, phase)

    def label(self, round_number: int) -> str:
        """The name of the private state a round leaves at clients."""
        return f"{self.stage}-{round_number:06d}"


def trained_in(module: nn.Module, parameters: frozenset[str], phase: Phase) -> frozenset[str]:
    """Which of a model's parameters a phase trains; a model where it trains none is refused."""
    trained = phase.trains.names(module) & parameters
    if not trained:
        part = " and ".join(phase.trains.only) or "what is left of it"
        raise ConfigError(f"the model has no parameters to train in its {part}.")
    return trained
