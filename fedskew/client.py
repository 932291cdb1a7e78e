"""What a task means, given a client's data and private state: the same code on every backend."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from fedskew.engine.cohort import Trained, Work, in_workers, train
from fedskew.engine.streams import stream
from fedskew.errors import failure, locate, located
from fedskew.federate.holdings import Holdings, context_of, remembered
from fedskew.federate.tasks import DescribeTask, TrainTask, not_finite
from fedskew.parts.aggregate import Update
from fedskew.parts.begin import Begun
from fedskew.parts.objective import Tensors, own, owned
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


@dataclass(frozen=True)
class Outcome:
    """What came of training or describing: an update and what to keep, or why there is none."""

    client: str
    update: Update | None = None
    keeps: Groups = field(default_factory=dict)
    loss: float = float("nan")
    error: str | None = None


AnyTask = TypeVar("AnyTask", TrainTask, DescribeTask)


def train_clients(
    holdings: Holdings, tasks: Sequence[TrainTask], private: Mapping[str, Groups]
) -> list[Outcome]:
    """Every task's client trains through the recipe's phases, reports, and answers."""
    plan = holdings.plan
    begun, errors = _begun(holdings, tasks, private)
    models = {
        "shared": {client: start.model for client, start in begun.items()},
        "personal": {t.client: private[t.client].get(PERSONAL, plan.initial) for t in tasks},
    }
    steps = {t.client: 0 for t in tasks}
    losses: dict[str, float] = {}
    memories: dict[str, Groups] = {t.client: {} for t in tasks}
    owns: dict[str, Tensors] = {t.client: {} for t in tasks}
    for number, phase in enumerate(plan.recipe.trains):
        going = [t for t in tasks if t.client not in errors]
        if not going:
            break
        training = holdings.training(phase, going[0].lr_factor)
        works = [
            Work(
                name=t.client,
                rows=holdings.clients[t.client].train,
                tensors=models[phase.model][t.client],
                context=context_of(
                    holdings,
                    phase,
                    training,
                    holdings.clients[t.client].train,
                    begun[t.client].model,
                    private[t.client],
                    t.broadcast,
                ),
                sample_weight=private[t.client].get(SAMPLE_WEIGHT, {}).get("w"),
                key=(plan.seed, plan.stage, "train", number, t.client, t.round),
                steps_before=_steps_before(private[t.client]),
                memory=remembered(
                    training,
                    models[phase.model][t.client],
                    private[t.client].get(f"{MEMORY}-{number}", {}),
                ),
            )
            for t in going
        ]
        for task, result in zip(going, train(works, training), strict=True):
            mine = owned(result.memory) if isinstance(result, Trained) else {}
            if isinstance(result, Trained) and (not result.finite or not_finite(mine)):
                errors[task.client] = "its parameters are not finite after training"
            elif isinstance(result, Trained):
                models[phase.model][task.client] = result.tensors
                own_names = own(mine)
                if kept := {n: t for n, t in result.memory.items() if n not in own_names}:
                    memories[task.client][f"{MEMORY}-{number}"] = kept
                if phase.model == "shared":
                    owns[task.client] |= mine
                    steps[task.client] += result.steps
                    losses[task.client] = result.loss
            else:
                locate(result, f"phase {number + 1}")
                errors[task.client] = failure(result, _place(holdings, task))

    def answer(task: TrainTask) -> Outcome:
        name = task.client
        if name in errors:
            return Outcome(name, error=errors[name])
        trained = models["shared"][name]
        keeps: Groups = dict(memories[name])
        if plan.private:
            keeps[SHARED] = {n: trained[n] for n in plan.private}
        if plan.recipe.objective.counts_steps:
            total = _steps_before(private[name]) + steps[name]
            keeps[STEPS] = {"n": torch.tensor(total)}
        if plan.has_personal_phase:
            keeps[PERSONAL] = models["personal"][name]
        if plan.has_personal_steps:
            keeps[PERSONAL] = {**trained, **owns[name]}
        sends, kept = _reported(holdings, task, plan.recipe.reports, begun[name], trained,
                                steps[name], private[name])  # fmt: skip
        update = Update(
            name,
            {n: trained[n] for n in plan.shared_in_order},
            size=len(holdings.clients[name].train),
            steps=steps[name],
            reports=sends,
        )
        keeps.update(kept)
        if wrong := not_finite(*sends.values(), *kept.values()):
            return Outcome(name, error=f"its report {wrong} is not finite")
        return Outcome(name, update, keeps, losses.get(name, float("nan")))

    return _answers(holdings, answer, tasks)


def describe_clients(
    holdings: Holdings, tasks: Sequence[DescribeTask], private: Mapping[str, Groups]
) -> list[Outcome]:
    """Every task's client runs reports on the finished model, with nothing trained."""

    def answer(task: DescribeTask) -> Outcome:
        own = private[task.client]
        begun = holdings.begins_with(task.client, task.sent, own, task.broadcast)
        reports = holdings.plan.hands_over
        sends, keeps = _reported(holdings, task, reports, begun, begun.model, 0, own)
        size = len(holdings.clients[task.client].train)
        return Outcome(task.client, Update(task.client, {}, size, 0, sends), keeps)

    return _answers(holdings, answer, tasks)


def _begun(
    holdings: Holdings, tasks: Sequence[TrainTask], private: Mapping[str, Groups]
) -> tuple[dict[str, Begun], dict[str, str]]:
    """What every task's client starts from, or why it cannot."""
    begun: dict[str, Begun] = {}
    errors: dict[str, str] = {}
    for t in tasks:
        try:
            begun[t.client] = holdings.begins_with(
                t.client, t.sent, private[t.client], t.broadcast, trains=True
            )
        except BdbQuit:
            raise
        except Exception as error:
            errors[t.client] = failure(error, _place(holdings, t))
    return begun, errors


def _steps_before(private: Groups) -> int:
    return int(private[STEPS]["n"]) if STEPS in private else 0


def _answers(
    holdings: Holdings, answer: Callable[[AnyTask], Outcome], tasks: Sequence[AnyTask]
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
        else Outcome(task.client, error=failure(found, _place(holdings, task)))
        for task, found in zip(
            tasks, in_workers(guarded, tasks, holdings.plan.execution.is_plain), strict=True
        )
    ]


def _place(holdings: Holdings, task: TrainTask | DescribeTask) -> str:
    return f"client {task.client!r}, stage {holdings.plan.stage!r}, round {task.round}"


def _reported(
    holdings: Holdings,
    task: TrainTask | DescribeTask,
    reports: Sequence[Report],
    begun: Begun,
    trained: Tensors,
    steps: int,
    private: Groups,
) -> tuple[Groups, Groups]:
    sends: Groups = {}
    keeps: Groups = {}
    if not reports:
        return sends, keeps
    lr_factor = task.lr_factor if isinstance(task, TrainTask) else 1.0
    training = holdings.training(holdings.plan.recipe.trains[0], lr_factor)
    finished = Finished(
        client=holdings.clients[task.client],
        x=holdings.x,
        y=holdings.y,
        classes=holdings.federation.classes,
        module=holdings.plan.evaluation.here(),
        received=begun.model,
        trained=trained,
        changed=training.trained & holdings.plan.shared,
        steps=steps,
        optimiser=training.optimiser,
        private=private,
        broadcast=task.broadcast,
        public=holdings.federation.public,
        rng=stream(holdings.plan.seed, holdings.plan.stage, "report", task.client, task.round),
        agreed=stream(holdings.plan.seed, holdings.plan.stage, "agreed"),
        found=begun.found,
        log_ratio=holdings.log_ratio_of(holdings.clients[task.client].train),
    )
    for report in reports:
        with located(f"report {type(report).__name__}"):
            reported = report.report(finished)
        sends.update(reported.sends)
        keeps.update(reported.keeps)
    return sends, keeps
