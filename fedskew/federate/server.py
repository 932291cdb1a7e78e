"""The round loop: choose clients, send tasks, aggregate, score, record, checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedskew.errors import ConfigError, RunError, located
from fedskew.federate.accepting import accept, nobody_left, update_norms
from fedskew.federate.backends import Backend
from fedskew.federate.metrics import Row
from fedskew.federate.plan import Plan
from fedskew.federate.roster import POOLED, Roster
from fedskew.federate.rounds import Choice, Rounds
from fedskew.federate.rows import (
    broadcast_of,
    measured_rows,
    score_tasks,
    scored,
    validation_score,
)
from fedskew.federate.targets import check_target
from fedskew.federate.tasks import (
    Answer,
    Ask,
    DescribeTask,
    TrainTask,
    not_finite,
)
from fedskew.parts.aggregate import ServerState, Update
from fedskew.parts.begin import Opening
from fedskew.parts.step import memory_at_start, stepped
from fedskew.rng import stream, torch_seed
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round, besides its scores."""

    stage: str
    round: int
    participants: int
    train_loss: float
    bytes_down: int
    bytes_up: int
    failures: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    update_norms: dict[str, float] = field(default_factory=dict)
    """By client whose update was used, how far it went from what it was sent."""


@dataclass(frozen=True)
class Progress:
    """Everything needed to go on after a round: the checkpoint."""

    stage: str
    round: int
    state: ServerState
    selected: Choice
    finished: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)
    """By client, the label of its newest private state."""
    kept_then: Mapping[str, str] = field(default_factory=dict)
    """The same after the selected round."""
    unless_last: Choice | None = None
    """The choice without this round, if it is scored only because it is the last."""


class Journal(Protocol):
    """Where a stage's rounds are written down; the run folder is one, tests use a list."""

    def resume(self, stage: str) -> Progress | None: ...

    def commit(self, progress: Progress, rows: Sequence[Row], record: RoundRecord) -> None: ...


@dataclass(frozen=True)
class Handed:
    """What a stage begins with: the server's memory of the one before, and what that cost.

    ``kept`` labels what the clients were left with.
    """

    memory: Groups = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0


def federate(
    plan: Plan, backend: Backend, rounds: Rounds, journal: Journal, handed: Handed | None = None
) -> Progress:
    """Run one stage to its last round, or go on where the journal says it stopped."""
    roster, recipe = backend.roster, plan.recipe
    if recipe.pools and recipe.invents is None and not backend.pools:
        raise ConfigError(
            "this method trains on all data in one place, but here clients keep theirs to "
            "themselves: leave it out."
        )
    trainers = sorted(_trainers(plan, roster))
    handed = handed or Handed()
    progress = journal.resume(plan.stage) or _fresh(plan, trainers, handed)
    norms: dict[str, float] = {}
    while not rounds.over(progress.round, progress.selected):
        number = progress.round + 1
        state = progress.state
        wanted = recipe.aggregates.wanted(trainers, state)
        chosen = participants(wanted, rounds.clients_per_round, plan, number)
        asks = _train_asks(plan, progress, chosen, rounds.lr_factor(number))
        answers = backend.exchange(asks)
        updates, failures = accept(answers, plan)
        enough = min(rounds.min_clients, len(wanted))
        state = replace(state, round=number)
        with located(f"stage {plan.stage!r}, round {number}, aggregating"):
            state, updates = aggregate(plan, state, updates, failures, enough, len(trainers))
        if not updates:
            raise nobody_left(plan, number, failures, norms)
        norms = update_norms(updates, progress.state)
        if not rounds.keeps_matrices_in(number):
            state = replace(state, matrices={})
        kept = {**progress.kept, **{a.client: a.label for a in answers if a.label}}
        rows: list[Row] = []
        if rounds.scores_in(number):
            asked = score_tasks(plan, roster, state, number)
            rows = scored(plan, backend, asked, kept) + measured_rows(plan, state, number)
        selected = progress.selected.see(
            number, validation_score(rows, plan), recipe.objective.higher_is_better
        )
        progress = Progress(
            plan.stage, number, state, selected, rounds.over(number, selected), kept,
            # Until a validation score has chosen a round, and where there are none, it is the last.
            kept if selected.round in (0, number) else progress.kept_then,
            None if rounds.scores_in_turn(number) or not rows else progress.selected,
        )  # fmt: skip
        down, up = _traffic(plan, asks, updates)
        if number == 1:
            down, up = down + handed.bytes_down, up + handed.bytes_up
        record = RoundRecord(
            plan.stage, number, len(updates), _mean_loss(answers), down, up, failures, state.notes,
            norms,
        )  # fmt: skip
        journal.commit(progress, rows, record)
    return progress


def _mean_loss(answers: Sequence[Answer]) -> float:
    losses = [answer.loss for answer in answers if answer.error is None]
    return sum(losses) / len(losses) if losses else math.nan


def _trainers(plan: Plan, roster: Roster) -> list[str]:
    if plan.recipe.pools:
        return [POOLED]
    return [member.name for member in roster.seen]


def _fresh(plan: Plan, trainers: Sequence[str], handed: Handed) -> Progress:
    shared = {name: plan.initial[name] for name in sorted(plan.shared)}
    opening = Opening(plan.module, shared, trainers, torch_seed(plan.seed, plan.stage, "opening"))
    parameters = opening.parameters
    started = {
        **plan.recipe.aggregates.start(opening),
        **memory_at_start(plan.recipe.steps, parameters),
    }
    buffers = frozenset(shared.keys() - parameters.keys())
    state = ServerState(shared, memory={**handed.memory, **started}, buffers=buffers)
    return Progress(
        plan.stage, 0, state, Choice(), kept=dict(handed.kept), kept_then=dict(handed.kept)
    )


def _train_asks(
    plan: Plan, progress: Progress, clients: Sequence[str], lr_factor: float
) -> list[Ask]:
    number, state = progress.round + 1, progress.state
    broadcast = broadcast_of(plan, state)
    return [
        Ask(
            client,
            train=TrainTask(client, number, state.sent_to(client), broadcast, lr_factor),
            since=progress.kept.get(client, ""),
            until=plan.label(number),
            keep=(progress.kept_then.get(client, ""),),
        )
        for client in clients
    ]


def participants(
    trainers: Sequence[str], count: int | None, plan: Plan, round_number: int
) -> list[str]:
    """Who takes part in a round: all, or a seeded sample without replacement."""
    if count is None or count >= len(trainers):
        return list(trainers)
    rng = stream(plan.seed, plan.stage, "participants", round_number)
    return sorted(trainers[i] for i in rng.choice(len(trainers), size=count, replace=False))


def aggregate(
    plan: Plan,
    state: ServerState,
    updates: list[Update],
    failures: dict[str, str],
    min_clients: int,
    trainers: int,
) -> tuple[ServerState, list[Update]]:
    """The next state from all usable updates, unless there are too few or it is not finite."""
    rng = stream(plan.seed, plan.stage, "aggregate", state.round)
    state = replace(state, notes=(), measured={}, matrices={}, rng=rng)
    if len(updates) >= min_clients:
        target = plan.recipe.aggregates.aggregate(state, updates, trainers)
        check_target(plan, target)
        found = stepped(plan.recipe.steps, state, target)
        if not not_finite(found.shared, *found.personal.values(), *found.memory.values()):
            return found, updates
        failures.update({u.client: "the aggregate is not finite" for u in updates})
        updates = []
    note = f"only {len(updates)} usable updates: the model stays as it was"
    return replace(state, notes=(note,)), updates


def _traffic(plan: Plan, asks: Sequence[Ask], updates: Sequence[Update]) -> tuple[int, int]:
    """Bytes down and up in a round; where all is trained in one place, nothing travels."""
    if plan.recipe.pools:
        return 0, 0
    tasks = [ask.train for ask in asks if ask.train is not None]
    down = sum(tensor_bytes(t.sent, *t.broadcast.values()) for t in tasks)
    return down, sum(tensor_bytes(u.tensors, *u.reports.values()) for u in updates)


def tensor_bytes(*groups: Tensors) -> int:
    return sum(t.numel() * t.element_size() for tensors in groups for t in tensors.values())


def hand_over(plan: Plan, backend: Backend, progress: Progress) -> Handed:
    """What a finished stage leaves: labels of what clients keep, and what they tell the server."""
    state, broadcast = progress.state, broadcast_of(plan, progress.state)
    names = [member.name for member in backend.roster.seen]
    tasks = [DescribeTask(n, progress.round, state.sent_to(n), broadcast) for n in names]
    asks = [
        Ask(
            task.client,
            describe=task,
            since=progress.kept.get(task.client, ""),
            until=f"{plan.stage}-handed",
        )
        for task in tasks
    ]
    kept: dict[str, str] = {}
    memory: Groups = {}
    for answer in backend.exchange(asks):
        if answer.error:
            raise RunError(f"stage {plan.stage!r}, client {answer.client!r}: {answer.error}.")
        if answer.label:
            kept[answer.client] = answer.label
        for group, tensors in answer.update.reports.items() if answer.update else ():
            for name, tensor in tensors.items():
                memory.setdefault(group, {})[f"{answer.client}/{name}"] = tensor
    up = tensor_bytes(*memory.values())
    down = sum(tensor_bytes(task.sent, *task.broadcast.values()) for task in tasks)
    return Handed(memory, kept, up, down)
