"""What clients hold, and how a stage's plan is applied to it: the side that sees data."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.data.federation import KEEPING, SPLITS, Client, Federation
from fedskew.engine.dropout import dropout_key, may_drop
from fedskew.engine.evaluate import Question, Scoring, evaluate, trains_batch_statistics
from fedskew.engine.graph import Graphs, Step
from fedskew.engine.optim import Optimiser
from fedskew.engine.training import Training
from fedskew.errors import located
from fedskew.federate.plan import Plan
from fedskew.federate.recipe import Phase
from fedskew.federate.roster import POOLED, Member, Roster
from fedskew.parts.begin import Begun, Start
from fedskew.parts.correct import DIVISOR, Decay
from fedskew.parts.objective import Batch, Bound, Objective, own, owned
from fedskew.rng import torch_seed
from fedskew.types import Groups, Indices, Tensors


def roster_of(federation: Federation) -> Roster:
    """What a server may know of these clients."""
    classifies = federation.problem.classifies
    environment_counts = federation.environment_counts().tolist()
    ends = [federation.x[client.train].aminmax() for client in federation.clients]

    def member(client: Client, seen: bool, environments: Sequence[int]) -> Member:
        counts = federation.counted(client.train).tolist() if classifies else ()
        splits = (*SPLITS, KEEPING) if len(client.keeping) else SPLITS
        return Member(
            client.name,
            {split: len(client.split(split)) for split in splits},
            tuple(counts),
            tuple(environments),
            seen,
            client.name in federation.odd,
        )

    seen = zip(federation.clients, environment_counts, strict=True)
    return Roster(
        federation.name,
        federation.sample_shape,
        federation.class_names,
        (
            *(member(client, True, counts) for client, counts in seen),
            *(member(client, False, ()) for client in federation.unseen),
        ),
        central=len(federation.central_test),
        public=len(federation.public),
        low=min(float(low) for low, _ in ends),
        high=max(float(high) for _, high in ends),
        law_known=federation.log_ratio is not None,
        environments_by=federation.environments_by,
        problem=federation.problem,
        vocabulary=federation.vocabulary,
    )


@dataclass(frozen=True)
class Holdings:
    """The data of some clients, as the parts of one plan work on them.

    ``made_up`` are samples a server made up, for a recipe that trains on them. ``graphs`` holds
    the traced steps of models that are made the same way (none: those of this process).
    ``fewest_chunks`` is how many stacks a cohort makes at least; 1 if it is a part of a larger one.
    """

    plan: Plan
    federation: Federation
    made_up: Tensor | None = None
    graphs: dict[Hashable, Graphs] | None = field(default=None, repr=False)
    fewest_chunks: int = 2
    _trainings: dict[Phase, Training] = field(default_factory=dict, repr=False)

    @cached_property
    def clients(self) -> Mapping[str, Client]:
        federation = self.federation
        if self.made_up is None:
            return {POOLED: federation.pooled(), **federation.by_name}
        behind = np.arange(len(federation.y), len(federation.y) + len(self.made_up))
        return {POOLED: Client(POOLED, behind), **federation.by_name}

    @cached_property
    def x(self) -> Tensor:
        """All samples, made-up ones last, on the device of the models."""
        x = self.federation.x
        x = x if self.made_up is None else torch.cat([x, self.made_up])
        return x.to(next(iter(self.plan.initial.values())).device)

    @cached_property
    def y(self) -> Tensor:
        """All labels; those of made-up samples are never read."""
        y = self.federation.y
        if self.made_up is not None:
            y = torch.cat([y, y.new_zeros((len(self.made_up), *y.shape[1:]))])
        return y.to(self.x.device)

    @cached_property
    def _steps(self) -> dict[Hashable, Graphs]:
        """Traced steps by phase, shared by all holdings whose models are made the same way.

        Not shared for a user's own factory, whose code may change between two runs.
        """
        plan, federation = self.plan, self.federation
        if self.graphs is not None:
            return self.graphs
        if plan.model is None or ":" in plan.model.name:
            return {}
        made = (plan.model.name, sorted(plan.model.knobs.items()), federation.sample_shape)
        learned = (federation.outputs, federation.problem.kind, plan.settings.loss)
        return _shared_graphs(repr((made, learned, plan.recipe.extends, self.x.device)))

    def rows(self, client: str, split: str) -> Indices:
        """The rows of a client's split; the central test set belongs to no client."""
        if not client:
            return self.federation.central_test
        return self.clients[client].split(split)

    def log_ratio_of(self, rows: Indices) -> Tensor | None:
        """The true log density ratio of some samples, if the data's distribution is known."""
        known = self.federation.log_ratio
        return None if known is None else known[torch.from_numpy(rows)]

    def class_counts(self, rows: Indices) -> Tensor:
        """The number of these samples in each class."""
        counts = torch.bincount(self.y[torch.from_numpy(rows)], minlength=self.federation.classes)
        return counts.to(device=self.x.device, dtype=torch.float32)

    def training(self, phase: Phase, lr_factor: float = 1.0) -> Training:
        """The engine's view of a phase; its traced steps are kept from round to round."""
        usual = self.plan.settings.optimiser.lr
        lr = (usual if phase.lr is None else phase.lr) * lr_factor
        if phase not in self._trainings:
            self._trainings[phase] = self._made(phase)
        # A copy that shares the traced steps, with this caller's learning rate.
        training = copy.copy(self._trainings[phase])
        training.optimiser = replace(training.optimiser, lr=lr)
        return training

    def _made(self, phase: Phase) -> Training:
        plan, federation = self.plan, self.federation
        module, settings = plan.module, plan.settings
        objective = phase.objective or plan.recipe.objective
        phase, optimiser = _on_one_scale(phase, objective, settings.optimiser)
        environments = federation.environments if objective.by_environment else 1
        trained = plan.trained_by(phase)
        # The epochs and the learning rate of a phase do not change its steps.
        step = replace(phase, epochs=None, lr=None)
        buffers = tuple(sorted(plan.initial.keys() & dict(module.named_buffers())))
        parameters = {name: plan.initial[name] for name in sorted(trained)}
        memory = objective.memory(environments, parameters)
        if objective.personal:
            memory = {**memory, **own(parameters)}
        return Training(
            _gradient(
                module,
                objective,
                phase,
                (*buffers, *memory),
                environments=environments,
                loss=settings.loss,
            ),
            trained=trained,
            buffers=buffers,
            optimiser=optimiser,
            batch_size=settings.batch_size,
            epochs=settings.epochs if phase.epochs is None else phase.epochs,
            chunk=plan.execution.chunk,
            fewest_chunks=self.fewest_chunks,
            x=self.x,
            y=self.y,
            environment=federation.environment if environments > 1 else None,
            environments=environments,
            memory=memory,
            noise=partial(objective.noise, plan.blueprint),
            pads=not trains_batch_statistics(module),
            counts_steps=objective.counts_steps,
            drops=may_drop(module),
            augments=settings.augments,
            graphs=self._steps.setdefault(
                (step, objective, optimiser.is_plain, environments, settings.augments), {}
            ),
            plain=plan.execution.is_plain,
        )

    def scoring(self, objective: Objective | None = None) -> Scoring:
        """How the engine scores models, by the recipe's objective or another."""
        chosen = objective or self.plan.recipe.objective
        loss = self.plan.settings.loss
        summed = partial(chosen.summed, problem=self.plan.problem)

        def score(module: nn.Module, tensors: Tensors, batch: dict[str, Any]) -> Tensors:
            return chosen.scores(Bound(module, tensors), Batch(**batch, loss=loss))

        noise = partial(chosen.noise, self.plan.blueprint)
        return Scoring(
            self.plan.evaluation, score, summed, noise, self.x, self.y,
            plain=self.plan.execution.is_plain,
        )  # fmt: skip

    def begins_with(
        self, client: str, sent: Tensors, private: Groups, broadcast: Groups, trains: bool = False
    ) -> Begun:
        """The model a client trains from or is scored with."""
        plan, rows = self.plan, self.clients[client].train

        def loss(model: Tensors) -> float:
            asked = Question(model, rows, (plan.seed, plan.stage, "begin", client))
            return evaluate([asked], self.scoring())[0].get("loss", math.nan)

        seed = torch_seed(plan.seed, plan.stage, "model", client)
        start = Start(
            plan.module, plan.initial, sent, private, broadcast, seed, loss, len(rows), trains
        )
        with located("beginning"):
            return plan.recipe.begins.begin(start)


@lru_cache(maxsize=16)
def _shared_graphs(key: str) -> dict[Hashable, Graphs]:
    return {}


def _on_one_scale(
    phase: Phase, objective: Objective, optimiser: Optimiser
) -> tuple[Phase, Optimiser]:
    """Weight decay taken out of the optimiser where the loss is divided, to be divided with it."""
    if not objective.divides or not optimiser.weight_decay:
        return phase, optimiser
    decay = Decay(optimiser.weight_decay)
    return replace(phase, corrects=(decay, *phase.corrects)), replace(optimiser, weight_decay=0.0)


def _gradient(
    module: nn.Module, objective: Objective, phase: Phase, held: Sequence[str], **common: Any
) -> Step:
    """The gradient of a phase's client on one batch: the objective's, corrected.

    ``held`` names the buffers and memory that are returned with it, in this order; ``common`` is
    what all batches have in common.
    """

    def gradient(
        trained: Tensors, fixed: Tensors, context: dict[str, Any], batch: dict[str, Any]
    ) -> list[Tensor]:
        key = batch.pop("key", None)
        drawn = Batch(**batch, **common)
        with dropout_key(key):
            gradients, loss, moved = objective.gradient(module, trained, fixed, drawn, context)
        context = {**context, DIVISOR: objective.divisor(drawn) if objective.divides else None}
        for correction in phase.corrects:
            gradients = correction.correct(gradients, trained, context)
        return [*(gradients[name] for name in trained), loss, *(moved[name] for name in held)]

    return gradient


def remembered(training: Training, model: Tensors, kept: Tensors) -> Tensors:
    """The memory of a client that trains from a model; its own model also starts there."""
    return {**kept, **own({name: model[name] for name in owned(training.memory)})}


def context_of(
    holdings: Holdings,
    phase: Phase,
    training: Training,
    rows: Indices,
    received: Tensors,
    private: Groups,
    broadcast: Groups,
) -> dict[str, Any]:
    """The values that a phase's parts read about a client that trains on these rows, by name.

    "received" is the model as sent, "class_counts" counts the rows' labels, "lr" is the step size,
    "adaptive" is 1 if steps are Adam's and else 0; any other name is a group of the client's
    private state or of the server's broadcast, and reads as zeros until it is written.
    """
    objective = phase.objective or holdings.plan.recipe.objective
    device = holdings.x.device
    context: dict[str, Any] = {}
    for name in sorted(set(objective.reads).union(*(part.reads for part in phase.corrects))):
        if name == "received":
            context[name] = {n: received[n] for n in sorted(training.trained)}
        elif name == "class_counts":
            context[name] = holdings.class_counts(rows)
        elif name == "lr":
            context[name] = torch.tensor(training.optimiser.lr, device=device)
        elif name == "adaptive":
            context[name] = torch.tensor(float(training.optimiser.kind == "adam")).to(device)
        elif name in private:
            context[name] = private[name]
        elif name in broadcast:
            context[name] = broadcast[name]
        else:
            context[name] = {n: torch.zeros_like(received[n]) for n in sorted(training.trained)}
    return context
