"""Pictures of objectives by aggregators: heat maps a rule of selection, curves an aggregator."""

from __future__ import annotations

import math
from textwrap import wrap

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from fedskew.comparisons.crossing import TIMES
from fedskew.views.canvas import ORANGE, Table, blank_figure, draw_band, rounds_axis, short
from fedskew.views.plots import styles

ACROSS = 16
"""Up to so many columns of numbers, all rules fit side by side."""
LONGEST = 32
"""Letters of a name beside a panel."""


def rule_maps(table: Table, metric: str, target: str, higher_is_better: bool) -> Figure:
    """A panel a rule, all with one scale of colours; the best cell of each has a frame."""
    rules, objectives, aggregators = (
        list(dict.fromkeys(str(line[name]) for line in table))
        for name in ("rule", "objective", "aggregator")
    )
    across = len(rules) if len(rules) * len(aggregators) <= ACROSS else 2
    down = math.ceil(len(rules) / across)
    names = [short(name, LONGEST) for name in objectives]
    beside = 0.07 * max(map(len, names)) + 1.1
    width, height = max(1.9, 0.75 * len(aggregators)), 1.2 + 0.34 * len(objectives)
    figure = blank_figure(across * width + beside, down * height + 0.5)
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    scale = _scale(np.array([line["mean"] for line in table], float))
    for axes, rule in zip(panels, rules, strict=False):
        own = np.array([line["mean"] for line in table if line["rule"] == rule], float)
        _panel(axes, own.reshape(len(objectives), -1), metric, scale, higher_is_better)
        axes.set_title("oracle (peeks)" if rule == "oracle" else rule, fontsize=10)
        axes.set_xticks(range(len(aggregators)), [short(a, LONGEST) for a in aggregators])
        axes.set_yticks(range(len(objectives)), names)
        axes.tick_params(labelsize=8, length=0)
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
    for axes in panels[len(rules) :]:
        axes.set_visible(False)
    shown = list(panels[: len(rules)])
    bar = figure.colorbar(shown[0].images[0], ax=shown, fraction=0.03)
    bar.ax.tick_params(labelsize=8)
    title = f"Out of domain: test {metric} {target}"
    figure.suptitle("\n".join(wrap(title, int(9 * figure.get_figwidth()))), fontsize=11)
    return figure


def _scale(means: NDArray[np.float64]) -> Normalize:
    known = means[np.isfinite(means)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return Normalize(low, high if high > low else low + 1.0)


def _panel(
    axes: Axes,
    values: NDArray[np.float64],
    metric: str,
    scale: Normalize,
    higher_is_better: bool,
) -> None:
    axes.imshow(values, aspect="auto", cmap="cividis", norm=scale)
    digits = ".3f" if metric == "accuracy" else ".4g"
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            axes.text(column, row, "–", ha="center", va="center", fontsize=8)
            continue
        red, green, blue, _ = colormaps["cividis"](scale(value))
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        axes.text(
            column, row, f"{value:{digits}}", ha="center", va="center", fontsize=8,
            color="black" if light else "white",
        )  # fmt: skip
    if np.isfinite(values).any():
        at = np.nanargmax(values) if higher_is_better else np.nanargmin(values)
        best_row, best_column = np.unravel_index(at, values.shape)
        corner = (float(best_column) - 0.5, float(best_row) - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=ORANGE, lw=2.5, clip_on=False))
    for side in axes.spines.values():
        side.set_visible(False)


def crossed_learning(table: Table, metric: str) -> Figure:
    """Learning curves in a panel an aggregator, where all pairs in one would hide each other.

    An objective has the same colour everywhere; methods that are no pair are in every panel.
    """
    methods = list(dict.fromkeys(str(line["method"]) for line in table))
    parts = {method: method.partition(f" {TIMES} ") for method in methods}
    columns = list(dict.fromkeys(after for _, _, after in parts.values() if after))
    names = list(dict.fromkeys(before for before, _, _ in parts.values()))
    style = dict(zip(names, styles(names), strict=True))
    across = min(3, len(columns))
    down = math.ceil(len(columns) / across)
    figure = blank_figure(3.4 * across + 1.6, max(2.6 * down + 0.4, 0.9 + 0.17 * len(names)))
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for axes, column in zip(panels, columns, strict=False):
        for method, (name, _, own) in parts.items():
            if own in ("", column):
                curve = [line for line in table if line["method"] == method]
                colour, dashes = style[name]
                draw_band(axes, curve, colour, name, dashes)
        rounds_axis(axes)
        axes.set_title(column, fontsize=10)
    for axes in panels[len(columns) :]:
        axes.set_visible(False)
    found = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    shown = [name for name in names if name in found]
    figure.legend(
        [found[name] for name in shown], shown, fontsize=8, frameon=False,
        loc="outside right upper", handlelength=3,
    )  # fmt: skip
    figure.supylabel(f"test {metric}, mean over clients", fontsize=9)
    figure.suptitle("Learning curves by aggregator", fontsize=11)
    return figure
