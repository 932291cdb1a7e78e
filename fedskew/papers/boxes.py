"""Clients' scores as boxes: one panel a setting, one box an arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.canvas import BLACK, ROLES, grid, save_figure
from fedskew.papers.figure import row_panels
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.verdict import Results
from fedskew.store import write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = (
    "Test scores of single clients' main models after the last round, clients of all seeds "
    "together. A box holds the middle half of them, its line is the median, the diamond the mean; "
    "whiskers end at the last client within one and a half boxes, whoever is beyond is a dot."
)


def draw_boxes(
    suite: Suite, plan: Sequence[Cell], results: Results, folder: Path
) -> dict[str, Path]:
    """A PNG and a CSV of all settings; nothing where none of the suite's arms has run."""
    rows = [
        (cell.setting, cell.arm, cell.seed, client, value)
        for cell in plan
        if cell.arm in suite.boxes
        for run in [results[cell.setting, cell.arm, cell.seed]]
        for client, value in run.by_client(run.result["primary_metric"]).items()
        if math.isfinite(value)
    ]
    if not rows:
        return {}
    panels: dict[str, dict[str, list[float]]] = {}
    for setting, arm, _, _, value in rows:
        panels.setdefault(setting, {}).setdefault(arm, []).append(value)
    write_csv(folder / "boxes.csv", [("setting", "arm", "seed", "client", "score"), *rows])
    metrics = {run.result["primary_metric"] for run in results.values()}
    score = metrics.pop() if len(metrics) == 1 else "main score"
    save_figure(_figure(suite, panels, score), folder / "boxes.png")
    return {"boxes": folder / "boxes.png"}


def _figure(
    suite: Suite, panels: Mapping[str, Mapping[str, Sequence[float]]], score: str
) -> Figure:
    figure, shown = row_panels(len(panels), max(len(arms) for arms in panels.values()))
    for axes, (setting, arms) in zip(shown, panels.items(), strict=True):
        _panel(axes, suite, {arm: arms[arm] for arm in suite.boxes if arm in arms})
        axes.set_title(suite.setting(setting).label, fontsize=10)
        axes.set_xlabel(f"test {score} of a client", fontsize=9)
    return figure


def _panel(axes: Axes, suite: Suite, arms: Mapping[str, Sequence[float]]) -> None:
    places = list(range(len(arms)))
    drawn = axes.boxplot(
        list(arms.values()),
        positions=places,
        orientation="horizontal",
        widths=0.6,
        patch_artist=True,
        showmeans=True,
        manage_ticks=False,
        medianprops={"color": BLACK},
        flierprops={"marker": ".", "markersize": 3},
        meanprops={
            "marker": "D",
            "markersize": 4,
            "markerfacecolor": "white",
            "markeredgecolor": BLACK,
        },
    )
    for box, arm in zip(drawn["boxes"], arms, strict=True):
        box.set(facecolor=ROLES[suite.arm(arm).role], alpha=0.6)
    axes.set_yticks(places, [suite.arm(arm).label for arm in arms], fontsize=8)
    axes.set_ylim(len(arms) - 0.4, -0.6)
    grid(axes, "x")
