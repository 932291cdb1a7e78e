"""The matrix on a page: a table for each rule of selection, heat maps, and what each side gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedskew.canvas import save_figure
from fedskew.comparisons.selection import MEANING, RULES
from fedskew.comparisons.statistics import Interval, mean, paired
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.markdown import table
from fedskew.papers.measure import Measured
from fedskew.papers.numbers import cell, readable
from fedskew.papers.pairs import Crossing, pair
from fedskew.papers.scores import in_points
from fedskew.papers.verdict import Results
from fedskew.store import write_atomically
from fedskew.views.domains import CENTRAL_TEST, UNSEEN, Matrix, picks_of

Runs = Mapping[tuple[str, str, int], Measured]
"""By objective, aggregator and seed."""

ABOUT = (
    "In a matrix rows are what clients minimise, columns who aggregates. Numbers are means over "
    "seeds, ± is half the 95 % t-interval, the best of a table is bold. A rule of selection says "
    "which round's model counts:"
)
ABOUT_GAINS = (
    "Differences between two pairs on the same seed that share the other side; positive is better, "
    "± is half the 95 % t-interval over the seeds' means, bold is what it keeps apart from zero. "
    "They are not corrected for their number: of twenty one is bold by chance."
)


def about_rules() -> list[str]:
    """What the tables of a matrix show, in words."""
    return [ABOUT, "\n".join(f"- {rule}: {MEANING[rule]}." for rule in RULES)]


def pair_runs(suite: Suite, setting: str, results: Results) -> Runs:
    """The runs of a setting that are of its pairs."""
    crossing = suite.matrix
    if crossing is None:
        return {}
    names = {pair(o, a): (o, a) for o in crossing.rows for a in crossing.columns}
    found = {
        (*names[arm], seed): run
        for (where, arm, seed), run in results.items()
        if where == setting and arm in names
    }
    order = list(names.values())
    return dict(sorted(found.items(), key=lambda item: order.index(item[0][:2])))


def matrix_of(runs: Runs) -> Matrix:
    """What each rule of selection chose; an objective or aggregator without any run is left out."""
    first = next(iter(runs.values()))
    return Matrix(
        objectives=tuple(dict.fromkeys(objective for objective, _, _ in runs)),
        aggregators=tuple(dict.fromkeys(aggregator for _, aggregator, _ in runs)),
        metric=first.result["primary_metric"],
        higher_is_better=first.higher_is_better("ood"),
        target=UNSEEN if first.by_round.has("unseen") else CENTRAL_TEST,
        seeds=len({seed for _, _, seed in runs}),
        picks=tuple(
            pick
            for (objective, aggregator, seed), run in runs.items()
            for pick in picks_of((objective, aggregator), seed, run.by_round.selection)
        ),
    )


def matrix_tables(suite: Suite, setting: str, results: Results) -> list[str]:
    """Every rule's table, the score in domain, and both sides' gains; nothing where none ran."""
    runs = pair_runs(suite, setting, results)
    if suite.matrix is None or not runs:
        return []
    matrix, share = matrix_of(runs), next(iter(runs.values())).is_share
    show = partial(cell, score="ood", main_is_share=share)
    parts = [f"#### Out of domain: test {matrix.metric} {matrix.target}"]
    for rule in matrix.rules:
        heads, rows = matrix.table(matrix.scores(rule), show, "**{}**")
        parts += [f"Rule *{rule}*{_remark(runs, rule)}:", table(heads, rows)]
    missing = [rule for rule in RULES if rule not in matrix.rules]
    parts += [f"Without numbers here: rule {', '.join(missing)}."] if missing else []
    within = matrix.scores("validation", in_domain=True)
    if any(not math.isnan(score.mean) for score in within.values()):
        heads, rows = matrix.table(within, show, "**{}**")
        title = f"#### In domain: test {matrix.metric} on the training clients' own data"
        parts += [title, "Rule *validation*:", table(heads, rows)]
    return parts + _gains(matrix, suite.matrix, share)


def _remark(runs: Runs, rule: str) -> str:
    if rule == "left-out":
        folds = max(len(run.folds) for run in runs.values())
        return f" ({folds} of the training clients, one at a time)"
    return " (peeks at the test data)" if rule == "oracle" else ""


def gain_of_objective(matrix: Matrix, objective: str, plain: str, rule: str) -> Interval:
    """Its gain over the plain one: mean over aggregators, then over seeds."""
    return _gain(matrix, (((objective, a), (plain, a)) for a in matrix.aggregators), rule)


def gain_of_aggregator(matrix: Matrix, aggregator: str, usual: str, rule: str) -> Interval:
    """Its gain over the usual one: mean over objectives, then over seeds."""
    return _gain(matrix, (((o, aggregator), (o, usual)) for o in matrix.objectives), rule)


def _gain(
    matrix: Matrix, pairs: Iterable[tuple[tuple[str, str], tuple[str, str]]], rule: str
) -> Interval:
    """The mean over pairs of pairs on the same seed, paired by seed."""
    known = {(p.objective, p.aggregator, p.seed): p.ood for p in matrix.picks if p.rule == rule}
    ours: dict[int, list[float]] = {}
    theirs: dict[int, list[float]] = {}
    for mine, other in pairs:
        for (objective, aggregator, seed), value in known.items():
            if (objective, aggregator) == mine and (*other, seed) in known:
                ours.setdefault(seed, []).append(value)
                theirs.setdefault(seed, []).append(known[*other, seed])
    mean_ours, mean_theirs = ([mean(v) for v in side.values()] for side in (ours, theirs))
    if matrix.higher_is_better:
        return paired(mean_ours, mean_theirs)
    return paired(mean_theirs, mean_ours)


def _gains(matrix: Matrix, crossing: Crossing, share: bool) -> list[str]:
    """What it changes to replace the plain objective, and the mean at the server."""
    sides: list[tuple[str, str, str, Sequence[str], Callable[[Matrix, str, str, str], Interval]]]
    sides = [
        ("objective", crossing.plain, "aggregators", matrix.objectives, gain_of_objective),
        ("aggregator", crossing.mean, "objectives", matrix.aggregators, gain_of_aggregator),
    ]
    parts = []
    for side, reference, others, names, gain in sides:
        rows = [
            [n, *(_shown_gain(gain(matrix, n, reference, rule), share) for rule in matrix.rules)]
            for n in names
            if n != reference
        ]
        if matrix.rules and reference in names and rows:
            parts += [
                f"Each {side} against {reference}, mean over the {others} both ran with:",
                table((side, *matrix.rules), rows),
            ]
    return ["#### What each side gains out of domain", ABOUT_GAINS, *parts] if parts else []


def _shown_gain(found: Interval, share: bool) -> str:
    if math.isnan(found.mean):
        return "–"
    points = in_points("ood", share)
    factor, style = (100.0, ".2f") if points else (1.0, readable(found.mean))
    text = f"{factor * found.mean:+{style}}"
    if math.isfinite(found.half):
        text += f" ± {factor * found.half:{style}}"
    # Seeds that all agree have no spread to tell them from zero by.
    apart = abs(found.mean) > found.half and not found.is_constant
    return f"**{text}**" if apart else text


def draw_maps(
    suite: Suite, plan: Sequence[Cell], results: Results, folder: Path
) -> dict[str, Path]:
    """By setting: heat maps, one for each rule that has numbers; a CSV of all seeds beside them."""
    pictures = {}
    for setting in dict.fromkeys(place.setting for place in plan):
        runs = pair_runs(suite, setting, results)
        matrix = matrix_of(runs) if runs else None
        if matrix is None or not matrix.rules:
            continue
        write_atomically(folder / f"{setting}-matrix.csv", matrix.to_csv().encode())
        figure = matrix.picture().draw()
        label = suite.setting(setting).label
        figure.suptitle(f"{label}: test {matrix.metric} {matrix.target}", fontsize=11)
        pictures[setting] = folder / f"{setting}-matrix.png"
        save_figure(figure, pictures[setting])
    return pictures
