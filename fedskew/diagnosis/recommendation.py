"""From a bake-off to a recommendation: a method or none, and the evidence on test data.

Methods were judged on validation data only. Test data are looked at here, once, for the method that
was best there, its runner-up and training alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedskew.comparisons.at_once import Wanted
from fedskew.comparisons.bakeoff import BakeOff, attempted
from fedskew.comparisons.budget import Spent, total
from fedskew.comparisons.candidates import Candidate, Field
from fedskew.comparisons.judging import judge, way_used
from fedskew.comparisons.paired import (
    Against,
    ClientGain,
    Side,
    against_alone,
    gain_of_models,
    judged,
    side_of,
)
from fedskew.comparisons.runner import Runner
from fedskew.config import Config
from fedskew.diagnosis.carry_out import diagnose
from fedskew.diagnosis.report import Diagnosis
from fedskew.errors import FedskewError, RunStopped
from fedskew.federate.metrics import plain_mean
from fedskew.runs.experiment import Run

Answer = Literal["federate", "stay alone", "cannot tell"]


@dataclass(frozen=True)
class Tried:
    """How far a candidate came: its validation score there, and who it is in the end."""

    name: str
    rounds: int
    validation: float
    spent: Spent
    why_ended: str = ""


@dataclass(frozen=True)
class Recommendation:
    """What to do, and why.

    ``method`` is what to use: where the answer is "stay alone", training alone; where it is "cannot
    tell", what was best on validation data. ``best`` is the best federated method, ``runner_up``
    the next, None if only one was left. ``gain`` holds ``best`` against training alone, and
    ``over_runner_up`` against the runner-up, on test data.
    """

    answer: Answer
    method: str
    settings: Mapping[str, Any]
    best: str
    runner_up: str | None
    alone: str
    gain: Against
    over_runner_up: Against | None
    scores: Mapping[str, float]
    metric: str
    higher_is_better: bool
    seeds: tuple[int, ...]
    tried: tuple[Tried, ...]
    rungs: tuple[int, ...]
    left_out: Mapping[str, str]
    spent: Spent
    minutes: float
    full_rounds: int
    diagnosis: Diagnosis | None
    no_diagnosis: str
    runs: Mapping[str, str]

    @property
    def losers(self) -> list[ClientGain]:
        """Clients that score below themselves trained alone, the largest loss first."""
        worse = [client for client in self.gain.clients if client.is_worse]
        return sorted(worse, key=lambda client: client.gain.mean)


def recommended(runner: Runner, entered: Field, found: BakeOff, seeds: int = 1) -> Recommendation:
    """The verdict on a finished bake-off; finalists are trained with further ``seeds`` first."""
    alone = entered.alone
    by_name = {each.name: each for each in entered.candidates}
    contenders = [name for name in found.order if name != alone.name]
    best, runner_up = contenders[0], next(iter(contenders[1:]), None)
    finalists = [by_name[name] for name in (best, runner_up, alone.name) if name]
    runs = _of_seeds(runner, finalists, seeds)
    sides = {
        each.name: [side_of(r, found.metric, way_used(r, each.tuned)) for r in runs[each.name]]
        for each in finalists
    }
    higher = found.higher_is_better
    gain = held_against(sides[best], sides[alone.name], found.metric, higher)
    over = runner_up and held_against(sides[best], sides[runner_up], found.metric, higher)
    answer = answered(gain, found.order[0] == alone.name)
    method = alone.name if answer == "stay alone" else best
    diagnosis, no_diagnosis = _diagnosis(runner, alone.config)
    more = {
        f"{name}, {place}": judge(run, by_name[name].tuned).spent
        for name, group in runs.items()
        for place, run in enumerate(group[1:])
    }
    return Recommendation(
        answer=answer,
        method=method,
        settings=by_name[method].config.method.model_dump(),
        best=best,
        runner_up=runner_up,
        alone=alone.name,
        gain=gain,
        over_runner_up=over or None,
        scores={name: _mean_score(its) for name, its in sides.items()},
        metric=found.metric,
        higher_is_better=higher,
        seeds=tuple(run.result["seed"] for run in runs[best]),
        tried=_tried(entered, found),
        rungs=tuple(rung.rounds for rung in found.rungs),
        left_out=entered.left_out,
        spent=found.spent + total(more),
        minutes=found.elapsed / 60,
        full_rounds=len(entered.candidates) * alone.config.train.rounds,
        diagnosis=diagnosis,
        no_diagnosis=no_diagnosis,
        runs={name: str(group[0].path) for name, group in runs.items()},
    )


def _mean_score(sides: Sequence[Side]) -> float:
    """Over seeds, of the mean over clients, each counting the same."""
    return plain_mean([plain_mean([*side.scores.values()]) for side in sides])


def answered(gain: Against, alone_was_best: bool) -> Answer:
    """What the evidence says: to federate takes a gain on test data, and none is a reason not to.

    ``alone_was_best`` is about validation data: if test data say otherwise, nobody can tell.
    """
    if gain.verdict in ("tie", "worse"):
        return "stay alone"
    if alone_was_best:
        return "cannot tell" if gain.verdict == "better" else "stay alone"
    return "federate" if gain.verdict == "better" else "cannot tell"


def held_against(
    ours: Sequence[Side], others: Sequence[Side], metric: str, higher: bool
) -> Against:
    """A method against another; of one seed only chance in test samples can be counted."""
    found = against_alone(ours, others, metric, higher)
    if len(ours) > 1:
        return found
    gain = gain_of_models(ours[0], others[0], higher)
    equal = all(client.gain.mean == 0 for client in found.by_seed)
    return replace(found, gain=gain, verdict=judged(gain, found.margin, equal))


def _of_seeds(runner: Runner, finalists: Sequence[Candidate], seeds: int) -> dict[str, list[Run]]:
    """The finished runs of the finalists by name, a run a seed; the split stays the same."""
    wanted: list[tuple[str, Wanted]] = []
    for each in finalists:
        for seed in range(each.config.seed, each.config.seed + seeds):
            name = each.name if seed == each.config.seed else f"{each.name}, seed {seed}"
            wanted.append((each.name, Wanted(_with_seed(each.config, seed), name, draw=False)))
    if seeds > 1 and runner.tell:
        runner.tell(f"the finalists again, with {seeds - 1} further seeds")
    found: dict[str, list[Run]] = {}
    done_all = attempted(runner, [each for _, each in wanted])
    for (name, ordered), done in zip(wanted, done_all, strict=True):
        if done is None:
            raise RunStopped(f"{ordered.name} stopped: {runner.stopped[ordered.name]}")
        found.setdefault(name, []).append(done)
    return found


def _with_seed(config: Config, seed: int) -> Config:
    """The same clients and splits, trained with another seed."""
    if seed == config.seed:
        return config
    section = config.federation.model_copy(update={"seed": config.split_seed})
    return config.model_copy(update={"seed": seed, "federation": section})


def _diagnosis(runner: Runner, config: Config) -> tuple[Diagnosis | None, str]:
    try:
        return diagnose(runner.federation(config)), ""
    except FedskewError as error:
        return None, str(error)


def _tried(entered: Field, found: BakeOff) -> tuple[Tried, ...]:
    """Everybody, those who came furthest and did best first."""
    lines: list[Tried] = []
    for rung in reversed(found.rungs):
        best_first = sorted(
            rung.judged, key=lambda name: rung.judged[name].score.value,
            reverse=found.higher_is_better,
        )  # fmt: skip
        known = {line.name for line in lines}
        lines += [
            Tried(name, rung.rounds, its.score.value, its.spent)
            for name in best_first
            if name not in known
            for its in [rung.judged[name]]
        ]
    lines += [
        Tried(name, 0, float("nan"), Spent(), f"every client scored as under {twin}")
        for name, twin in found.twins.items()
        if name not in found.latest
    ]
    lines += [
        Tried(name, 0, float("nan"), Spent(), f"stopped: {why}")
        for name, why in found.stopped.items()
        if name not in found.latest
    ]
    return tuple(lines)
