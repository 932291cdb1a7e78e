"""What all figures share: the palette, lines and axes, and how a figure becomes a file.

Only functions that draw import matplotlib, so that modules with figures are quick to import.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedskew.store import write_atomically, write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = list[dict[str, Any]]
Dashes = str | tuple[int, tuple[int, ...]]
"""A dash pattern, by name or by the lengths of its strokes and gaps."""

# The palette of Okabe and Ito, distinct with any colour vision; brown stands in for their yellow,
# which is too pale for lines on white.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
AMBER, SKY, BROWN, BLACK = "#E69F00", "#56B4E9", "#8B6914", "#000000"
PALETTE = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, BROWN, BLACK)
GREY, PALE, GRID = "#666666", "#999999", "#E5E5E5"
BLUES = ("#D6E6F0", "#93C1DD", "#3D93C7")
"""Tints of blue, from pale to strong."""
HEAT = "cividis"
"""The colour map of all heat maps."""

ROLES = {"method": BLUE, "control": ORANGE, "reference": GREY}
"""The colour of an arm where its role is what matters."""
DASHES: Mapping[str, tuple[Dashes, ...]] = {
    "method": ("-", "--", "-.", (0, (8, 2)), (0, (6, 2, 1, 2, 1, 2)), (0, (3, 1))),
    "control": (":", (0, (1, 3)), (0, (1, 1, 1, 4)), (0, (2, 3)), (0, (1, 2, 3, 2)), (0, (1, 5))),
}
REFERENCES: Mapping[str, tuple[tuple[str, Dashes], ...]] = {
    "alone": ((GREY, ":"),),
    "pooled": ((BLACK, "--"),),
    "reference": tuple((c, d) for d in ("--", (0, (8, 3))) for c in (BLACK, GREY, PALE)),
}

DPI = 150
FEW_CLIENTS = 40
"""Up to this number of clients, each gets a bar and a name of its own."""
FEW_POINTS = 25
"""Up to this number of points, a curve has markers."""


class Picture(NamedTuple):
    """A figure to be drawn: its name, the numbers it shows, and the function that draws them."""

    name: str
    table: Table
    draw: Callable[[], Figure]


def save_picture(folder: Path, picture: Picture) -> None:
    """Write a picture's CSV file, then its PNG beside it; nothing if it has no numbers."""
    name, table, draw = picture
    if table:
        write_csv(folder / f"{name}.csv", [table[0], *(line.values() for line in table)])
        save_figure(draw(), folder / f"{name}.png")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG. Equal figures are equal bytes: the file names no software."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
    write_atomically(path, content.getvalue())


def blank_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, outside of pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def line_styles(roles: Sequence[str]) -> list[tuple[str, Dashes]]:
    """A colour and dashes for each curve, by its role: a key of ``DASHES`` or ``REFERENCES``.

    Methods and controls share the colours, and no two of 42 look alike; references are grey.
    """
    colours = PALETTE[:-1]
    turns = iter(range(len(roles)))
    references = {role: cycle(styles) for role, styles in REFERENCES.items()}

    def contender(role: str) -> tuple[str, Dashes]:
        turn, place = divmod(next(turns), len(colours))
        return colours[place], DASHES[role][turn % len(DASHES[role])]

    return [next(references[r]) if r in references else contender(r) for r in roles]


def marker_styles() -> Iterator[tuple[str, str]]:
    """Colours and markers for groups of points; they repeat once all have been used."""
    return cycle((colour, marker) for marker, colour in product("o^sDvPX*", PALETTE))


def numbers(table: Table, name: str) -> NDArray[np.float64]:
    """A column of a table: NaN where it is empty."""
    return np.array([np.nan if line[name] is None else line[name] for line in table], float)


def draw_line(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    colour: str,
    label: str | None = None,
    dashes: Dashes = "-",
) -> None:
    """A curve; it has a marker at each number unless there are too many to distinguish."""
    marker = "o" if np.size(x) <= FEW_POINTS else ""
    axes.plot(x, y, color=colour, ls=dashes, lw=1.6, marker=marker, ms=3, label=label)


def draw_band(axes: Axes, table: Table, colour: str, label: str, dashes: Dashes = "-") -> None:
    """A curve of means over rounds, with their intervals as a band that is cut off if wide."""
    rounds, mean, low, high = (numbers(table, name) for name in ("round", "mean", "low", "high"))
    draw_line(axes, rounds, mean, colour, label, dashes)
    if not np.isnan(low).all():
        # The interval of two seeds can be wider than the scale of scores: means set the limits.
        limits = axes.dataLim.frozen()
        axes.fill_between(rounds, low, high, color=colour, alpha=0.08, lw=0)
        axes.dataLim.set(limits)
        axes.margins(y=0.15)


def draw_bars(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    half: Sequence[float] | NDArray[np.float64],
    colour: str,
    label: str | None = None,
    dashes: Dashes = "-",
) -> None:
    """A curve with an error bar at each number, none where its half length is NaN."""
    draw_line(axes, x, y, colour, label, dashes)
    axes.errorbar(x, y, np.nan_to_num(half), fmt="none", ecolor=colour, elinewidth=0.8, capsize=2)


def rounds_axis(axes: Axes) -> None:
    """Whole rounds on the x axis, and a grid behind the curves."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    grid(axes)


def grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """A grid behind the numbers, and no frame above and to the right."""
    clean(axes)
    axes.grid(axis=axis, color=GRID, lw=0.6)


def clean(axes: Axes) -> None:
    """Remove the upper and right side of the frame."""
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend_beside(figure: Figure) -> None:
    """One legend to the right of all panels, where it hides no curve."""
    figure.legend(
        loc="outside right center", fontsize=8, handlelength=3, labelspacing=0.7, frameon=False
    )


def short(name: str, most: int = 16) -> str:
    """A name that fits beside an axis.

    >>> short("a client's long name", 9)
    'a client…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"
