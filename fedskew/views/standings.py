"""From finished runs to the rows of a leaderboard: scores, traffic and effective rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedskew.comparisons.costs import Effort, Spending, efforts_of_all, spending
from fedskew.comparisons.paired import MARGIN, Against, against_alone, side_of
from fedskew.comparisons.statistics import Interval, interval, mean
from fedskew.errors import RunError
from fedskew.runs.experiment import Run
from fedskew.views.leaderboard import Effective, Standing


def standings(
    runs: Mapping[str, Sequence[Run]],
    roles: Mapping[str, str | None],
    metric: str,
    higher: bool,
    margin: float = MARGIN,
) -> tuple[Standing, ...]:
    """Every method's row, the best first.

    ``runs`` holds each method's runs, one per seed; ``roles`` says which methods are references.
    Gains over training alone within the ``margin`` are ties.
    """
    contenders = {name: group for name, group in runs.items() if roles[name] is None}
    efforts = _efforts(contenders, metric, higher)

    alone = next((group for name, group in runs.items() if roles[name] == "alone"), ())
    its = [side_of(run, metric) for run in alone]

    def against(group: Sequence[Run]) -> Against | None:
        if group is alone or not its:
            return None
        return against_alone([side_of(r, metric) for r in group], its, metric, higher, margin)

    def rank(standing: Standing) -> tuple[bool, float]:
        score = standing.score.mean
        return math.isnan(score), -score if higher else score

    rows = [
        _standing(
            name,
            roles[name],
            group,
            metric,
            against(group),
            _effective(efforts.get(name, ())),
        )
        for name, group in runs.items()
    ]
    return tuple(sorted(rows, key=rank))


def common_metric(runs: Mapping[str, Sequence[Run]]) -> tuple[str, bool]:
    """The metric all methods can be ranked by, and whether more of it is better.

    It is their main one, or else accuracy.
    """
    results = {name: [run.result for run in group] for name, group in runs.items()}
    mains = {
        (r["primary_metric"], r["higher_is_better"]) for group in results.values() for r in group
    }
    if len(mains) == 1:
        return mains.pop()
    for name, group in results.items():
        if not all(any(s["metric"] == "accuracy" for s in r["scores"]) for r in group):
            raise RunError(
                f"method {name!r} has no accuracy, so it cannot be ranked with the others."
            )
    return "accuracy", True


def _efforts(
    runs: Mapping[str, Sequence[Run]], metric: str, higher: bool
) -> dict[str, list[Effort]]:
    """By method and seed: the cost until it reaches the best score of any other method."""

    def spent(one: Run) -> Spending:
        result = one.result
        scored = one.results.as_trained.where(
            model=result["primary_model"], metric=metric, on="seen", split="test"
        )
        return spending(result, one.results.records, scored.curve(np.mean), higher)

    found: dict[str, list[Effort]] = {name: [] for name in runs}
    for together in zip(*runs.values(), strict=True):
        seed = dict(zip(runs, map(spent, together), strict=True))
        for name, effort in efforts_of_all(seed).items():
            found[name] += [] if effort is None else [effort]
    return found


def _effective(efforts: Sequence[Effort]) -> Effective | None:
    if not efforts:
        return None
    numbers = mean(e.numbers for e in efforts)
    return Effective(
        rounds=mean(e.rounds for e in efforts),
        own_best=sum(not e.reached for e in efforts),
        megabytes=mean(e.bytes for e in efforts) / 1e6,
        parameters=None if math.isnan(numbers) else numbers,
    )


def _standing(
    name: str,
    role: str | None,
    runs: Sequence[Run],
    metric: str,
    against: Against | None,
    effective: Effective | None,
) -> Standing:
    results = [run.result for run in runs]
    model = results[0]["primary_model"]

    def over_seeds(what: str = "mean", **where: str) -> Interval | None:
        found = [_score(result, metric, **{"model": model, **where}) for result in results]
        values = [score[what] for score in found if score is not None]
        return interval(values) if values else None

    nothing = interval([])
    return Standing(
        method=name,
        reference=role is not None,
        model=model,
        score=over_seeds() or nothing,
        against=against,
        last=over_seeds(at="last") or nothing,
        worst=over_seeds("worst") or nothing,
        bottom_decile=over_seeds("bottom_decile") or nothing,
        adapted=over_seeds(adapted="any"),
        central=over_seeds(model="global", on="central"),
        unseen=over_seeds(on="unseen"),
        megabytes=None
        if role == "pooled"
        else mean(r["bytes"]["up"] + r["bytes"]["down"] for r in results) / 1e6,
        effective=effective,
        seconds=mean(r["seconds"] for r in results),
        runs=tuple(run.path for run in runs),
    )


def _score(
    result: Mapping[str, Any],
    metric: str,
    *,
    model: str,
    at: str = "selected",
    on: str = "seen",
    adapted: str = "none",
) -> Mapping[str, Any] | None:
    wanted = {"at": at, "model": model, "on": on, "split": "test", "metric": metric}
    for score in result["scores"]:
        plain = score["adapted"] == "none"
        if plain == (adapted == "none") and all(score[k] == v for k, v in wanted.items()):
            return dict(score)
    return None
