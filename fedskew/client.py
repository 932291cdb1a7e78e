"""What a task means, given a client's data and private state: the same code on every backend."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedskew.data.federation import Client, Federation
from fedskew.engine.cohort import Trained, Training, Work, in_workers, train
from fedskew.engine.dropout import StreamDropout, dropout_key
from fedskew.engine.evaluate import (
    EvaluationModules,
    Question,
    Scores,
    Scoring,
    evaluate,
    trains_batch_statistics,
)
from fedskew.engine.graph import Step
from fedskew.engine.optim import Optimiser
from fedskew.engine.plan import Plan
from fedskew.engine.streams import stream
from fedskew.parts.aggregate import Update
from fedskew.parts.objective import Batch, Bound, Objective, Tensors
from fedskew.parts.report import Finished, Groups, Report
from fedskew.parts.select import BATCH_NORM, only
from fedskew.recipe import Adapt, Phase, Recipe

SHARED, PERSONAL, SAMPLE_WEIGHT, STEPS = "model", "personal", "sample_weight", "steps"
"""Groups of a client's private state: its unshared parameters, its own model, the weights of its
rows, and how many steps it has ever made (for objectives that change with time)."""


ModelKind = Literal["global", "personal"]


@dataclass(frozen=True)
class TrainTask:
    """Train from what the server sent and answer with an update."""

    client: str
    round: int
    sent: Tensors
    broadcast: Groups = field(default_factory=dict)
    lr_factor: float = 1.0


@dataclass(frozen=True)
class DescribeTask:
    """Answer questions about a finished model without training it."""

    client: str
    round: int
    sent: Tensors
    reports: tuple[Report, ...]
    broadcast: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreTask:
    """Score the global model, or the client's personal one, as it is or adapted."""

    client: str
    round: int
    sent: Tensors
    model: ModelKind
    splits: tuple[str, ...]
    adapt: Adapt | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of training or describing: an update and what to keep, or why there is none."""

    client: str
    update: Update | None = None
    keeps: Groups = field(default_factory=dict)
    loss: float = float("nan")
    error: str | None = None


@dataclass(frozen=True)
class Scored:
    """Scores by split, and the model that earned them."""

    client: str
    scores: dict[str, Scores]
    tensors: Tensors
    error: str | None = None


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
        """Entries of the model that stay at the client."""
        return sorted(self.module.state_dict().keys() - self.shared)

    @cached_property
    def parameters(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.module.named_parameters())

    @cached_property
    def clients(self) -> Mapping[str, Client]:
        return {"pooled": self.federation.pooled(), **self.federation.by_name}

    @cached_property
    def has_personal_phase(self) -> bool:
        return any(phase.model == "personal" for phase in self.recipe.trains)

    def training(self, phase: Phase, lr_factor: float) -> Training:
        """The engine's view of a phase; its traced steps are kept from round to round."""
        objective = phase.objective or self.recipe.objective
        optimiser = self.settings.optimiser
        lr = (optimiser.lr if phase.lr is None else phase.lr) * lr_factor
        if phase not in self._trainings:
            epochs = self.settings.epochs if phase.epochs is None else phase.epochs
            modules = list(self.module.modules())
            self._trainings[phase] = Training(
                _gradient(self.module, objective, phase),
                trained=phase.trains.names(self.module) & self.parameters,
                buffers=tuple(sorted(self.initial.keys() & dict(self.module.named_buffers()))),
                optimiser=optimiser,
                batch_size=self.settings.batch_size,
                epochs=epochs,
                chunk=self.plan.chunk,
                x=self.federation.x,
                y=self.federation.y,
                environment=self.federation.environment,
                environments=objective.environments,
                noise=objective.noise,
                pads=not trains_batch_statistics(self.module),
                counts_steps=objective.counts_steps,
                drops=any(isinstance(layer, StreamDropout) for layer in modules),
            )
        training = self._trainings[phase]
        training.optimiser = replace(optimiser, lr=lr)
        return training

    def received(self, sent: Tensors, private: Groups) -> Tensors:
        """The model a client starts from: what was sent, completed by what it keeps."""
        return {**self.initial, **private.get(SHARED, {}), **sent}


def _gradient(module: nn.Module, objective: Objective, phase: Phase) -> Step:
    """What a phase's client follows on one batch: the objective's gradient, corrected."""

    def gradient(
        trained: Tensors, fixed: Tensors, context: dict[str, Any], batch: dict[str, Any]
    ) -> list[Tensor]:
        key = batch.pop("key", None)
        with dropout_key(key):
            gradients, loss, buffers = objective.gradient(
                module, trained, fixed, Batch(**batch), context
            )
        for correction in phase.corrects:
            gradients = correction.correct(gradients, trained, context)
        moved = [buffers[name] for name in sorted(buffers)]
        return [*(gradients[name] for name in trained), loss, *moved]

    return gradient


def train_clients(
    site: Site, tasks: Sequence[TrainTask], private: Mapping[str, Groups]
) -> list[Outcome]:
    """Every task's client trains through the recipe's phases, reports, and answers."""
    received = {t.client: site.received(t.sent, private[t.client]) for t in tasks}
    models = {
        "shared": dict(received),
        "personal": {t.client: private[t.client].get(PERSONAL, site.initial) for t in tasks},
    }
    steps = {t.client: 0 for t in tasks}
    losses: dict[str, float] = {}
    errors: dict[str, str] = {}
    for number, phase in enumerate(site.recipe.trains):
        going = [t for t in tasks if t.client not in errors]
        if not going:
            break
        training = site.training(phase, going[0].lr_factor)
        works = [
            Work(
                name=t.client,
                rows=site.clients[t.client].train,
                tensors=models[phase.model][t.client],
                context=_context(site, phase, t, received[t.client], private[t.client], training),
                sample_weight=private[t.client].get(SAMPLE_WEIGHT, {}).get("w"),
                key=(site.seed, site.stage, "train", number, t.client, t.round),
                steps_before=_steps_before(private[t.client]),
            )
            for t in going
        ]
        for task, result in zip(going, train(works, training), strict=True):
            if isinstance(result, Trained) and not result.finite:
                errors[task.client] = "its parameters are not finite after training"
            elif isinstance(result, Trained):
                models[phase.model][task.client] = result.tensors
                if phase.model == "shared":
                    steps[task.client] += result.steps
                    losses[task.client] = result.loss
            else:
                errors[task.client] = f"{type(result).__name__}: {result}"

    def answer(task: TrainTask) -> Outcome:
        name = task.client
        if name in errors:
            return Outcome(name, error=errors[name])
        trained = models["shared"][name]
        keeps: Groups = {}
        if site.private:
            keeps[SHARED] = {n: trained[n] for n in site.private}
        if site.recipe.objective.counts_steps:
            total = _steps_before(private[name]) + steps[name]
            keeps[STEPS] = {"n": torch.tensor(total)}
        if site.has_personal_phase:
            keeps[PERSONAL] = models["personal"][name]
        sends, kept = _reported(site, task, site.recipe.reports, received[name], trained,
                                steps[name], private[name])  # fmt: skip
        update = Update(
            name,
            {n: trained[n] for n in site.shared_in_order},
            size=len(site.clients[name].train),
            steps=steps[name],
            reports=sends,
        )
        keeps.update(kept)
        if wrong := not_finite(*sends.values(), *kept.values()):
            return Outcome(name, error=f"its report {wrong} is not finite")
        return Outcome(name, update, keeps, losses.get(name, float("nan")))

    return in_workers(lambda task: _guarded(answer, task), tasks)


def describe_clients(
    site: Site, tasks: Sequence[DescribeTask], private: Mapping[str, Groups]
) -> list[Outcome]:
    """Every task's client runs reports on the finished model, with nothing trained."""

    def answer(task: DescribeTask) -> Outcome:
        model = site.received(task.sent, private[task.client])
        sends, keeps = _reported(site, task, task.reports, model, model, 0, private[task.client])
        size = len(site.clients[task.client].train)
        return Outcome(task.client, Update(task.client, {}, size, 0, sends), keeps)

    return in_workers(lambda task: _guarded(answer, task), tasks)


def not_finite(*groups: Tensors) -> str | None:
    """The name of a tensor that holds a NaN or an infinity, if there is one."""
    for group in groups:
        for name, tensor in group.items():
            # A sum carries any NaN or infinity along and needs one pass and no copy.
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum())):
                return name
    return None


def _steps_before(private: Groups) -> int:
    return int(private[STEPS]["n"]) if STEPS in private else 0


def _guarded(answer: Any, task: TrainTask | DescribeTask) -> Outcome:
    """A client that raises is one lost answer, never a lost round."""
    try:
        return answer(task)  # type: ignore[no-any-return]
    except Exception as error:
        return Outcome(task.client, error=f"{type(error).__name__}: {error}")


def _reported(
    site: Site,
    task: TrainTask | DescribeTask,
    reports: Sequence[Report],
    received: Tensors,
    trained: Tensors,
    steps: int,
    private: Groups,
) -> tuple[Groups, Groups]:
    sends: Groups = {}
    keeps: Groups = {}
    if not reports:
        return sends, keeps
    lr_factor = task.lr_factor if isinstance(task, TrainTask) else 1.0
    training = site.training(site.recipe.trains[0], lr_factor)
    finished = Finished(
        client=site.clients[task.client],
        federation=site.federation,
        module=site.evaluation.here(),
        received=received,
        trained=trained,
        changed=training.trained & site.shared,
        steps=steps,
        optimiser=training.optimiser,
        private=private,
        broadcast=task.broadcast,
        rng=stream(site.seed, site.stage, "report", task.client, task.round),
    )
    for report in reports:
        reported = report.report(finished)
        sends.update(reported.sends)
        keeps.update(reported.keeps)
    return sends, keeps


def _context(
    site: Site,
    phase: Phase,
    task: TrainTask,
    received: Tensors,
    private: Groups,
    training: Training,
) -> dict[str, Any]:
    """What the phase's parts asked to read, by name.

    "received" is the model as sent, "class_counts" the client's labels, "lr" the step size; any
    other name is a group of the client's private state or of the server's broadcast, and reads
    as zeros until somebody has written it.
    """  # fmt: skip
    objective = phase.objective or site.recipe.objective
    wanted = set(objective.reads).union(*(part.reads for part in phase.corrects))
    context: dict[str, Any] = {}
    for name in sorted(wanted):
        if name == "received":
            context[name] = {n: received[n] for n in sorted(training.trained)}
        elif name == "class_counts":
            labels = site.federation.y[torch.from_numpy(site.clients[task.client].train)]
            counts = torch.bincount(labels, minlength=site.federation.classes)
            context[name] = counts.to(torch.float32)
        elif name == "lr":
            context[name] = torch.tensor(training.optimiser.lr)
        elif name in private:
            context[name] = private[name]
        elif name in task.broadcast:
            context[name] = task.broadcast[name]
        else:
            context[name] = {n: torch.zeros_like(received[n]) for n in sorted(training.trained)}
    return context


def score_clients(
    site: Site, tasks: Sequence[ScoreTask], private: Mapping[str, Groups]
) -> list[Scored]:
    """Every task's model, adapted where asked, on the splits asked for."""
    cache: dict[int, Tensors] = {}
    models: list[Tensors] = []
    for task in tasks:
        own = private.get(task.client, {})
        if task.model == "personal":
            model = personal_model(site, task.sent, own)
            models.append(_with_statistics(site, task, model, own))
        else:
            # One object for all who are sent the same tensors: they are then scored together.
            models.append(cache.setdefault(id(task.sent), {**site.initial, **task.sent}))
    errors: dict[int, str] = {}
    for i, result in _adapted(site, tasks, models):
        if isinstance(result, Exception):
            errors[i] = f"{type(result).__name__}: {result}"
        else:
            models[i] = result
    asked = [(i, s) for i in range(len(tasks)) for s in tasks[i].splits if i not in errors]
    answers = evaluate(
        [
            Question(
                models[i],
                site.federation.central_test if tasks[i].client == "" else
                site.clients[tasks[i].client].split(s),
                (site.seed, site.stage, s, tasks[i].client),
            )
            for i, s in asked
        ],
        site_scoring(site),
    )  # fmt: skip
    scores: list[dict[str, Scores]] = [{} for _ in tasks]
    for (i, split), answer in zip(asked, answers, strict=True):
        if answer:
            scores[i][split] = answer
    return [
        Scored(task.client, scores[i], models[i], errors.get(i)) for i, task in enumerate(tasks)
    ]


def personal_model(site: Site, sent: Tensors, own: Groups) -> Tensors:
    """The model a client calls its own: kept whole, or what was sent completed by its parts."""
    return own[PERSONAL] if PERSONAL in own else site.received(sent, own)


def site_scoring(site: Site) -> Scoring:
    objective = site.recipe.objective

    def score(module: nn.Module, tensors: Tensors, batch: dict[str, Any]) -> Tensors:
        return objective.scores(Bound(module, tensors), Batch(**batch))

    return Scoring(site.evaluation, score, objective.noise, site.federation.x, site.federation.y)


def _adapted(
    site: Site, tasks: Sequence[ScoreTask], models: Sequence[Tensors]
) -> list[tuple[int, Tensors | Exception]]:
    """The models of the tasks that ask for adaptation, after it; phase by phase for all."""
    now: dict[int, Tensors | Exception] = {
        i: models[i] for i, task in enumerate(tasks) if task.adapt is not None
    }
    depth = max((len(task.adapt.phases) for task in tasks if task.adapt), default=0)
    for number in range(depth):
        groups: dict[Phase, list[int]] = {}
        for i, model in now.items():
            adapt = tasks[i].adapt
            if adapt and number < len(adapt.phases) and not isinstance(model, Exception):
                groups.setdefault(adapt.phases[number], []).append(i)
        for phase, members in groups.items():
            works = []
            for i in members:
                task, model = tasks[i], now[i]
                assert task.adapt is not None
                assert not isinstance(model, Exception)
                rows = site.clients[task.client].train
                key = (site.seed, site.stage, "adapt", number, task.client, task.round)
                if task.adapt.shots is not None:
                    rows = shots(rows, site.federation.y, task.adapt.shots, site.seed, task.client)
                works.append(Work(str(i), rows, model, key=key))
            for i, result in zip(members, train(works, site.training(phase, 1.0)), strict=True):
                now[i] = result.tensors if isinstance(result, Trained) else result
    return list(now.items())


def shots(
    rows: np.ndarray[Any, np.dtype[np.int64]], y: Tensor, count: int, seed: int, client: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """``count`` rows of every class the client has (all of a class that has fewer)."""
    order = stream(seed, "shots", client).permutation(rows)
    labels = y.numpy()[order]
    taken = [order[labels == label][:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(taken))


def _with_statistics(site: Site, task: ScoreTask, model: Tensors, own: Groups) -> Tensors:
    """A client without private BatchNorm statistics takes them from its own inputs."""
    missing = only(BATCH_NORM).names(site.module) - site.shared - site.parameters
    rows = site.clients[task.client].train
    if not missing or SHARED in own or len(rows) < 2:
        return model
    module = copy.deepcopy(site.module).eval()
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.train()
            # The plain average over its inputs; a moving one would keep most of where it began.
            layer.momentum = None
    counters = {n: torch.zeros_like(model[n]) for n in missing if n.endswith("_tracked")}
    fresh = {n: model[n].clone() for n in missing} | counters
    bound = Bound(module, {**model, **fresh})
    with torch.no_grad():
        # Equal parts: a single sample left over would have no variance.
        for part in np.array_split(rows, -(-len(rows) // 256)):
            bound(site.federation.x[torch.from_numpy(part)])
    return bound.tensors
