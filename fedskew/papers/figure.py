"""The figure of each setting: every arm with its interval and curve, and the numbers as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.canvas import (
    ROLES,
    blank_figure,
    draw_line,
    grid,
    legend_beside,
    line_styles,
    rounds_axis,
    save_figure,
)
from fedskew.comparisons.statistics import Interval, interval
from fedskew.papers.entries import Series
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.measure import Measured
from fedskew.papers.scores import Headline, ScoreName
from fedskew.papers.verdict import Results
from fedskew.store import make_folder, write_csv
from fedskew.views.similarity import draw_similarity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIELDS = ("arm", "role", "seeds", "mean", "low", "high")
TOO_TALL = 20
"""A curve that climbs this many times the others' range would flatten them: it is cut off."""
AXES: dict[Headline, str] = {
    "clients": "mean over clients",
    "central": "global model, central test set",
    "ood": "out of domain",
}


def draw(
    suite: Suite, plan: Sequence[Cell], results: Results, folder: Path
) -> dict[str, list[Path]]:
    """Write the PNGs of every setting, a CSV beside each; returns the pictures by setting."""
    make_folder(folder)
    pictures: dict[str, list[Path]] = {}
    for setting in dict.fromkeys(cell.setting for cell in plan):
        arms = dict.fromkeys(cell.arm for cell in plan if cell.setting == setting)
        spans = {arm: over_seeds(results, setting, arm, suite.headline) for arm in arms}
        write_csv(folder / f"{setting}.csv", _table(suite, spans))
        curves = {arm: mean_curve(results, setting, arm) for arm in arms}
        write_csv(folder / f"{setting}-curves.csv", _curve_table(curves))
        pictures[setting] = [folder / f"{setting}.png"]
        known = next((m for (s, _, _), m in results.items() if s == setting), None)
        drawn = {arm: curves[arm] for arm in suite.drawn(arms)}
        save_figure(_figure(suite, setting, spans, drawn, known), pictures[setting][0])
        shown = results.get((setting, suite.shows, 0)) if suite.shows else None
        if shown and shown.folder:
            title = f"{suite.setting(setting).label}, seed 0, {suite.arm(suite.shows).label}"
            file = f"{setting}-similarity"
            pictures[setting].append(
                draw_similarity(shown.folder.path, "similarity", folder, file, title)
            )
    return pictures


def draw_series(suite: Suite, results: Results, folder: Path) -> dict[str, Path]:
    """A PNG and a CSV for every series of settings of which at least two were run."""
    pictures = {}
    for series in suite.series:
        points = series_points(series, results, suite.headline)
        if len({at for _, _, at, _ in points}) < 2:
            continue
        rows = [(arm, score, at, s.n, s.mean, s.low, s.high) for arm, score, at, s in points]
        heads = ("arm", "score", "at", "seeds", "mean", "low", "high")
        write_csv(folder / f"{series.name}.csv", [heads, *rows])
        pictures[series.name] = folder / f"{series.name}.png"
        save_figure(_series_figure(suite, series, points), pictures[series.name])
    return pictures


Point = tuple[str, ScoreName, float, Interval]
"""An arm, a score of it, where on the axis, and the score over seeds."""
SERIES_SCORES: dict[Headline, dict[ScoreName, str]] = {
    "clients": {"clients": "as trained", "fine-tuned": "after fine-tuning"},
    "central": {"central": "after the last round", "first": "after the first scored round"},
    "ood": {"ood": "out of domain", "clients": "clients' own tests"},
}


def series_points(series: Series, results: Results, headline: Headline = "clients") -> list[Point]:
    found = []
    for arm in series.arms:
        for score in SERIES_SCORES[headline]:
            for setting, at in zip(series.settings, series.at, strict=True):
                span = over_seeds(results, setting, arm, score)
                if not math.isnan(span.mean):
                    found.append((arm, score, at, span))
    return found


def _series_figure(suite: Suite, series: Series, points: Sequence[Point]) -> Figure:
    """The arms' means only: a dozen intervals over each other hide them; the tables have those."""
    figure = blank_figure(12, 4.2)
    scores = SERIES_SCORES[suite.headline]
    panels = figure.subplots(1, len(scores), sharey=True)
    styles = line_styles([suite.arm(arm).role for arm in series.arms])
    ticks = sorted({at for _, _, at, _ in points})
    for axes, (wanted, title) in zip(panels, scores.items(), strict=True):
        for arm, (colour, dashes) in zip(series.arms, styles, strict=True):
            mine = [(at, s.mean) for a, score, at, s in points if (a, score) == (arm, wanted)]
            label = suite.arm(arm).label if wanted == suite.headline else None
            draw_line(axes, [at for at, _ in mine], [m for _, m in mine], colour, label, dashes)
        axes.set_title(title, fontsize=10)
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{at:g}" for at in ticks])
        axes.minorticks_off()
        axes.set_xlabel(series.axis)
        grid(axes)
    panels[0].set_ylabel(
        "mean over clients and seeds, last round"
        if suite.headline == "clients"
        else f"{AXES[suite.headline]}, mean over seeds"
    )
    legend_beside(figure)
    figure.suptitle(series.label)
    return figure


def over_seeds(results: Results, setting: str, arm: str, score: ScoreName = "clients") -> Interval:
    """A score after the last round."""
    found = [m.score(score) for (s, a, _), m in results.items() if (s, a) == (setting, arm)]
    return interval(found)


def mean_curve(results: Results, setting: str, arm: str) -> dict[int, float]:
    """The headline score round by round, mean over the seeds."""
    curves = [m.curve for (s, a, _), m in results.items() if (s, a) == (setting, arm)]
    shared = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {n: sum(curve[n] for curve in curves) / len(curves) for n in sorted(shared)}


def _table(suite: Suite, spans: dict[str, Interval]) -> list[tuple[object, ...]]:
    rows = [(arm, suite.arm(arm).role, s.n, s.mean, s.low, s.high) for arm, s in spans.items()]
    return [FIELDS, *rows]


def _curve_table(curves: dict[str, dict[int, float]]) -> list[tuple[object, ...]]:
    rows = [(arm, number, value) for arm, c in curves.items() for number, value in c.items()]
    return [("arm", "round", "mean"), *rows]


def too_tall(curves: dict[str, dict[int, float]]) -> tuple[list[str], float, float]:
    """Arms whose curves leave the range of the others far behind, and that range.

    At most half of the arms: what most do is what there is to see.

    >>> too_tall({"a": {1: 5.0, 2: 3.0}, "b": {1: 4.0, 2: 2.0}, "c": {1: 90.0, 2: 3.0}})
    (['c'], 2.0, 5.0)
    """
    values = {arm: [v for v in c.values() if not math.isnan(v)] for arm, c in curves.items()}
    order = sorted((arm for arm in values if values[arm]), key=lambda arm: max(values[arm]))
    for count in range(len(order) // 2, 0, -1):
        tall = order[-count:]
        others = [value for arm in order[:-count] for value in values[arm]]
        low, high = min(others), max(others)
        if low < high and max(values[tall[0]]) - low > TOO_TALL * (high - low):
            return tall, low, high
    return [], math.nan, math.nan


def _figure(
    suite: Suite,
    setting: str,
    spans: dict[str, Interval],
    curves: dict[str, dict[int, float]],
    known: Measured | None,
) -> Figure:
    axis = AXES[suite.headline]
    if known and suite.headline != "clients":
        axis = f"{known.result['primary_metric']}, {axis}"
    spans = {arm: spans[arm] for arm in curves if math.isfinite(spans[arm].mean)}
    figure = blank_figure(13, 1.4 + 0.32 * max(len(spans), 6))
    left, right = figure.subplots(1, 2)
    _intervals(left, suite, spans)
    left.set_xlabel(f"{axis}, last round, 95 % interval over seeds")
    styles = line_styles([suite.arm(arm).role for arm in curves])
    for (arm, curve), (colour, dashes) in zip(curves.items(), styles, strict=True):
        if curve:
            label = suite.arm(arm).label
            draw_line(right, list(curve), list(curve.values()), colour, label, dashes)
    rounds_axis(right)
    right.set_ylabel(axis)
    falls = known is not None and not known.higher_is_better(suite.headline)
    tall, low, high = too_tall(curves) if falls else ([], 0.0, 0.0)
    if tall:
        right.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        names = ", ".join(suite.arm(arm).label for arm in tall)
        right.set_ylabel(f"{axis}\n(cut off: {names})")
    legend_beside(figure)
    figure.suptitle(suite.setting(setting).label)
    return figure


def _intervals(axes: Axes, suite: Suite, spans: dict[str, Interval]) -> None:
    """One row per arm: its mean and interval, in the colour of its role."""
    for place, (arm, span) in enumerate(spans.items()):
        half = span.half if span.n > 1 else 0.0
        colour = ROLES[suite.arm(arm).role]
        axes.errorbar(span.mean, place, xerr=half, fmt="o", color=colour, capsize=3)
    axes.set_yticks(range(len(spans)), [suite.arm(arm).label for arm in spans])
    axes.invert_yaxis()
    grid(axes, "x")


def row_panels(count: int, rows: int, below: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Panels with rows of bars or boxes, three side by side, and room for a legend below."""
    across = min(3, count)
    down = math.ceil(count / across)
    figure = blank_figure(2.2 + 3.6 * across, below + down * (1.2 + 0.36 * rows))
    panels = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]
