"""The round loop: choose clients, send tasks, aggregate, score, record, checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedskew.engine.streams import stream, torch_seed
from fedskew.errors import ConfigError, RunError, located
from fedskew.federate.backends import Backend
from fedskew.federate.plan import ModelKind, Plan
from fedskew.federate.roster import POOLED, Roster
from fedskew.federate.tasks import (
    Answer,
    Ask,
    DescribeTask,
    Scored,
    ScoreTask,
    TrainTask,
    not_finite,
)
from fedskew.parts.aggregate import ServerState, Update
from fedskew.parts.begin import Opening
from fedskew.parts.objective import Tensors
from fedskew.parts.report import Groups
from fedskew.parts.step import memory_at_start, stepped
from fedskew.score import CENTRAL, Row


@dataclass(frozen=True)
class Rounds:
    """How long a stage goes on, who takes part, and what is scored when."""

    rounds: int
    clients_per_round: int | None = None
    min_clients: int = 1
    patience: int | None = None
    score_every: int = 1
    lr_decay: float = 1.0
    lr_steps: tuple[int, ...] = ()
    matrix_rounds: tuple[int, ...] | None = None
    """Rounds whose matrices over clients are kept; none: the first, two between, the last."""

    def keeps_matrices_in(self, round_number: int) -> bool:
        if self.matrix_rounds is not None:
            return round_number in self.matrix_rounds
        return round_number in (1, self.rounds // 3, 2 * self.rounds // 3, self.rounds)

    def lr_factor(self, round_number: int) -> float:
        return math.prod(self.lr_decay for step in self.lr_steps if round_number > step)

    def scores_in(self, round_number: int) -> bool:
        return round_number % self.score_every == 0 or round_number == self.rounds


@dataclass(frozen=True)
class Choice:
    """The best round so far by the clients' mean validation score, and how long ago it was."""

    round: int = 0
    value: float = math.nan
    waited: int = 0

    def see(self, round_number: int, value: float, higher_is_better: bool) -> Choice:
        if math.isnan(value):
            return self
        better = value > self.value if higher_is_better else value < self.value
        if better or math.isnan(self.value):
            return Choice(round_number, value)
        return Choice(self.round, self.value, self.waited + 1)


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
    while not progress.finished:
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
        if not updates and number == 1:
            # A first round in which every client fails is a wrong set-up, not bad luck.
            client, reason = next(iter(failures.items()))
            raise RunError(f"every client failed in the first round; {client!r}: {reason}.")
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
        stop = rounds.patience is not None and selected.waited >= rounds.patience
        progress = Progress(
            plan.stage, number, state, selected, stop or number >= rounds.rounds, kept,
            # Until a validation score has chosen a round, and where there are none, it is the last.
            kept if selected.round in (0, number) else progress.kept_then,
        )  # fmt: skip
        losses = [answer.loss for answer in answers if answer.error is None]
        down, up = _traffic(plan, asks, updates)
        if number == 1:
            down, up = down + handed.bytes_down, up + handed.bytes_up
        record = RoundRecord(
            stage=plan.stage,
            round=number,
            participants=len(updates),
            train_loss=sum(losses) / len(losses) if losses else math.nan,
            bytes_down=down,
            bytes_up=up,
            failures=failures,
            notes=state.notes,
        )
        journal.commit(progress, rows, record)
    return progress


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


def broadcast_of(plan: Plan, state: ServerState) -> Groups:
    """The groups of the server's memory that travel to clients with the model."""
    return {name: state.memory[name] for name in plan.recipe.aggregates.broadcasts}


def participants(
    trainers: Sequence[str], count: int | None, plan: Plan, round_number: int
) -> list[str]:
    """Who takes part in a round: all, or a seeded sample without replacement."""
    if count is None or count >= len(trainers):
        return list(trainers)
    rng = stream(plan.seed, plan.stage, "participants", round_number)
    return sorted(trainers[i] for i in rng.choice(len(trainers), size=count, replace=False))


def accept(answers: Sequence[Answer], plan: Plan) -> tuple[list[Update], dict[str, str]]:
    """Separate the updates that can be used from those that cannot, with the reason."""
    updates: list[Update] = []
    failures: dict[str, str] = {}
    for answer in answers:
        reason = answer.error or _fault(answer.update, plan)
        if reason is None and answer.update is not None:
            updates.append(answer.update)
        else:
            failures[answer.client] = reason or "no answer"
    return updates, failures


def _fault(update: Update | None, plan: Plan) -> str | None:
    if update is None:
        return "no answer"
    if update.tensors.keys() != plan.shared:
        return "the update has other entries than the shared model"
    for name, tensor in update.tensors.items():
        if tensor.shape != plan.initial[name].shape:
            return f"{name} has shape {tuple(tensor.shape)}"
    return None


def aggregate(
    plan: Plan,
    state: ServerState,
    updates: list[Update],
    failures: dict[str, str],
    min_clients: int,
    trainers: int,
) -> tuple[ServerState, list[Update]]:
    """The next state from all usable updates; who would spoil it is dropped, with the reason.

    Looking at the one result is cheaper than at every update; only if it is not finite are the
    updates searched for the cause.
    """
    rng = stream(plan.seed, plan.stage, "aggregate", state.round)
    state = replace(state, notes=(), measured={}, matrices={}, rng=rng)
    if len(updates) >= min_clients:
        target = plan.recipe.aggregates.aggregate(state, updates, trainers)
        found = stepped(plan.recipe.steps, state, target)
        if not not_finite(found.shared, *found.personal.values(), *found.memory.values()):
            return found, updates
        faults = {u.client: not_finite(u.tensors, *u.reports.values()) for u in updates}
        failures.update({c: f"{name} is not finite" for c, name in faults.items() if name})
        good = [update for update in updates if not faults[update.client]]
        if len(good) < len(updates):
            return aggregate(plan, state, good, failures, min_clients, trainers)
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


def score_tasks(
    plan: Plan,
    roster: Roster,
    state: ServerState,
    round_number: int,
    adapts: Sequence[int | None] = (None,),
    samples: bool = False,
) -> dict[str, list[ScoreTask]]:
    """By client, which models are scored; adapted, and sample by sample, the main one only.

    ``adapts`` are places of adaptations in the plan, none for a model as it is.
    """
    kinds: list[ModelKind] = ["global"] if plan.has_global_model else []
    if plan.has_personal_models:
        kinds.append("personal")
    if samples:
        kinds = [plan.primary_model]
    broadcast = broadcast_of(plan, state)
    asked: dict[str, list[ScoreTask]] = {}
    for member in roster.members:
        # A client left out of training may choose rounds, but nothing is made of it later.
        both = member.seen or not samples
        splits = ("validation", "test") if both else ("test",)
        for adapt in adapts:
            for model in kinds:
                sent = state.shared if model == "global" else state.sent_to(member.name)
                said = {} if model == "global" else broadcast
                task = ScoreTask(
                    member.name, round_number, sent, model, splits, adapt, samples, said
                )
                asked.setdefault(member.name, []).append(task)
    if "global" in kinds and not samples and roster.central:
        asked[CENTRAL] = [ScoreTask(CENTRAL, round_number, state.shared, "global", ("test",))]
    return asked


def scored(
    plan: Plan, backend: Backend, asked: Mapping[str, Sequence[ScoreTask]], kept: Mapping[str, str]
) -> list[Row]:
    """Ask clients to score models, and make rows of their answers."""
    asks = [
        Ask(client, tuple(tasks), since=kept.get(client, "")) for client, tasks in asked.items()
    ]
    return rows_of(plan, backend.roster, asks, backend.exchange(asks))


def rows_of(
    plan: Plan, roster: Roster, asks: Sequence[Ask], answers: Sequence[Answer]
) -> list[Row]:
    """The rows of all scores: the first model of every client, then the second."""
    rows: list[Row] = []
    for place in range(max((len(ask.scores) for ask in asks), default=0)):
        for ask, answer in zip(asks, answers, strict=True):
            if place < len(answer.scored):
                rows += _rows(plan, roster, ask.scores[place], answer.scored[place])
    return rows


def _rows(plan: Plan, roster: Roster, task: ScoreTask, result: Scored) -> list[Row]:
    if task.client == CENTRAL:
        on, sizes = "central", {"test": roster.central}
    else:
        member = roster.by_name[task.client]
        on, sizes = ("seen" if member.seen else "unseen"), dict(member.sizes)
    adapted = "none" if task.adapt is None else plan.adapts[task.adapt].label
    return [
        Row(
            stage=plan.stage, round=task.round, model=task.model, on=on, client=task.client,
            adapted=adapted, split=split, metric=metric, value=value, n=sizes[split],
        )
        for split, scores in result.scores.items()
        for metric, value in scores.items()
    ]  # fmt: skip


def measured_rows(plan: Plan, state: ServerState, round_number: int) -> list[Row]:
    """What the server found out about single clients while it aggregated."""
    return [
        Row(
            stage=plan.stage, round=round_number, model="personal", on="seen", client=client,
            adapted="none", split="server", metric=metric, value=value, n=0,
        )
        for client, numbers in sorted(state.measured.items())
        for metric, value in numbers.items()
    ]  # fmt: skip


def validation_score(rows: Sequence[Row], plan: Plan) -> float:
    """The mean over clients of the main metric on validation data; NaN where there are none."""
    values = [
        row.value
        for row in rows
        if row.split == "validation"
        and row.on == "seen"
        and row.model == plan.primary_model
        and row.metric == plan.recipe.objective.primary
    ]
    return sum(values) / len(values) if values else math.nan


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
