"""Which models are scored on whom, and the rows of numbers that come of it."""

from __future__ import annotations

from collections.abc import Sequence

from fedskew.federate.metrics import CENTRAL, Row
from fedskew.federate.plan import ModelKind, Plan
from fedskew.federate.roster import Roster
from fedskew.federate.rounds import LOSS, Score
from fedskew.federate.tasks import Answer, Ask, Scored, ScoreTask
from fedskew.parts.aggregate import ServerState
from fedskew.types import Groups


def broadcast_of(plan: Plan, state: ServerState) -> Groups:
    """The groups of the server's memory that travel to clients with the model."""
    return {name: state.memory[name] for name in plan.recipe.aggregates.broadcasts}


def score_tasks(
    plan: Plan,
    roster: Roster,
    state: ServerState,
    round_number: int,
    adapts: Sequence[int | None] = (None,),
    last: bool = False,
    samples: bool = False,
) -> dict[str, list[ScoreTask]]:
    """By client, which models are scored; at the ``last`` look at a run the main one only.

    ``adapts`` are places of adaptations in the plan, none for a model as it is. With ``samples``
    clients write down what a model said of each.
    """
    kinds: list[ModelKind] = ["global"] if plan.has_global_model else []
    if plan.has_personal_models:
        kinds.append("personal")
    if last:
        kinds = [plan.primary_model]
    broadcast = broadcast_of(plan, state)
    asked: dict[str, list[ScoreTask]] = {}
    for member in roster.members:
        # A client left out of training may choose rounds, but nothing is made of it later.
        both = member.seen or not last
        splits = ("validation", "test") if both else ("test",)
        if member.sizes.get("environment") and not last:
            splits = (*splits, "environment")
        if member.sizes.get("keeping") and last:
            splits = (*splits, "keeping")
        for adapt in adapts:
            for model in kinds:
                sent = state.shared if model == "global" else state.sent_to(member.name)
                said = {} if model == "global" else broadcast
                task = ScoreTask(
                    member.name, round_number, sent, model, splits, adapt, samples, said
                )
                asked.setdefault(member.name, []).append(task)
    if "global" in kinds and not last and roster.central:
        asked[CENTRAL] = [ScoreTask(CENTRAL, round_number, state.shared, "global", ("test",))]
    return asked


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


def validation_score(rows: Sequence[Row], plan: Plan) -> Score:
    """What a round is chosen by: the main models on the validation data of those who train."""

    def values(metric: str) -> list[float]:
        return [
            row.value
            for row in rows
            if row.split == "validation"
            and row.on == "seen"
            and row.model == plan.primary_model
            and row.metric == metric
        ]

    return Score.of(values(plan.primary), values(LOSS))
