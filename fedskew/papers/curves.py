"""Curves of a setting: scores by shots, risk by coverage; and arms placed by what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedskew.canvas import (
    PALETTE,
    blank_figure,
    draw_bars,
    draw_line,
    grid,
    legend_beside,
    line_styles,
    save_figure,
)
from fedskew.comparisons.statistics import Interval
from fedskew.papers.entries import Trade
from fedskew.papers.figure import over_seeds
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.reading import COVERAGES
from fedskew.papers.scores import meaning
from fedskew.papers.verdict import Results
from fedskew.store import write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {"unseen": "unseen clients", "odd": "odd clients"}
"""On whom curves of shots are drawn, where there are any."""
Curve = Mapping[str, Interval]
"""By number of shots as it is printed ("0", "2", "all"): a score over seeds."""


def draw_shots(
    suite: Suite, plan: Sequence[Cell], results: Results, folder: Path
) -> dict[str, Path]:
    """By setting with clients that were adapted on few samples: their scores by how many."""
    pictures = {}
    for setting, arms in _arms(suite, plan).items():
        panels = {on: {arm: shot_curve(results, setting, arm, on) for arm in arms} for on in PANELS}
        drawn = {
            on: {arm: curve for arm, curve in curves.items() if len(curve) > 1}
            for on, curves in panels.items()
        }
        drawn = {on: curves for on, curves in drawn.items() if curves}
        if not drawn:
            continue
        rows = [
            (on, arm, shots, s.n, s.mean, s.low, s.high)
            for on, curves in drawn.items()
            for arm, curve in curves.items()
            for shots, s in curve.items()
        ]
        heads = ("on", "arm", "shots", "seeds", "mean", "low", "high")
        write_csv(folder / f"{setting}-shots.csv", [heads, *rows])
        pictures[setting] = folder / f"{setting}-shots.png"
        save_figure(_shots_figure(suite, setting, arms, drawn), pictures[setting])
    return pictures


def _arms(suite: Suite, plan: Sequence[Cell]) -> dict[str, list[str]]:
    """The arms that ran and have curves, by setting."""
    arms: dict[str, dict[str, None]] = {}
    for cell in plan:
        arms.setdefault(cell.setting, {})[cell.arm] = None
    return {setting: suite.drawn(found) for setting, found in arms.items()}


def shot_curve(results: Results, setting: str, arm: str, on: str) -> dict[str, Interval]:
    """A score over seeds for every number of shots; "all" is fine-tuning on everything."""
    runs = [m for (s, a, _), m in results.items() if (s, a) == (setting, arm)]
    shots = sorted({count for run in runs for count in run.shots(on)})
    names = {**{str(count): f"{on}-{count}-shot" for count in shots}, "all": f"{on}-fine-tuned"}
    spans = {shown: over_seeds(results, setting, arm, score) for shown, score in names.items()}
    return {shown: span for shown, span in spans.items() if math.isfinite(span.mean)}


def _shots_figure(
    suite: Suite, setting: str, arms: Sequence[str], drawn: Mapping[str, Mapping[str, Curve]]
) -> Figure:
    figure = blank_figure(3 + 5 * len(drawn), 4.6)
    panels = figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0]
    styles = dict(zip(arms, line_styles([suite.arm(arm).role for arm in arms]), strict=True))
    labelled: set[str] = set()
    for axes, (on, curves) in zip(panels, drawn.items(), strict=True):
        ticks = sorted({shots for curve in curves.values() for shots in curve}, key=_place)
        for number, (arm, curve) in enumerate(curves.items()):
            # Side by side, or the intervals of a dozen arms would hide each other.
            shift = 0.24 * (number / max(len(curves) - 1, 1) - 0.5)
            x, spans = [ticks.index(shots) + shift for shots in curve], list(curve.values())
            label = None if arm in labelled else suite.arm(arm).label
            colour, dashes = styles[arm]
            draw_bars(
                axes, x, [s.mean for s in spans], [s.half for s in spans], colour, label, dashes
            )
            labelled.add(arm)
        # Two seeds have intervals wider than any score can be: what matters are the means.
        means = [s.mean for curve in curves.values() for s in curve.values()]
        room = 0.15 * (max(means) - min(means) or 1.0)
        axes.set_ylim(min(means) - room, max(means) + room)
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_xlabel("labelled samples a class")
        axes.set_title(PANELS[on], fontsize=10)
        grid(axes)
    panels[0].set_ylabel("mean over clients and seeds, 95 % interval (cut off)")
    legend_beside(figure)
    figure.suptitle(f"{suite.setting(setting).label}\nadapting to few samples", fontsize=10)
    return figure


def _place(shots: str) -> float:
    return math.inf if shots == "all" else float(shots)


def draw_coverage(
    suite: Suite, plan: Sequence[Cell], results: Results, folder: Path
) -> dict[str, Path]:
    """By setting with predictions for unseen clients: errors among the surest answers."""
    pictures = {}
    for setting, arms in _arms(suite, plan).items():
        curves = {arm: coverage_curve(results, setting, arm) for arm in arms}
        drawn = {arm: curve for arm, curve in curves.items() if curve is not None}
        if not drawn:
            continue
        rows = [
            (arm, f"{coverage:.2f}", risk)
            for arm, curve in drawn.items()
            for coverage, risk in zip(COVERAGES.tolist(), curve.tolist(), strict=True)
        ]
        write_csv(folder / f"{setting}-coverage.csv", [("arm", "coverage", "risk"), *rows])
        pictures[setting] = folder / f"{setting}-coverage.png"
        save_figure(_coverage_figure(suite, setting, arms, drawn), pictures[setting])
    return pictures


def _coverage_figure(
    suite: Suite, setting: str, arms: Sequence[str], drawn: Mapping[str, NDArray[np.float64]]
) -> Figure:
    figure = blank_figure(8, 4.6)
    axes = figure.subplots()
    styles = line_styles([suite.arm(arm).role for arm in arms])
    for arm, (colour, dashes) in zip(arms, styles, strict=True):
        if arm in drawn:
            draw_line(axes, COVERAGES, drawn[arm], colour, suite.arm(arm).label, dashes)
    axes.set_xlabel("share of samples answered, the surest first")
    axes.set_ylabel("share of errors among them, mean over seeds")
    grid(axes)
    legend_beside(figure)
    figure.suptitle(f"{suite.setting(setting).label}\nunseen clients, not adapted", fontsize=10)
    return figure


def coverage_curve(results: Results, setting: str, arm: str) -> NDArray[np.float64] | None:
    """The risk at every coverage of ``COVERAGES``, mean over the seeds."""
    risks = [
        run.outcome.risks
        for (where, who, _), run in results.items()
        if (where, who) == (setting, arm) and run.outcome.risks
    ]
    return np.mean(risks, axis=0) if risks else None


Point = tuple[str, Interval, Interval]
"""An arm, where it stands on the axis, and its score."""


def trade_points(trade: Trade, results: Results, score: str) -> list[Point]:
    """The arms that have the score, in the order of the axis; the ones without a place last."""
    found = [
        (
            arm,
            over_seeds(results, trade.setting, arm, trade.along),
            over_seeds(results, trade.setting, arm, score),
        )
        for arm in trade.arms
    ]
    known = [point for point in found if math.isfinite(point[2].mean)]
    return sorted(known, key=lambda p: p[1].mean if math.isfinite(p[1].mean) else math.inf)


def draw_trades(suite: Suite, results: Results, folder: Path) -> dict[str, Path]:
    """A PNG and a CSV for every trade with at least two arms that have a place on its axis."""
    pictures = {}
    for trade in suite.trades:
        points = {score: trade_points(trade, results, score) for score in trade.scores}
        placed = {arm for p in points.values() for arm, at, _ in p if math.isfinite(at.mean)}
        if len(placed) < 2:
            continue
        rows = [
            (arm, score, at.mean, s.n, s.mean, s.low, s.high)
            for score, found in points.items()
            for arm, at, s in found
        ]
        heads = ("arm", "score", trade.along, "seeds", "mean", "low", "high")
        write_csv(folder / f"{trade.name}.csv", [heads, *rows])
        pictures[trade.name] = folder / f"{trade.name}.png"
        save_figure(_trade_figure(suite, trade, points), pictures[trade.name])
    return pictures


def _trade_figure(suite: Suite, trade: Trade, points: Mapping[str, Sequence[Point]]) -> Figure:
    figure = blank_figure(9, 4.6)
    axes = figure.subplots()
    labelled: set[str] = set()
    for (score, found), colour in zip(points.items(), PALETTE, strict=False):
        placed = [(at.mean, s) for _, at, s in found if math.isfinite(at.mean)]
        x, mean = [at for at, _ in placed], [s.mean for _, s in placed]
        draw_bars(axes, x, mean, [s.half for _, s in placed], colour, meaning(score))
        for arm, at, s in found:
            if not math.isfinite(at.mean):
                label = None if arm in labelled else f"{suite.arm(arm).label}, the same scores"
                axes.axhline(s.mean, color=colour, ls="--", lw=1, label=label)
                labelled.add(arm)
    axes.set_xscale("log")
    axes.set_xlabel(trade.axis)
    axes.set_ylabel("mean over seeds, 95 % interval")
    grid(axes)
    figure.legend(loc="outside lower center", fontsize=8, ncols=1, frameon=False)
    figure.suptitle(trade.label)
    return figure
