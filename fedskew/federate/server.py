"""The round loop: choose clients, send tasks, aggregate, score, record, checkpoint."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedskew.errors import ConfigError, RunError, located
from fedskew.federate.accepting import accept, nobody_left, update_norms
from fedskew.federate.asking import goes_back_to, participants, score_asks, train_asks, with_scores
from fedskew.federate.backends import Backend
from fedskew.federate.plan import Plan
from fedskew.federate.progress import Handed, Journal, Progress, RoundRecord, Trained
from fedskew.federate.roster import POOLED, Roster
from fedskew.federate.rounds import Choice, Rounds
from fedskew.federate.rows import (
    broadcast_of,
    measured_rows,
    rows_of,
    validation_score,
)
from fedskew.federate.targets import check_target
from fedskew.federate.tasks import (
    Answer,
    Ask,
    DescribeTask,
    not_finite,
)
from fedskew.parts.aggregate import ServerState, Update
from fedskew.parts.begin import Opening
from fedskew.parts.step import memory_at_start, stepped
from fedskew.rng import stream, torch_seed
from fedskew.types import Groups, Tensors


def federate(
    plan: Plan, backend: Backend, rounds: Rounds, journal: Journal, handed: Handed | None = None
) -> Progress:
    """Run one stage to its last round, or go on where the journal says it stopped.

    Where a message is expensive (``backend.rides``), the scores of a round come with the answers
    of the next: one message a round. The next is then trained before this one is committed, and
    forgotten if this one was the last.
    """
    recipe = plan.recipe
    if recipe.pools and recipe.invents is None and not backend.pools:
        raise ConfigError(
            "this method trains on all data in one place, but here clients keep theirs to "
            "themselves: leave it out."
        )
    trainers = sorted(_trainers(plan, backend.roster))
    handed = handed or Handed()
    progress = journal.resume(plan.stage) or _fresh(plan, trainers, handed)
    unscored: Trained | None = None
    norms: dict[str, float] = {}
    while not rounds.over(progress.round, progress.selected):
        begins = progress if unscored is None else unscored
        chosen: list[str] = []
        wanted = recipe.aggregates.wanted(trainers, begins.state)
        if begins.round < rounds.rounds:
            chosen = participants(wanted, rounds.clients_per_round, plan, begins.round + 1)
        keep = goes_back_to(progress, handed)
        asks = train_asks(plan, begins, keep, chosen, rounds.lr_factor(begins.round + 1))
        if unscored is not None:
            asks = with_scores(asks, score_asks(plan, backend.roster, unscored, keep))
        answers = backend.exchange(asks)
        if unscored is not None:
            progress = _scored(plan, backend.roster, rounds, progress, unscored, asks, answers)
            journal.commit(progress, unscored.rows, unscored.record)
            if progress.finished:
                break
        by_client = {answer.client: answer for answer in answers}
        trained = [by_client[client] for client in chosen]
        unscored = _aggregated(plan, rounds, begins, asks, trained, len(wanted), len(trainers),
                               handed, norms)  # fmt: skip
        norms = unscored.record.update_norms
        if rounds.scores_in(unscored.round) and backend.rides:
            continue
        asks = []
        if rounds.scores_in(unscored.round):
            asks = score_asks(plan, backend.roster, unscored, keep)
        answers = backend.exchange(asks) if asks else []
        progress = _scored(plan, backend.roster, rounds, progress, unscored, asks, answers)
        journal.commit(progress, unscored.rows, unscored.record)
        unscored = None
    return progress


def _aggregated(
    plan: Plan,
    rounds: Rounds,
    begins: Progress | Trained,
    asks: Sequence[Ask],
    answers: Sequence[Answer],
    wanted: int,
    trainers: int,
    handed: Handed,
    norms: dict[str, float],
) -> Trained:
    """The next round, from what clients answered; ``norms`` are of the updates before it."""
    number = begins.round + 1
    updates, failures = accept(answers, plan, begins.state)
    enough = min(rounds.min_clients, wanted)
    state = replace(begins.state, round=number)
    with located(f"stage {plan.stage!r}, round {number}, aggregating"):
        state, updates = aggregate(plan, state, updates, failures, enough, trainers)
    if not updates:
        raise nobody_left(plan, number, failures, norms)
    if not rounds.keeps_matrices_in(number):
        state = replace(state, matrices={})
    down, up = _traffic(
        plan, asks, answers, {client for update in updates for client in update.clients}
    )
    if number == 1:
        down, up = down + handed.bytes_down, up + handed.bytes_up
    record = RoundRecord(
        plan.stage, number, _clients(updates), _mean_loss(answers), down, up, failures, state.notes,
        update_norms(updates, begins.state),
    )  # fmt: skip
    kept = {**begins.kept, **{a.client: a.label for a in answers if a.label}}
    return Trained(number, state, kept, record)


def _scored(
    plan: Plan,
    roster: Roster,
    rounds: Rounds,
    before: Progress,
    trained: Trained,
    asks: Sequence[Ask],
    answers: Sequence[Answer],
) -> Progress:
    """The state of the stage after a round, with its scores, if it has any."""
    number, kept = trained.round, trained.kept
    if any(ask.scores for ask in asks):
        rows = rows_of(plan, roster, asks, answers)
        trained.rows += rows + measured_rows(plan, trained.state, number)
    selected = before.selected.see(
        number, validation_score(trained.rows, plan), plan.higher_is_better
    )
    return Progress(
        plan.stage, number, trained.state, selected, rounds.over(number, selected), kept,
        # Until a validation score has chosen a round, and where there are none, it is the last.
        kept if selected.round in (0, number) else before.kept_then,
        None if rounds.scores_in_turn(number) or not trained.rows else before.selected,
    )  # fmt: skip


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
    if _clients(updates) >= min_clients:
        target = plan.recipe.aggregates.aggregate(state, updates, trainers)
        check_target(plan, target)
        found = stepped(plan.recipe.steps, state, target)
        if not not_finite(found.shared, *found.personal.values(), *found.memory.values()):
            return found, updates
        failures.update({c: "the aggregate is not finite" for u in updates for c in u.clients})
        updates = []
    note = f"only {_clients(updates)} usable updates: the model stays as it was"
    return replace(state, notes=(note,)), updates


def _clients(updates: Sequence[Update]) -> int:
    return sum(len(update.clients) for update in updates)


def _traffic(
    plan: Plan, asks: Sequence[Ask], answers: Sequence[Answer], used: Collection[str]
) -> tuple[int, int]:
    """Bytes down, and up from clients whose update was ``used``, as they travelled.

    Where all is trained in one place, nothing travels.
    """
    if plan.recipe.pools:
        return 0, 0
    tasks = [ask.train for ask in asks if ask.train is not None]
    down = sum(tensor_bytes(t.sent, *t.broadcast.values()) for t in tasks)
    came = {id(a.update): a.update for a in answers if a.update is not None and a.client in used}
    return down, sum(
        tensor_bytes(u.tensors, *u.reports.values()) if u.came is None else u.came
        for u in came.values()
    )


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
    return Handed(memory, kept, progress.kept, up, down)
