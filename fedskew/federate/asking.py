"""What clients are asked in a round: who trains, who scores, and which states they have to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedskew.federate.plan import Plan
from fedskew.federate.progress import Handed, Progress, Trained
from fedskew.federate.roster import Roster
from fedskew.federate.rows import broadcast_of, score_tasks
from fedskew.federate.tasks import Ask, TrainTask
from fedskew.rng import stream

Keep = Mapping[str, tuple[str, ...]]
"""By client, the labels of states that it may be asked to begin from again."""


def goes_back_to(committed: Progress, handed: Handed | None = None) -> Keep:
    """The states of the committed and the selected round, from which a run may go on again.

    Before the first round that is what the stage before left, which is then handed over again.
    """
    before = handed.before if handed and committed.round == 0 else {}
    sources = (committed.kept_then, committed.kept, before)
    clients = {client for labels in sources for client in labels}
    return {c: tuple({labels[c]: None for labels in sources if labels.get(c)}) for c in clients}


def score_asks(plan: Plan, roster: Roster, trained: Trained, keep: Keep) -> list[Ask]:
    """Score the models of a round, on everybody."""
    asked = score_tasks(plan, roster, trained.state, trained.round)
    return [
        Ask(client, tuple(tasks), since=trained.kept.get(client, ""), keep=keep.get(client, ()))
        for client, tasks in asked.items()
    ]


def with_scores(asks: Sequence[Ask], scores: Sequence[Ask]) -> list[Ask]:
    """What clients are asked to train, and before that to score: one ask for each client."""
    trains = {ask.client: ask for ask in asks}
    both = [
        replace(trains.pop(ask.client), scores=ask.scores) if ask.client in trains else ask
        for ask in scores
    ]
    return [*both, *trains.values()]


def train_asks(
    plan: Plan,
    begins: Progress | Trained,
    keep: Keep,
    clients: Sequence[str],
    lr_factor: float,
) -> list[Ask]:
    """Train the next round."""
    number, state = begins.round + 1, begins.state
    broadcast = broadcast_of(plan, state)
    return [
        Ask(
            client,
            train=TrainTask(client, number, state.sent_to(client), broadcast, lr_factor),
            since=begins.kept.get(client, ""),
            until=plan.label(number),
            keep=keep.get(client, ()),
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
