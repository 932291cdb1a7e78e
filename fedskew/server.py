"""The round loop: choose clients, send tasks, aggregate, score, record, checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedskew.backends import Backend
from fedskew.client import ModelKind, Outcome, Scored, ScoreTask, TrainTask, not_finite
from fedskew.engine.streams import stream
from fedskew.errors import RunError
from fedskew.parts.aggregate import ServerState, Update
from fedskew.parts.objective import Tensors
from fedskew.parts.report import Groups
from fedskew.parts.step import memory_at_start, stepped
from fedskew.recipe import Adapt
from fedskew.score import CENTRAL, Row
from fedskew.site import Site


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
    adapts: tuple[Adapt, ...] = ()
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


class Journal(Protocol):
    """Where a stage's rounds are written down; the run folder is one, tests use a list."""

    def resume(self, stage: str) -> Progress | None: ...

    def commit(
        self, progress: Progress, rows: Sequence[Row], record: RoundRecord, backend: Backend
    ) -> None: ...


@dataclass(frozen=True)
class Handed:
    """What a stage begins with: the server's memory of the one before, and what that cost."""

    memory: Groups = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0


def federate(
    site: Site, backend: Backend, rounds: Rounds, journal: Journal, handed: Handed | None = None
) -> Progress:
    """Run one stage to its last round, or go on where the journal says it stopped."""
    trainers = sorted(_trainers(site))
    handed = handed or Handed()
    progress = journal.resume(site.stage) or _fresh(site, trainers, handed.memory)
    while not progress.finished:
        number = progress.round + 1
        state = progress.state
        wanted = site.recipe.aggregates.wanted(trainers, state)
        chosen = participants(wanted, rounds.clients_per_round, site, number)
        broadcast = {name: state.memory[name] for name in site.recipe.aggregates.broadcasts}
        factor = rounds.lr_factor(number)
        tasks = [TrainTask(c, number, state.sent_to(c), broadcast, factor) for c in chosen]
        outcomes = backend.train(tasks)
        updates, failures = accept(outcomes, site)
        enough = min(rounds.min_clients, len(wanted))
        state, updates = aggregate(site, replace(state, round=number), updates, failures, enough)
        if not updates and number == 1:
            # A first round in which every client fails is a wrong set-up, not bad luck.
            client, reason = next(iter(failures.items()))
            raise RunError(f"every client failed in the first round; {client!r}: {reason}.")
        if not rounds.keeps_matrices_in(number):
            state = replace(state, matrices={})
        rows: list[Row] = []
        if rounds.scores_in(number):
            rows = score(site, backend, state, number) + measured_rows(site, state, number)
        selected = progress.selected.see(
            number, validation_score(rows, site), site.recipe.objective.higher_is_better
        )
        stop = rounds.patience is not None and selected.waited >= rounds.patience
        progress = Progress(site.stage, number, state, selected, stop or number >= rounds.rounds)
        losses = [o.loss for o in outcomes if o.error is None]
        down, up = _traffic(site, tasks, updates)
        if number == 1:
            down, up = down + handed.bytes_down, up + handed.bytes_up
        record = RoundRecord(
            stage=site.stage,
            round=number,
            participants=len(updates),
            train_loss=sum(losses) / len(losses) if losses else math.nan,
            bytes_down=down,
            bytes_up=up,
            failures=failures,
            notes=state.notes,
        )
        journal.commit(progress, rows, record, backend)
    return progress


def _trainers(site: Site) -> list[str]:
    if site.recipe.pools:
        return ["pooled"]
    return [client.name for client in site.federation.clients]


def _fresh(site: Site, trainers: Sequence[str], memory: Groups) -> Progress:
    shared = {name: site.initial[name] for name in sorted(site.shared)}
    parameters = {name: t for name, t in shared.items() if name in site.parameters}
    started = {
        **site.recipe.aggregates.start(parameters, trainers),
        **memory_at_start(site.recipe.steps, parameters),
    }
    buffers = frozenset(shared.keys() - parameters.keys())
    state = ServerState(shared, memory={**memory, **started}, buffers=buffers)
    return Progress(site.stage, 0, state, Choice())


def participants(
    trainers: Sequence[str], count: int | None, site: Site, round_number: int
) -> list[str]:
    """Who takes part in a round: all, or a seeded sample without replacement."""
    if count is None or count >= len(trainers):
        return list(trainers)
    rng = stream(site.seed, site.stage, "participants", round_number)
    return sorted(trainers[i] for i in rng.choice(len(trainers), size=count, replace=False))


def accept(outcomes: Sequence[Outcome], site: Site) -> tuple[list[Update], dict[str, str]]:
    """Separate the updates that can be used from those that cannot, with the reason."""
    updates: list[Update] = []
    failures: dict[str, str] = {}
    for outcome in outcomes:
        reason = outcome.error or _fault(outcome.update, site)
        if reason is None and outcome.update is not None:
            updates.append(outcome.update)
        else:
            failures[outcome.client] = reason or "no answer"
    return updates, failures


def _fault(update: Update | None, site: Site) -> str | None:
    if update is None:
        return "no answer"
    if update.tensors.keys() != site.shared:
        return "the update has other entries than the shared model"
    for name, tensor in update.tensors.items():
        if tensor.shape != site.initial[name].shape:
            return f"{name} has shape {tuple(tensor.shape)}"
    return None


def aggregate(
    site: Site,
    state: ServerState,
    updates: list[Update],
    failures: dict[str, str],
    min_clients: int,
) -> tuple[ServerState, list[Update]]:
    """The next state from all usable updates; who would spoil it is dropped, with the reason.

    Looking at the one result is cheaper than at every update; only if it is not finite are the
    updates searched for the cause.
    """
    rng = stream(site.seed, site.stage, "aggregate", state.round)
    state = replace(state, notes=(), measured={}, matrices={}, rng=rng)
    if len(updates) >= min_clients:
        trainers = len(_trainers(site))
        target = site.recipe.aggregates.aggregate(state, updates, trainers)
        found = stepped(site.recipe.steps, state, target)
        if not not_finite(found.shared, *found.personal.values(), *found.memory.values()):
            return found, updates
        faults = {u.client: not_finite(u.tensors, *u.reports.values()) for u in updates}
        failures.update({c: f"{name} is not finite" for c, name in faults.items() if name})
        good = [update for update in updates if not faults[update.client]]
        if len(good) < len(updates):
            return aggregate(site, state, good, failures, min_clients)
        failures.update({u.client: "the aggregate is not finite" for u in updates})
        updates = []
    note = f"only {len(updates)} usable updates: the model stays as it was"
    return replace(state, notes=(note,)), updates


def _traffic(site: Site, tasks: Sequence[TrainTask], updates: Sequence[Update]) -> tuple[int, int]:
    """Bytes down and up in a round; where all is trained in one place, nothing travels."""
    if site.recipe.pools:
        return 0, 0
    down = sum(tensor_bytes(t.sent, *t.broadcast.values()) for t in tasks)
    return down, sum(tensor_bytes(u.tensors, *u.reports.values()) for u in updates)


def tensor_bytes(*groups: Tensors) -> int:
    return sum(t.numel() * t.element_size() for tensors in groups for t in tensors.values())


def has_global_model(site: Site) -> bool:
    """Whether the shared entries alone are a model: what is private was never trained."""
    trained = set().union(*(p.trains.names(site.module) for p in site.recipe.trains))
    return trained <= site.shared


def has_personal_models(site: Site) -> bool:
    """Whether clients end with models of their own."""
    kept = site.recipe.keeps.names(site.module)
    own = site.has_personal_phase or site.recipe.aggregates.per_client or bool(kept)
    return own or not has_global_model(site)


def primary_model(site: Site) -> ModelKind:
    return "personal" if has_personal_models(site) else "global"


def score(
    site: Site,
    backend: Backend,
    state: ServerState,
    round_number: int,
) -> list[Row]:
    """Score the global and the personal models on everyone they concern."""
    tasks = score_tasks(site, state, round_number)
    return [row for _, rows in scored(site, backend, tasks) for row in rows]


def score_tasks(
    site: Site,
    state: ServerState,
    round_number: int,
    adapt: Adapt | None = None,
    samples: bool = False,
) -> list[tuple[str, ScoreTask]]:
    """On whom which model is scored; adapted, and sample by sample, the main one only."""
    federation = site.federation
    tasks: list[tuple[str, ScoreTask]] = []
    kinds: list[ModelKind] = ["global"] if has_global_model(site) else []
    if has_personal_models(site):
        kinds.append("personal")
    alone = adapt is not None or samples
    if alone:
        kinds = [primary_model(site)]
    for model in kinds:
        for on, clients in (("seen", federation.clients), ("unseen", federation.unseen)):
            for client in clients:
                # A client left out of training may choose rounds, but nothing is made of it later.
                both = on == "seen" or not alone
                splits = ("validation", "test") if both else ("test",)
                sent = state.shared if model == "global" else state.sent_to(client.name)
                task = ScoreTask(client.name, round_number, sent, model, splits, adapt, samples)
                tasks.append((on, task))
        if model == "global" and not alone and len(federation.central_test):
            task = ScoreTask(CENTRAL, round_number, state.shared, model, ("test",))
            tasks.append(("central", task))
    return tasks


def scored(
    site: Site, backend: Backend, tasks: Sequence[tuple[str, ScoreTask]]
) -> list[tuple[Scored, list[Row]]]:
    """What came of each task, and its rows."""
    results = backend.score([task for _, task in tasks])
    return [
        (result, _rows(site, on, task, result))
        for (on, task), result in zip(tasks, results, strict=True)
    ]


def _rows(site: Site, on: str, task: ScoreTask, result: Scored) -> list[Row]:
    rows = []
    for split, scores in result.scores.items():
        if task.client == CENTRAL:
            count = len(site.federation.central_test)
        else:
            count = len(site.clients[task.client].split(split))
        for metric, value in scores.items():
            rows.append(
                Row(
                    stage=site.stage, round=task.round, model=task.model, on=on,
                    client=task.client, adapted=task.adapt.label if task.adapt else "none",
                    split=split, metric=metric, value=value, n=count,
                )
            )  # fmt: skip
    return rows


def measured_rows(site: Site, state: ServerState, round_number: int) -> list[Row]:
    """What the server found out about single clients while it aggregated."""
    return [
        Row(
            stage=site.stage, round=round_number, model="personal", on="seen", client=client,
            adapted="none", split="server", metric=metric, value=value, n=0,
        )
        for client, numbers in sorted(state.measured.items())
        for metric, value in numbers.items()
    ]  # fmt: skip


def validation_score(rows: Sequence[Row], site: Site) -> float:
    """The mean over clients of the main metric on validation data; NaN where there are none."""
    values = [
        row.value
        for row in rows
        if row.split == "validation"
        and row.on == "seen"
        and row.model == primary_model(site)
        and row.metric == site.recipe.objective.primary
    ]
    return sum(values) / len(values) if values else math.nan
