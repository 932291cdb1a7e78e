"""What all pictures share: colours, figures without pyplot's global state, lines and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

Table = Sequence[dict[str, Any]]

# Okabe and Ito's palette: told apart with any colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6914", "#000000")
BLUE, ORANGE, GREY = PALETTE[0], PALETTE[1], "#666666"
FEW_CLIENTS = 40
"""Up to so many clients, each gets a bar and a name of its own."""


def blank_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def numbers(table: Table, name: str) -> NDArray[np.float64]:
    """A column of a table: NaN where it says nothing."""
    return np.array([np.nan if line[name] is None else line[name] for line in table], float)


def draw_line(
    axes: Axes,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    colour: str,
    label: str,
    dashes: str = "-",
) -> None:
    """A curve, with a marker at each number while they can be told apart."""
    marker = "o" if len(x) <= 25 else ""
    axes.plot(x, y, color=colour, ls=dashes, lw=1.6, marker=marker, ms=3, label=label)


def draw_band(axes: Axes, table: Table, colour: str, label: str, dashes: str = "-") -> None:
    """A curve of means with the deviation over seeds around it."""
    rounds, mean, std = (numbers(table, name) for name in ("round", "mean", "std"))
    draw_line(axes, rounds, mean, colour, label, dashes)
    if not np.isnan(std).all():
        axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.15, lw=0)


def rounds_axis(axes: Axes) -> None:
    """Whole rounds below, a grid behind."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    clean(axes)
    axes.grid(color="#e5e5e5", lw=0.6)


def clean(axes: Axes) -> None:
    """Take the frame's upper and right side away."""
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def short(name: str, most: int = 16) -> str:
    """A name that fits beside an axis.

    >>> short("a client's long name", 9)
    'a client…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"
