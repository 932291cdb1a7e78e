"""The clients' weights in the aggregates of a run, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedskew.canvas import (
    FEW_CLIENTS,
    HEAT,
    Table,
    blank_figure,
    draw_line,
    line_styles,
    numbers,
    rounds_axis,
    short,
)
from fedskew.runs.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_LINES = 20
"""Up to this number of clients, lines can be followed."""


def weight_table(results: Results) -> Table:
    """Each client's weight in the aggregates of all stages, and its recorded discrepancy."""
    found: dict[tuple[str, int, str], dict[str, float]] = {}
    for row in results.rows.where(split="server", metric=("weight", "discrepancy")).rows():
        found.setdefault((row.stage, row.round, row.client), {})[row.metric] = row.value
    return [
        {
            "stage": stage,
            "round": number,
            "client": client,
            "weight": numbers["weight"],
            "discrepancy": numbers.get("discrepancy"),
        }
        for (stage, number, client), numbers in found.items()
        if "weight" in numbers
    ]


def weight_figure(table: Table, method: str) -> Figure:
    """Every client's weight in the aggregate, round by round, and its discrepancy beside it.

    A few clients are shown as lines; many as a heat map, the largest weight on top. There is one
    row per stage.
    """
    stages = list(dict.fromkeys(str(line["stage"]) for line in table))
    has_discrepancy = any(line["discrepancy"] is not None for line in table)
    shown = ["weight", "discrepancy"] if has_discrepancy else ["weight"]
    mean = {
        name: numbers([line for line in table if line["client"] == name], "weight").mean()
        for name in dict.fromkeys(str(line["client"]) for line in table)
    }
    names = sorted(mean, key=lambda name: -mean[name])
    few = len(names) <= FEW_LINES
    height = 3.2 if few else 1.4 + 0.13 * min(len(names), 40)
    figure = blank_figure(9, height * len(stages) + 0.4)
    panels = figure.subplots(len(stages), len(shown), squeeze=False)
    for i, stage in enumerate(stages):
        for axes, metric in zip(panels[i], shown, strict=True):
            own = [line for line in table if line["stage"] == stage]
            rounds, values = _by_client(own, names, metric)
            axes.set_title(f"{metric}, stage {stage}" if len(stages) > 1 else metric, fontsize=10)
            if few:
                labels = [f"{short(name)}  {mean[name]:.3f}" for name in names]
                _client_lines(axes, rounds, values, labels)
            else:
                _client_heat(figure, axes, rounds, values, names)
    if few:
        handles = panels[0, 0].get_legend_handles_labels()[0]
        figure.legend(
            handles,
            labels,
            fontsize=7,
            frameon=False,
            loc="outside right upper",
            handlelength=3,
            title="mean weight",
            title_fontsize=8,
        )
    figure.suptitle(f"{method}: aggregation weights")
    return figure


def _by_client(
    table: Table, names: Sequence[str], metric: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rounds, and one row of numbers per client: NaN where it took no part."""
    rounds = sorted({int(line["round"]) for line in table})
    column, row = ({key: i for i, key in enumerate(keys)} for keys in (rounds, names))
    values = np.full((len(names), len(rounds)), np.nan)
    for line in table:
        if line[metric] is not None:
            values[row[line["client"]], column[line["round"]]] = line[metric]
    return np.array(rounds, float), values


def _client_lines(
    axes: Axes, rounds: NDArray[np.float64], values: NDArray[np.float64], labels: Sequence[str]
) -> None:
    styles = line_styles(["method"] * len(labels))
    for label, own, (colour, dashes) in zip(labels, values, styles, strict=True):
        draw_line(axes, rounds, own, colour, label, dashes)
    rounds_axis(axes)
    # Clients without weight lie at zero, which must not be the edge of the figure.
    axes.set_ylim(bottom=min(-0.03 * axes.get_ylim()[1], axes.get_ylim()[0]))


def _client_heat(
    figure: Figure,
    axes: Axes,
    rounds: NDArray[np.float64],
    values: NDArray[np.float64],
    names: Sequence[str],
) -> None:
    heat = axes.imshow(values, aspect="auto", interpolation="nearest", cmap=HEAT)
    figure.colorbar(heat, ax=axes, fraction=0.05)
    ticks = range(0, len(rounds), max(1, len(rounds) // 8))
    axes.set_xticks(list(ticks), [f"{rounds[i]:.0f}" for i in ticks])
    axes.set_xlabel("round (white: took no part)" if np.isnan(values).any() else "round")
    if len(names) <= FEW_CLIENTS:
        axes.set_yticks(range(len(names)), [short(name) for name in names], fontsize=6)
    else:
        axes.set_ylabel(f"{len(names)} clients, heaviest first")
