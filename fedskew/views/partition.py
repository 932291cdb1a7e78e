"""Who holds how much of which class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedskew.canvas import (
    BLUE,
    FEW_CLIENTS,
    GREY,
    GRID,
    HEAT,
    Table,
    blank_figure,
    clean,
    short,
)
from fedskew.federate.roster import Roster

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_CLASSES = 30
"""Up to this number of classes, bubbles are large enough to compare."""


def partition_table(roster: Roster) -> Table:
    """Training samples of each class at each client, unseen clients last.

    Where sites do not tell their counts, or samples have no class, all samples of a client are one
    number.
    """
    if not roster.problem.classifies:
        return [
            {"client": member.name, "seen": member.seen, "samples": member.sizes["train"]}
            for member in (*roster.seen, *roster.unseen)
        ]
    told = any(member.classes for member in roster.members)
    names = roster.class_names if told else ("(not told)",)
    return [
        {
            "client": member.name,
            "seen": member.seen,
            **{
                f"class {name}": count
                for name, count in zip(
                    names,
                    (member.classes or (0,) * len(names)) if told else (member.sizes["train"],),
                    strict=True,
                )
            },
        }
        for member in (*roster.seen, *roster.unseen)
    ]


def partition_figure(table: Table, title: str) -> Figure:
    """Who holds how much of which class: bubbles for a few clients, a heat map for many."""
    classes = [name.removeprefix("class ") for name in table[0] if name.startswith("class ")]
    names = [str(line["client"]) + ("" if line["seen"] else " (unseen)") for line in table]
    if not classes:
        return _sizes(names, [float(line["samples"]) for line in table], title)
    counts = np.array([[line[f"class {c}"] for c in classes] for line in table], np.float64)
    few = len(names) <= FEW_CLIENTS
    if not few:
        # Hundreds of columns only show a pattern if similar ones are side by side.
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


def _sizes(names: list[str], sizes: list[float], title: str) -> Figure:
    """How many samples each client trains on, where samples have no class."""
    figure = blank_figure(9, 3.2)
    axes = figure.subplots()
    few = len(names) <= FEW_CLIENTS
    held = np.array(sizes if few else sorted(sizes, reverse=True))
    axes.bar(np.arange(len(names)), held, color=GREY, width=0.8 if few else 1.0, lw=0)
    if few:
        axes.set_xticks(np.arange(len(names)), names, rotation=45, ha="right", fontsize=7)
    else:
        axes.set_xlabel(f"{len(names)} clients, ordered by size")
    axes.set_ylabel("training samples")
    axes.set_title(title)
    clean(axes)
    return figure


def _heat(figure: Figure, both: list[Axes], counts: NDArray[np.float64]) -> None:
    from matplotlib.colors import PowerNorm

    # The square root keeps a client's few samples of a class visible beside its many.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1.0, counts.max()))
    heat = both[1].imshow(
        counts.T, aspect="auto", interpolation="nearest", origin="lower", cmap=HEAT, norm=norm
    )
    figure.colorbar(heat, ax=both, label="samples of a class", fraction=0.03)


def _bubbles(axes: Axes, counts: NDArray[np.float64]) -> None:
    clients, classes = np.nonzero(counts)
    held = counts[clients, classes]
    # The area shows the count; the largest bubble just fills its cell.
    room = min(420.0 / len(counts), 200.0 / counts.shape[1])
    area = (min(room, 22.0) ** 2) * held / counts.max()
    axes.scatter(clients, classes, s=area, color=BLUE, alpha=0.8, lw=0)
    axes.set_ylim(-0.7, counts.shape[1] - 0.3)
    axes.grid(color=GRID, lw=0.5)
    axes.set_axisbelow(True)
    for count in sorted({int(counts.max()), max(1, int(counts.max() / 4))}):
        size = (min(room, 22.0) ** 2) * count / counts.max()
        axes.scatter([], [], s=size, color=BLUE, alpha=0.8, lw=0, label=f"{count} samples")
    axes.legend(
        fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), labelspacing=1.2
    )
