"""Effective communication of a suite's arms, beside what the source printed of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedskew.comparisons.costs import Effort
from fedskew.comparisons.statistics import interval
from fedskew.papers.entries import EffortPlan, PrintedEffort
from fedskew.papers.format import Suite
from fedskew.papers.markdown import table
from fedskew.papers.measure import Measured
from fedskew.papers.numbers import cell, readable
from fedskew.papers.scores import CHEAPER, CURVES
from fedskew.papers.verdict import Results

ABOUT = (
    "Effective rounds of a baseline are those until {curve} is best; of a contender, those until "
    "it first reaches the best any baseline had at any time, after the rounds of earlier stages "
    "that share something (†: in some seed it never did, and its own best counts there). All are "
    "counted seed by seed; ± is half the 95 % t-interval."
)
ABOUT_COST = (
    "A client that takes part in every round sends and receives 2 Σ S·R numbers, S parameters in "
    "each of the R effective rounds of a stage. MB are the bytes that travelled, everything "
    "beside parameters included, divided by the number of clients. Costs of the source in "
    "brackets follow from its rounds and parameters, and are not printed there."
)
ABOUT_RATIO = (
    "How many times as much the cheapest baseline costs, in numbers, seed by seed. A contender "
    "that does not reach the best baseline counts one round more than it had, not its own best."
)


def with_rivals(suite: Suite, results: Results) -> dict[tuple[str, str, int], Measured]:
    """The same runs, the contenders among them knowing the baselines they are held against."""
    plan = suite.effort
    if plan is None:
        return dict(results)

    def rivals(setting: str, seed: int) -> tuple[Measured, ...]:
        keys = [(setting, arm, seed) for arm in plan.baselines]
        return tuple(results[key] for key in keys if key in results)

    return {
        (setting, arm, seed): replace(run, rivals=rivals(setting, seed))
        if arm in plan.contenders
        else run
        for (setting, arm, seed), run in results.items()
    }


def efforts(results: Results, setting: str, arm: str) -> list[Effort]:
    """What an arm took, seed by seed; seeds in which it sent or scored nothing are left out."""
    runs = [run for (s, a, _), run in results.items() if (s, a) == (setting, arm)]
    return [run.effort for run in runs if run.effort is not None]


def effort_tables(suite: Suite, settings: Sequence[str], results: Results) -> list[str]:
    """Rounds, parameters, costs and ratios, each beside the source's; nothing where none ran."""
    plan = suite.effort
    if plan is None:
        return []
    found = [
        (setting, arm, efforts(results, setting, arm)) for setting in settings for arm in plan.arms
    ]
    lines = [
        (
            suite.setting(s).label,
            suite.arm(a).label,
            mine,
            _printed(plan, s, a),
            a in plan.contenders,
        )
        for s, a, mine in found
        if mine
    ]
    if not lines:
        return []
    rounds = [
        [setting, arm, *_rounds(mine, contends), _source_rounds(printed)]
        for setting, arm, mine, printed, contends in lines
    ]
    parameters = [
        [setting, arm, *_parameters(mine), *_source_parameters(printed)]
        for setting, arm, mine, printed, _ in lines
    ]
    costs = [
        [setting, arm, _mean(mine, lambda e: e.numbers / 1e6),
         _mean(mine, lambda e: e.bytes / 1e6), _source_cost(printed)]
        for setting, arm, mine, printed, _ in lines
    ]  # fmt: skip
    return [
        ABOUT.format(curve=CURVES[suite.headline]),
        table(
            ("setting", "arm", "preparation", "main stage", "effective rounds", "the source's"),
            rounds,
        ),
        "Parameters a client sends in each round, one way:",
        table(
            ("setting", "arm", "preparation", "main stage", "the source's preparation",
             "the source's main stage"),
            parameters,
        ),
        ABOUT_COST,
        table(("setting", "arm", "numbers (millions)", "MB", "the source's (millions)"), costs),
        *_ratios(suite, plan, settings, results),
    ]  # fmt: skip


def _printed(plan: EffortPlan, setting: str, arm: str) -> PrintedEffort | None:
    return next((p for p in plan.printed if (p.setting, p.arm) == (setting, arm)), None)


def _rounds(mine: Sequence[Effort], contends: bool) -> list[str]:
    mark = " †" if contends and not all(e.reached for e in mine) else ""
    before = _mean(mine, lambda e: e.prepared_rounds, ".1f")
    return [
        before if any(e.prepared for e in mine) else "–",
        _mean(mine, lambda e: e.main.rounds, ".1f"),
        _mean(mine, lambda e: e.rounds, ".1f") + mark,
    ]


def _source_rounds(printed: PrintedEffort | None) -> str:
    if printed is None:
        return "–"
    before, rounds = printed.preparation, printed.rounds
    text = f"{before} + {rounds} = {before + rounds}" if before else str(rounds)
    return f"{text} ({printed.where})"


def _parameters(mine: Sequence[Effort]) -> list[str]:
    before = [stage.parameters for stage in mine[0].prepared]
    return [" + ".join(map(_whole, before)) or "–", _whole(mine[0].main.parameters)]


def _source_parameters(printed: PrintedEffort | None) -> list[str]:
    if printed is None:
        return ["–", "–"]
    before = _whole(printed.preparation_parameters) if printed.preparation else "–"
    return [before, _whole(printed.parameters)]


def _whole(number: float) -> str:
    return "–" if math.isnan(number) else f"{number:,.0f}"


def _source_cost(printed: PrintedEffort | None) -> str:
    if printed is None:
        return "–"
    computed = f"({printed.computed / 1e6:.2f})"
    return computed if printed.cost is None else f"{printed.cost / 1e6:.4g} {computed}"


def _mean(mine: Sequence[Effort], of: Callable[[Effort], float], style: str = "") -> str:
    found = interval([of(effort) for effort in mine])
    if math.isnan(found.mean):
        return "–"
    style = style or readable(found.mean)
    half = f" ± {found.half:{style}}" if math.isfinite(found.half) else ""
    return f"{found.mean:{style}}{half}"


def _ratios(suite: Suite, plan: EffortPlan, settings: Sequence[str], results: Results) -> list[str]:
    rows = []
    for setting in settings:
        for arm in plan.contenders:
            runs = [run for (s, a, _), run in results.items() if (s, a) == (setting, arm)]
            ours = interval([run.score(CHEAPER) for run in runs])
            if math.isnan(ours.mean):
                continue
            missed = sum(run.effort is not None and not run.effort.reached for run in runs)
            rows.append(
                [suite.setting(setting).label, suite.arm(arm).label, cell(ours, CHEAPER, False),
                 f"{len(runs) - missed} of {len(runs)}", _source_ratio(plan, setting, arm)]
            )  # fmt: skip
    if not rows:
        return []
    heads = ("setting", "contender", "times cheaper", "seeds in which it got there",
             "by the source's costs")  # fmt: skip
    return [ABOUT_RATIO, table(heads, rows)]


def _source_ratio(plan: EffortPlan, setting: str, arm: str) -> str:
    mine = _printed(plan, setting, arm)
    others = [found for a in plan.baselines if (found := _printed(plan, setting, a)) is not None]
    if mine is None or not others:
        return "–"
    return f"{min(other.numbers for other in others) / mine.numbers:.2f}"
