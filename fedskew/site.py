"""What every client of a stage works with: data, recipe, model, settings and executor."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from fedskew.data.federation import Client, Federation, Indices
from fedskew.engine.cohort import Training
from fedskew.engine.dropout import StreamDropout, dropout_key
from fedskew.engine.evaluate import EvaluationModules, trains_batch_statistics
from fedskew.engine.graph import Graphs, Step
from fedskew.engine.optim import Optimiser
from fedskew.engine.plan import Plan
from fedskew.engine.streams import torch_seed
from fedskew.errors import ConfigError
from fedskew.models import redrawn
from fedskew.parts.objective import Batch, Objective, Tensors
from fedskew.parts.report import SHARED, Groups
from fedskew.recipe import Phase, Recipe


@dataclass(frozen=True)
class Settings:
    """How clients train unless a phase says otherwise."""

    optimiser: Optimiser = field(default_factory=Optimiser)
    epochs: int = 1
    batch_size: int = 32


@dataclass(frozen=True)
class Site:
    """All that client code needs and no task carries: data, recipe, model and settings."""

    federation: Federation
    recipe: Recipe
    module: nn.Module
    initial: Tensors
    settings: Settings
    plan: Plan
    seed: int
    stage: str = "main"
    invented: Client | None = None
    """Who a pooling recipe trains as, where its data are made up."""
    graphs: dict[Hashable, Graphs] = field(default_factory=dict, repr=False)
    """Traced steps by phase; sites whose models are made the same way may share them."""
    _trainings: dict[Phase, Training] = field(default_factory=dict, repr=False)

    @cached_property
    def evaluation(self) -> EvaluationModules:
        return EvaluationModules(self.module)

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
        return sorted((entries - self.shared) | self.recipe.keeps.names(self.module))

    @cached_property
    def parameters(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.module.named_parameters())

    @property
    def sent_parameters(self) -> int:
        """How many numbers of its model, without statistics, a client sends each round."""
        return sum(self.initial[name].numel() for name in self.shared & self.parameters)

    @cached_property
    def clients(self) -> Mapping[str, Client]:
        pooled = self.federation.pooled() if self.invented is None else self.invented
        return {"pooled": pooled, **self.federation.by_name}

    @cached_property
    def has_personal_phase(self) -> bool:
        return any(phase.model == "personal" for phase in self.recipe.trains)

    @cached_property
    def x(self) -> Tensor:
        """All samples, on the device the models live on."""
        return self.federation.x.to(next(iter(self.initial.values())).device)

    @cached_property
    def y(self) -> Tensor:
        return self.federation.y.to(self.x.device)

    def log_ratio_of(self, rows: Indices) -> Tensor | None:
        """The true log density ratio of some samples, where the law of the data is known."""
        known = self.federation.log_ratio
        return None if known is None else known[torch.from_numpy(rows)]

    def class_counts(self, rows: Indices) -> Tensor:
        """How many of these samples there are of each class."""
        labels = self.federation.y[torch.from_numpy(rows)]
        counts = torch.bincount(labels, minlength=self.federation.classes)
        return counts.to(device=self.x.device, dtype=torch.float32)

    def training(self, phase: Phase, lr_factor: float = 1.0) -> Training:
        """The engine's view of a phase; its traced steps are kept from round to round."""
        objective = phase.objective or self.recipe.objective
        environments = self.federation.environments if objective.by_environment else 1
        optimiser = self.settings.optimiser
        lr = (optimiser.lr if phase.lr is None else phase.lr) * lr_factor
        if phase not in self._trainings:
            epochs = self.settings.epochs if phase.epochs is None else phase.epochs
            modules = list(self.module.modules())
            trained = phase.trains.names(self.module) & self.parameters
            if not trained:
                part = " and ".join(phase.trains.only) or "what is left of it"
                raise ConfigError(f"the model has no parameters to train in its {part}.")
            # How long a phase lasts and how fast it goes changes nothing about its steps.
            step = replace(phase, epochs=None, lr=None)
            buffers = tuple(sorted(self.initial.keys() & dict(self.module.named_buffers())))
            memory = objective.memory(environments)
            self._trainings[phase] = Training(
                _gradient(self.module, objective, phase, environments, (*buffers, *memory)),
                trained=trained,
                buffers=buffers,
                optimiser=optimiser,
                batch_size=self.settings.batch_size,
                epochs=epochs,
                chunk=self.plan.chunk,
                x=self.x,
                y=self.y,
                environment=self.federation.environment if environments > 1 else None,
                environments=environments,
                memory=memory,
                noise=partial(objective.noise, self.module),
                pads=not trains_batch_statistics(self.module),
                counts_steps=objective.counts_steps,
                drops=any(isinstance(layer, StreamDropout) for layer in modules),
                graphs=self.graphs.setdefault(
                    (step, objective, optimiser.is_plain, environments), {}
                ),
                plain=self.plan.is_plain,
            )
        # A copy that shares the traced steps: the learning rate is this caller's own.
        training = copy.copy(self._trainings[phase])
        training.optimiser = replace(optimiser, lr=lr)
        return training

    def received(self, sent: Tensors, private: Groups) -> Tensors:
        """The model a client has: what was sent, and over it what it keeps of its own."""
        return {**self.initial, **sent, **private.get(SHARED, {})}

    def begins_with(self, client: str, sent: Tensors, private: Groups) -> Tensors:
        """The model a client trains from: the one it has, or at first perhaps a draw of its own."""
        if self.recipe.starts_apart and SHARED not in private:
            return redrawn(self.module, torch_seed(self.seed, self.stage, "model", client))
        return self.received(sent, private)


def _gradient(
    module: nn.Module, objective: Objective, phase: Phase, environments: int, held: Sequence[str]
) -> Step:
    """What a phase's client follows on one batch: the objective's gradient, corrected.

    ``held`` names the buffers and memory that come back beside it, in this order.
    """

    def gradient(
        trained: Tensors, fixed: Tensors, context: dict[str, Any], batch: dict[str, Any]
    ) -> list[Tensor]:
        key = batch.pop("key", None)
        with dropout_key(key):
            gradients, loss, moved = objective.gradient(
                module, trained, fixed, Batch(**batch, environments=environments), context
            )
        for correction in phase.corrects:
            gradients = correction.correct(gradients, trained, context)
        return [*(gradients[name] for name in trained), loss, *(moved[name] for name in held)]

    return gradient


def context_of(
    site: Site,
    phase: Phase,
    training: Training,
    rows: Indices,
    received: Tensors,
    private: Groups,
    broadcast: Groups,
) -> dict[str, Any]:
    """What a phase's parts asked to read about a client that trains on these rows, by name.

    "received" is the model as sent, "class_counts" the rows' labels, "lr" the step size, "adaptive"
    1 if steps are Adam's and else 0; any other name is a group of the client's private state or of
    the server's broadcast, and reads as zeros until somebody has written it.
    """
    objective = phase.objective or site.recipe.objective
    context: dict[str, Any] = {}
    for name in sorted(set(objective.reads).union(*(part.reads for part in phase.corrects))):
        if name == "received":
            context[name] = {n: received[n] for n in sorted(training.trained)}
        elif name == "class_counts":
            context[name] = site.class_counts(rows)
        elif name == "lr":
            context[name] = torch.tensor(training.optimiser.lr, device=site.x.device)
        elif name == "adaptive":
            context[name] = torch.tensor(float(training.optimiser.kind == "adam")).to(site.x.device)
        elif name in private:
            context[name] = private[name]
        elif name in broadcast:
            context[name] = broadcast[name]
        else:
            context[name] = {n: torch.zeros_like(received[n]) for n in sorted(training.trained)}
    return context
