"""How a client carries out a task on its data and private state; the same on every backend."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from fedskew.engine.cohort import train
from fedskew.engine.training import Trained, Training, Work
from fedskew.engine.workers import in_workers
from fedskew.errors import failure, locate, located
from fedskew.federate.holdings import Holdings, context_of, remembered
from fedskew.federate.recipe import Phase
from fedskew.federate.tasks import DescribeTask, TrainTask, not_finite
from fedskew.parts.aggregate import Update
from fedskew.parts.begin import Begun
from fedskew.parts.objective import own, owned
from fedskew.parts.packing import UNSENT
from fedskew.parts.report import MEMORY, PERSONAL, SAMPLE_WEIGHT, SHARED, STEPS, Finished, Report
from fedskew.rng import stream
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class Outcome:
    """The result of training or describing: an update and what to keep, or why there is none."""

    client: str
    update: Update | None = None
    keeps: Groups = field(default_factory=dict)
    loss: float = float("nan")
    error: str | None = None


AnyTask = TypeVar("AnyTask", TrainTask, DescribeTask)


@dataclass
class _RoundState:
    """A client's state during a round: its models, and what its objectives remember."""

    begun: Begun
    shared: Tensors
    personal: Tensors
    steps: int = 0
    loss: float = float("nan")
    memories: Groups = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)

    def model(self, phase: Phase) -> Tensors:
        return self.shared if phase.model == "shared" else self.personal

    def take(self, number: int, phase: Phase, result: Trained) -> None:
        """Continue from the result of a phase."""
        mine = owned(result.memory)
        kept = {name: t for name, t in result.memory.items() if name not in own(mine)}
        if kept:
            self.memories[f"{MEMORY}-{number}"] = kept
        if phase.model == "shared":
            self.shared = result.tensors
            self.own |= mine
            self.steps += result.steps
            self.loss = result.loss
        else:
            self.personal = result.tensors


def train_clients(
    holdings: Holdings, tasks: Sequence[TrainTask], private: Mapping[str, Groups]
) -> list[Outcome]:
    """Every task's client trains in the recipe's phases, makes its reports, and answers."""
    begun, errors = _begun(holdings, tasks, private)
    initial = holdings.plan.initial
    states = {
        client: _RoundState(start, start.model, private[client].get(PERSONAL, initial))
        for client, start in begun.items()
    }
    for number, phase in enumerate(holdings.plan.recipe.trains):
        going = [t for t in tasks if t.client not in errors]
        if not going:
            break
        training = holdings.training(phase, going[0].lr_factor)
        works = [
            _work(holdings, number, training, t, states[t.client], private[t.client]) for t in going
        ]
        for task, result in zip(going, train(works, training), strict=True):
            if isinstance(result, Exception):
                locate(result, f"phase {number + 1}")
                errors[task.client] = failure(result, _place(holdings, task))
            elif not result.finite or not_finite(owned(result.memory)):
                errors[task.client] = "its parameters are not finite after training"
            else:
                states[task.client].take(number, phase, result)

    def answer(task: TrainTask) -> Outcome:
        if task.client in errors:
            return Outcome(task.client, error=errors[task.client])
        return _answer(holdings, task, states[task.client], private[task.client])

    return _answers(holdings, answer, tasks)


def _work(
    holdings: Holdings,
    number: int,
    training: Training,
    task: TrainTask,
    state: _RoundState,
    private: Groups,
) -> Work:
    """What the engine needs to know of a client for one phase."""
    plan, rows = holdings.plan, holdings.clients[task.client].train
    phase = plan.recipe.trains[number]
    model = state.model(phase)
    return Work(
        name=task.client,
        rows=rows,
        tensors=model,
        context=context_of(
            holdings, phase, training, rows, state.begun.model, private, task.broadcast
        ),
        sample_weight=private.get(SAMPLE_WEIGHT, {}).get("w"),
        key=(plan.seed, plan.stage, "train", number, task.client, task.round),
        steps_before=_steps_before(private),
        memory=remembered(training, model, private.get(f"{MEMORY}-{number}", {})),
    )


def _answer(holdings: Holdings, task: TrainTask, state: _RoundState, private: Groups) -> Outcome:
    """What a client that has trained sends, and what it keeps."""
    plan, name, trained = holdings.plan, task.client, state.shared
    keeps: Groups = dict(state.memories)
    if plan.private:
        keeps[SHARED] = {n: trained[n] for n in plan.private}
    if plan.recipe.objective.counts_steps:
        keeps[STEPS] = {"n": torch.tensor(_steps_before(private) + state.steps)}
    if plan.has_personal_phase:
        keeps[PERSONAL] = state.personal
    if plan.has_personal_steps:
        keeps[PERSONAL] = {**trained, **state.own}
    sends, kept = _reported(
        holdings, task, plan.recipe.reports, state.begun, trained, state.steps, private
    )
    if wrong := not_finite(*sends.values(), *kept.values()):
        return Outcome(name, error=f"its report {wrong} is not finite")
    packed = plan.recipe.packs.pack(
        {n: trained[n] for n in plan.packed}, task.sent, private.get(UNSENT, {})
    )
    if packed.unsent:
        keeps[UNSENT] = packed.unsent
    update = Update(
        name,
        {n: packed.sends.get(n, trained[n]) for n in plan.shared_in_order},
        size=len(holdings.clients[name].train),
        steps=state.steps,
        reports=sends,
    )
    return Outcome(name, update, {**keeps, **kept}, state.loss)


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
    """One answer per task; a client that raises costs one answer, not the round."""

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
        vocabulary=holdings.federation.vocabulary,
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
