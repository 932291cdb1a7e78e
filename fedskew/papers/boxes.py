"""Clients' scores as boxes: one panel a setting, one box an arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from fedskew.papers.figure import COLOURS, png
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.verdict import Results
from fedskew.store import write_atomically, write_csv
from fedskew.views.canvas import blank_figure, clean

ABOUT = (
    "Test scores of single clients' main models after the last round, clients of all seeds "
    "together. A box holds the middle half of them, its line is the median, the diamond the mean; "
    "whiskers end at the last client within one and a half boxes, whoever is beyond is a dot."
)
ACROSS = 3
"""So many panels fit side by side."""


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
    write_atomically(folder / "boxes.png", _picture(suite, panels, score))
    return {"boxes": folder / "boxes.png"}


def _picture(
    suite: Suite, panels: Mapping[str, Mapping[str, Sequence[float]]], score: str
) -> bytes:
    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    most = max(len(arms) for arms in panels.values())
    figure = blank_figure(2.2 + 3.6 * across, down * (1.2 + 0.36 * most))
    grid = figure.subplots(down, across, squeeze=False).flatten()
    for place, (setting, arms) in enumerate(panels.items()):
        ordered = {arm: arms[arm] for arm in suite.boxes if arm in arms}
        _panel(grid[place], suite, ordered)
        grid[place].set_title(suite.setting(setting).label, fontsize=10)
        grid[place].set_xlabel(f"test {score} of a client", fontsize=9)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return png(figure)


def _panel(axes: Axes, suite: Suite, arms: Mapping[str, Sequence[float]]) -> None:
    places = list(range(len(arms)))
    drawn = axes.boxplot(
        list(arms.values()), positions=places, orientation="horizontal", widths=0.6,
        patch_artist=True, showmeans=True, manage_ticks=False,
        medianprops={"color": "#000000"}, flierprops={"marker": ".", "markersize": 3},
        meanprops={"marker": "D", "markersize": 4, "markerfacecolor": "white",
                   "markeredgecolor": "#000000"},
    )  # fmt: skip
    for box, arm in zip(drawn["boxes"], arms, strict=True):
        box.set(facecolor=COLOURS[suite.arm(arm).role], alpha=0.6)
    axes.set_yticks(places, [suite.arm(arm).label for arm in arms], fontsize=8)
    axes.set_ylim(len(arms) - 0.4, -0.6)
    clean(axes)
    axes.grid(axis="x", color="#e5e5e5", lw=0.6)
