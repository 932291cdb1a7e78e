"""The pictures of runs and comparisons: matplotlib figures from tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedskew.federate.recipe import methods as registered
from fedskew.views.canvas import (
    BLUE,
    FEW_CLIENTS,
    GREY,
    ORANGE,
    PALETTE,
    Table,
    blank_figure,
    clean,
    draw_band,
    draw_line,
    numbers,
    rounds_axis,
    short,
)

DASHES = ("-", "--", "-.", ":")

FEW_LINES = 20
"""Up to so many clients, lines can be followed."""
FEW_CLASSES = 30
"""Up to so many classes, bubbles are large enough to compare."""


def learning(table: Table, metric: str, selected: int, method: str) -> Figure:
    """Training loss, and the score over rounds with the band from worst to best client."""
    figure = blank_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    rounds = numbers(table, "round")
    draw_line(left, rounds, numbers(table, "train_loss"), BLUE, "mean over clients")
    left.set_ylabel("training loss")
    mean = numbers(table, "test_mean")
    scored = ~np.isnan(mean)
    at = rounds[scored]
    low, high = numbers(table, "test_worst")[scored], numbers(table, "test_best")[scored]
    right.fill_between(at, low, high, color=BLUE, alpha=0.15, lw=0, label="worst to best client")
    draw_line(right, at, mean[scored], BLUE, "test, mean over clients")
    validation = numbers(table, "validation_mean")
    if not np.isnan(validation).all():
        draw_line(right, at, validation[scored], ORANGE, "validation, mean over clients", "--")
    right.axvline(selected, color=GREY, lw=1, ls=":", label=f"selected round ({selected})")
    right.set_ylabel(metric)
    _bound(right, metric)
    right.legend(fontsize=8, frameon=False, loc="best")
    for axes in (left, right):
        rounds_axis(axes)
    figure.suptitle(f"{method}: learning curves")
    return figure


def clients(table: Table, metric: str, selected: int, method: str) -> Figure:
    """Every client's score, lowest first, and where adaptation took it."""
    figure = blank_figure(9, 3.8)
    axes = figure.subplots()
    values, adapted = numbers(table, metric), numbers(table, "adapted")
    place = np.arange(len(table))
    few = len(table) <= FEW_CLIENTS
    if few:
        axes.bar(place, values, color=BLUE, alpha=0.75, width=0.8, label="as trained")
        names = [str(line["client"]) for line in table]
        axes.set_xticks(place, names, rotation=45, ha="right", fontsize=7)
    else:
        axes.fill_between(place, values, step="mid", color=BLUE, alpha=0.35, lw=0)
        axes.step(place, values, where="mid", color=BLUE, lw=1.2, label="as trained")
        axes.set_xlabel(f"{len(table)} clients, lowest score first")
    if not np.isnan(adapted).all():
        size = 22 if few else 5
        axes.scatter(place, adapted, s=size, color=ORANGE, zorder=3, label=str(table[0]["how"]))
    mean = float(np.nanmean(values))
    axes.axhline(mean, color="#000000", lw=1, ls="--", label=f"mean {mean:.3f}")
    axes.set_xlim(-0.6, len(table) - 0.4)
    axes.set_ylabel(f"test {metric}")
    _bound(axes, metric)
    axes.legend(fontsize=8, loc="lower right", framealpha=0.9)
    clean(axes)
    axes.set_title(f"{method}: test {metric} of every client at round {selected}")
    return figure


def partition(table: Table, title: str) -> Figure:
    """Who holds how much of which class: bubbles for a few clients, a heat map for many."""
    classes = [name.removeprefix("class ") for name in table[0] if name.startswith("class ")]
    names = [str(line["client"]) + ("" if line["seen"] else " (unseen)") for line in table]
    counts = np.array([[line[f"class {c}"] for c in classes] for line in table], np.float64)
    few = len(names) <= FEW_CLIENTS
    if not few:
        # Hundreds of columns only show a pattern when like stands beside like.
        counts = counts[np.lexsort((-counts.sum(axis=1), counts.argmax(axis=1)))]
    figure = blank_figure(9, 2.4 + min(6.0, 0.28 * max(8, len(classes))))
    top, grid = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3.2))
    place = np.arange(len(names))
    top.bar(place, counts.sum(axis=1), color=GREY, width=0.8 if few else 1.0, lw=0)
    top.set_ylabel("samples")
    top.set_title(title)
    clean(top)
    if few and len(classes) <= FEW_CLASSES:
        _bubbles(grid, counts)
    else:
        _heat(figure, [top, grid], counts)
    if few:
        grid.set_xticks(place, names, rotation=45, ha="right", fontsize=7)
    else:
        grid.set_xlabel(f"{len(names)} clients, ordered by their largest class, then by size")
    shown = range(0, len(classes), max(1, len(classes) // 30))
    grid.set_yticks(list(shown), [short(classes[i]) for i in shown], fontsize=7)
    grid.set_ylabel("class")
    grid.set_xlim(-0.6, len(names) - 0.4)
    return figure


def _heat(figure: Figure, both: list[Axes], counts: NDArray[np.float64]) -> None:
    # The square root keeps a client's few samples of a class visible beside its many.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1.0, counts.max()))
    heat = both[1].imshow(
        counts.T, aspect="auto", interpolation="nearest", origin="lower", cmap="cividis", norm=norm
    )
    figure.colorbar(heat, ax=both, label="samples of a class", fraction=0.03)


def _bubbles(axes: Axes, counts: NDArray[np.float64]) -> None:
    clients, classes = np.nonzero(counts)
    held = counts[clients, classes]
    # The area tells the count; the largest bubble fills its cell and no more.
    room = min(420.0 / len(counts), 200.0 / counts.shape[1])
    area = (min(room, 22.0) ** 2) * held / counts.max()
    axes.scatter(clients, classes, s=area, color=BLUE, alpha=0.8, lw=0)
    axes.set_ylim(-0.7, counts.shape[1] - 0.3)
    axes.grid(color="#e5e5e5", lw=0.5)
    axes.set_axisbelow(True)
    for count in sorted({int(counts.max()), max(1, int(counts.max() / 4))}):
        size = (min(room, 22.0) ** 2) * count / counts.max()
        axes.scatter([], [], s=size, color=BLUE, alpha=0.8, lw=0, label=f"{count} samples")
    axes.legend(
        fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), labelspacing=1.2
    )


def weights(table: Table, method: str) -> Figure:
    """Every client's weight in the aggregate, round by round, and its discrepancy beside it.

    A few clients are lines; of many, a heat map shows the heaviest on top. One row a stage.
    """
    stages = list(dict.fromkeys(str(line["stage"]) for line in table))
    told = any(line["discrepancy"] is not None for line in table)
    shown = ["weight", "discrepancy"] if told else ["weight"]
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
            handles, labels, fontsize=7, frameon=False, loc="outside right upper", handlelength=3,
            title="mean weight", title_fontsize=8,
        )  # fmt: skip
    figure.suptitle(f"{method}: aggregation weights")
    return figure


def _by_client(
    table: Table, names: Sequence[str], metric: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rounds, and a row of numbers a client: NaN where it took no part."""
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
    for label, own, (colour, dashes) in zip(labels, values, styles(labels), strict=True):
        draw_line(axes, rounds, own, colour, label, dashes)
    rounds_axis(axes)
    # Clients without weight lie on zero, which must not be the picture's very edge.
    axes.set_ylim(bottom=min(-0.03 * axes.get_ylim()[1], axes.get_ylim()[0]))


def _client_heat(
    figure: Figure,
    axes: Axes,
    rounds: NDArray[np.float64],
    values: NDArray[np.float64],
    names: Sequence[str],
) -> None:
    heat = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="cividis")
    figure.colorbar(heat, ax=axes, fraction=0.05)
    ticks = range(0, len(rounds), max(1, len(rounds) // 8))
    axes.set_xticks(list(ticks), [f"{rounds[i]:.0f}" for i in ticks])
    axes.set_xlabel("round (white: took no part)" if np.isnan(values).any() else "round")
    if len(names) <= FEW_CLIENTS:
        axes.set_yticks(range(len(names)), [short(name) for name in names], fontsize=6)
    else:
        axes.set_ylabel(f"{len(names)} clients, heaviest first")


def compared_learning(table: Table, metric: str) -> Figure:
    """One curve a method, with the deviation over seeds around it."""
    figure = blank_figure(9, 4.6)
    axes = figure.subplots()
    methods = list(dict.fromkeys(str(line["method"]) for line in table))
    for method, (colour, dashes) in zip(methods, styles(methods), strict=True):
        own = [line for line in table if line["method"] == method]
        draw_band(axes, own, colour, method, dashes)
    axes.set_ylabel(f"test {metric}, mean over clients")
    rounds_axis(axes)
    several = any(line["std"] is not None for line in table)
    axes.set_title("Learning curves" + (" (bands: ± standard deviation over seeds)" * several))
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def compared_clients(table: Table, metric: str) -> Figure:
    """How each method's scores spread over clients: a box, and every client as a point."""
    methods = list(dict.fromkeys(str(line["method"]) for line in table))
    groups = [np.array([r[metric] for r in table if r["method"] == m], float) for m in methods]
    figure = blank_figure(9, 1.6 + (0.5 if len(methods) <= FEW_LINES else 0.25) * len(methods))
    axes = figure.subplots()
    place = np.arange(len(methods))[::-1]
    axes.boxplot(
        groups, positions=list(place), orientation="horizontal", widths=0.55, showfliers=False,
        showmeans=True, manage_ticks=False, medianprops={"color": "#000000"},
        meanprops={"marker": "D", "markersize": 5, "markerfacecolor": ORANGE,
                   "markeredgecolor": "white"},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for at, values in zip(place, groups, strict=True):
        jitter = at + rng.uniform(-0.18, 0.18, len(values))
        size = 12 if len(values) <= 200 else 3
        axes.scatter(values, jitter, s=size, color=BLUE, alpha=0.45, lw=0, zorder=2)
    axes.set_yticks(place, methods)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.set_xlabel(f"test {metric} of a client (box: quartiles, line: median, diamond: mean)")
    axes.set_title("Scores over clients, best method first")
    clean(axes)
    axes.grid(axis="x", color="#e5e5e5", lw=0.6)
    return figure


def styles(methods: Sequence[str]) -> list[tuple[str, str]]:
    """A colour and dashes for each method; the references stay grey whatever stands beside them."""
    pairs = ((colour, dashes) for dashes in cycle(DASHES) for colour in PALETTE[:7])
    reference = {"alone": (GREY, ":"), "pooled": ("#000000", "--")}
    roles = {name: known.card.reference or "" for name, known in registered().items()}
    return [reference.get(roles.get(method, "")) or next(pairs) for method in methods]


def _bound(axes: Axes, metric: str) -> None:
    if metric == "accuracy":
        axes.set_ylim(0, 1.02)
