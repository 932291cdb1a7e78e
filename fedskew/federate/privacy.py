"""What a finished recipe tells about a client: all that leaves it, and its ε or why it has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fedskew.federate.recipe import Recipe, Stage
from fedskew.parts.accounting import Noising, epsilon
from fedskew.parts.objective import MOMENTARY
from fedskew.parts.select import EVERYTHING, NOTHING

PARAMETERS = "model parameters"


@dataclass(frozen=True)
class Sent:
    """One thing that leaves the clients of a stage, and what bounds it, if anything does."""

    stage: str
    what: str
    noising: Noising | None = None


@dataclass(frozen=True)
class Course:
    """How a stage went: for how many rounds, and how many clients took part in each."""

    stage: Stage
    rounds: int
    per_round: int


def sent_in(stage: Stage) -> Iterator[Sent]:
    """All that clients send to be trained on: models, reports, and what a stage hands over.

    Scores and findings travel as well, to be read by people; no promise is made of them.
    """
    recipe = stage.recipe
    if recipe.pools:
        # Where the server invents what it trains on, clients have no part in it.
        if recipe.invents is None:
            yield Sent(stage.name, "raw data")
        return
    if recipe.shares != NOTHING:
        yield Sent(stage.name, PARAMETERS, recipe.aggregates.noising)
    for report in (*recipe.reports, *stage.hands_over):
        if report.tells:
            yield Sent(stage.name, report.tells)


def why_no_epsilon(stages: Sequence[Stage]) -> str | None:
    """Why no ε can be given for all these stages together, in a sentence; none where one can."""
    sent = [one for stage in stages for one in sent_in(stage)]
    bare = [one for one in sent if one.noising is None]
    if bare:
        told = [
            f"in stage {stage!r} clients send {' and '.join(one.what for one in group)}"
            for stage, group in groupby(bare, key=lambda one: one.stage)
        ]
        return f"{', '.join(told)}, neither clipped nor noised"
    if silent := [one.stage for one in sent if one.noising and not one.noising.noise]:
        return f"in stage {silent[0]!r} updates are clipped, but no noise is added (noise = 0)"
    return None


def remembers(recipe: Recipe) -> bool:
    """Whether what a client sends may depend on rounds it took part in before."""
    phases = [phase for phase in recipe.trains if phase.model == "shared"]
    objectives = (recipe.objective, *recipe.shared_objectives)
    reads = {name for objective in objectives for name in objective.reads}
    reads |= {name for phase in phases for part in phase.corrects for name in part.reads}
    return (
        (recipe.shares != EVERYTHING and any(p.trains != recipe.shares for p in phases))
        or recipe.begins.personal
        or recipe.packs.remembers
        or bool(recipe.reports)
        or bool(reads - {*MOMENTARY, *recipe.aggregates.broadcasts})
        or any(one.counts_steps or one.remembers for one in objectives)
    )


def spent(courses: Sequence[Course], clients: int) -> dict[str, Any] | None:
    """What a run told about a client at most: its ε, or why there is none; none if unasked for.

    Nobody asked where nothing was clipped. What a client took along from an earlier stage may
    depend on the rounds it took part in there, so several stages count as remembering. Their ε
    and δ add up.
    """
    stages = [course.stage for course in courses]
    bounds = [
        (course, one.noising)
        for course in courses
        for one in sent_in(course.stage)
        if one.noising is not None
    ]
    if not bounds:
        return None
    _, last = bounds[-1]
    delta = sum(noising.delta for _, noising in bounds)
    known = {"delta": delta, "clip": last.clip, "noise": last.noise}
    if why := why_no_epsilon(stages):
        return {"epsilon": None, "why": why, **known}
    memory = len(courses) > 1 or remembers(stages[-1].recipe)
    total = sum(
        epsilon(noising.noise, course.rounds, course.per_round, clients, noising.delta, memory)
        for course, noising in bounds
    )
    return {"epsilon": total, **known}
