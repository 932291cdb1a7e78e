"""From finished runs to the rows of a leaderboard: scores, traffic, and what it took."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedskew.comparisons.costs import Effort, Spending, efforts_of_all, spending
from fedskew.errors import RunError
from fedskew.runs.experiment import Run
from fedskew.views.leaderboard import Effective, Spread, Standing


def standings(
    runs: Mapping[str, Sequence[Run]], roles: Mapping[str, str | None], metric: str, higher: bool
) -> tuple[Standing, ...]:
    """Every method's row, the best first.

    ``runs`` holds each method's, one a seed; ``roles`` says which reference it is, if it is one.
    """
    contenders = {name: group for name, group in runs.items() if roles[name] is None}
    efforts = _efforts(contenders, metric, higher)

    def rank(standing: Standing) -> tuple[bool, float]:
        mean = standing.score.mean
        return math.isnan(mean), -mean if higher else mean

    rows = [
        _standing(name, roles[name], group, metric, _effective(efforts.get(name, ())))
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
                f"method {name!r} has no accuracy, so it cannot stand beside the others."
            )
    return "accuracy", True


def _efforts(
    runs: Mapping[str, Sequence[Run]], metric: str, higher: bool
) -> dict[str, list[Effort]]:
    """By method, seed by seed: what it took to score what the best other method ever scored."""

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
    numbers = _mean(e.numbers for e in efforts)
    return Effective(
        rounds=_mean(e.rounds for e in efforts),
        own_best=sum(not e.reached for e in efforts),
        megabytes=_mean(e.bytes for e in efforts) / 1e6,
        parameters=None if math.isnan(numbers) else numbers,
    )


def _standing(
    name: str,
    role: str | None,
    runs: Sequence[Run],
    metric: str,
    effective: Effective | None,
) -> Standing:
    results = [run.result for run in runs]
    model = results[0]["primary_model"]

    def spread(what: str = "mean", **where: str) -> Spread | None:
        found = [_score(result, metric, **{"model": model, **where}) for result in results]
        values = [score[what] for score in found if score is not None]
        return _spread(values) if values else None

    nothing = Spread(math.nan)
    return Standing(
        method=name,
        reference=role is not None,
        model=model,
        score=spread() or nothing,
        last=spread(at="last") or nothing,
        worst=spread("worst") or nothing,
        bottom_decile=spread("bottom_decile") or nothing,
        adapted=spread(adapted="any"),
        central=spread(model="global", on="central"),
        unseen=spread(on="unseen"),
        megabytes=None
        if role == "pooled"
        else _mean(r["bytes"]["up"] + r["bytes"]["down"] for r in results) / 1e6,
        effective=effective,
        seconds=_mean(r["seconds"] for r in results),
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


def _spread(values: Sequence[float]) -> Spread:
    return Spread(_mean(values), statistics.stdev(values) if len(values) > 1 else None)


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(list(values))
