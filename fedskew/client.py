"""What a task means, given a client's data and private state: the same code on every backend."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch

from fedskew.engine.cohort import Trained, Work, in_workers, train
from fedskew.engine.evaluate import Scores
from fedskew.engine.streams import stream
from fedskew.errors import failure, locate, located
from fedskew.parts.aggregate import Update
from fedskew.parts.objective import Tensors
from fedskew.parts.report import (
    MEMORY,
    PERSONAL,
    SAMPLE_WEIGHT,
    SHARED,
    STEPS,
    Finished,
    Groups,
    Report,
)
from fedskew.recipe import Adapt
from fedskew.site import Site, context_of

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
    """Score the global model, or the client's personal one, as it is or adapted.

    With ``samples`` the answer holds every sample's values too, not only the client's scores.
    """

    client: str
    round: int
    sent: Tensors
    model: ModelKind
    splits: tuple[str, ...]
    adapt: Adapt | None = None
    samples: bool = False


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
    samples: dict[str, Tensors] = field(default_factory=dict)


AnyTask = TypeVar("AnyTask", TrainTask, DescribeTask)


def train_clients(
    site: Site, tasks: Sequence[TrainTask], private: Mapping[str, Groups]
) -> list[Outcome]:
    """Every task's client trains through the recipe's phases, reports, and answers."""
    received = {t.client: site.begins_with(t.client, t.sent, private[t.client]) for t in tasks}
    models = {
        "shared": dict(received),
        "personal": {t.client: private[t.client].get(PERSONAL, site.initial) for t in tasks},
    }
    steps = {t.client: 0 for t in tasks}
    losses: dict[str, float] = {}
    errors: dict[str, str] = {}
    memories: dict[str, Groups] = {t.client: {} for t in tasks}
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
                context=context_of(
                    site,
                    phase,
                    training,
                    site.clients[t.client].train,
                    received[t.client],
                    private[t.client],
                    t.broadcast,
                ),
                sample_weight=private[t.client].get(SAMPLE_WEIGHT, {}).get("w"),
                key=(site.seed, site.stage, "train", number, t.client, t.round),
                steps_before=_steps_before(private[t.client]),
                memory=private[t.client].get(f"{MEMORY}-{number}", {}),
            )
            for t in going
        ]
        for task, result in zip(going, train(works, training), strict=True):
            if isinstance(result, Trained) and not result.finite:
                errors[task.client] = "its parameters are not finite after training"
            elif isinstance(result, Trained):
                models[phase.model][task.client] = result.tensors
                if result.memory:
                    memories[task.client][f"{MEMORY}-{number}"] = result.memory
                if phase.model == "shared":
                    steps[task.client] += result.steps
                    losses[task.client] = result.loss
            else:
                locate(result, f"phase {number + 1}")
                errors[task.client] = failure(result, _place(site, task))

    def answer(task: TrainTask) -> Outcome:
        name = task.client
        if name in errors:
            return Outcome(name, error=errors[name])
        trained = models["shared"][name]
        keeps: Groups = dict(memories[name])
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

    return _answers(site, answer, tasks)


def describe_clients(
    site: Site, tasks: Sequence[DescribeTask], private: Mapping[str, Groups]
) -> list[Outcome]:
    """Every task's client runs reports on the finished model, with nothing trained."""

    def answer(task: DescribeTask) -> Outcome:
        model = site.received(task.sent, private[task.client])
        sends, keeps = _reported(site, task, task.reports, model, model, 0, private[task.client])
        size = len(site.clients[task.client].train)
        return Outcome(task.client, Update(task.client, {}, size, 0, sends), keeps)

    return _answers(site, answer, tasks)


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


def _answers(
    site: Site, answer: Callable[[AnyTask], Outcome], tasks: Sequence[AnyTask]
) -> list[Outcome]:
    """One answer a task; a client that raises is one lost answer, not a lost round."""

    def guarded(task: AnyTask) -> Outcome | Exception:
        try:
            return answer(task)
        except BdbQuit:
            raise
        except Exception as error:
            return error

    return [
        found
        if isinstance(found, Outcome)
        else Outcome(task.client, error=failure(found, _place(site, task)))
        for task, found in zip(tasks, in_workers(guarded, tasks, site.plan.is_plain), strict=True)
    ]


def _place(site: Site, task: TrainTask | DescribeTask) -> str:
    return f"client {task.client!r}, stage {site.stage!r}, round {task.round}"


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
        x=site.x,
        y=site.y,
        classes=site.federation.classes,
        module=site.evaluation.here(),
        received=received,
        trained=trained,
        changed=training.trained & site.shared,
        steps=steps,
        optimiser=training.optimiser,
        private=private,
        broadcast=task.broadcast,
        public=site.federation.public,
        rng=stream(site.seed, site.stage, "report", task.client, task.round),
        agreed=stream(site.seed, site.stage, "agreed"),
        log_ratio=site.log_ratio_of(site.clients[task.client].train),
    )
    for report in reports:
        with located(f"report {type(report).__name__}"):
            reported = report.report(finished)
        sends.update(reported.sends)
        keeps.update(reported.keeps)
    return sends, keeps
