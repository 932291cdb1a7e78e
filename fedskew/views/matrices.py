"""Heat maps of client-by-client matrices over rounds, like beside like so that groups show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from fedskew.views.canvas import blank_figure, short
from fedskew.views.picture import RoundMatrix

FEW_CLIENTS = 25
"""Up to so many clients, each row and column has its client's name."""
ORDERED_BEST = 200
"""Up to so many clients, the best of all orders that keep clusters together is affordable."""


def heat_maps(
    series: Sequence[RoundMatrix], order: Sequence[str], name: str, method: str
) -> Figure:
    """One heat map a round, side by side, with one scale of colours and one order of clients.

    Each round shows the clients it has. The diagonal does not stretch the scale: a client's
    likeness to itself would leave one colour for all that differs between clients.
    """
    largest = max(len(matrix.clients) for matrix in series)
    named = largest <= FEW_CLIENTS
    side = 2.6 + 0.06 * largest if named else 3.0
    figure = blank_figure(max(5.5, side * len(series) + 1.2), side + 0.9)
    panels = figure.subplots(1, len(series), squeeze=False)[0]
    low, high = colour_range(series)
    beyond = [v for m in series for v in np.diagonal(m.values).tolist() if not low <= v <= high]
    colours = colormaps["cividis"].with_extremes(under="white", over="white")
    place = {client: i for i, client in enumerate(order)}
    for axes, matrix in zip(panels, series, strict=True):
        own = np.argsort([place[client] for client in matrix.clients])
        heat = axes.imshow(matrix.values[np.ix_(own, own)], cmap=colours, norm=Normalize(low, high))
        axes.set_title(f"round {matrix.round}", fontsize=10)
        _label(axes, [matrix.clients[i] for i in own], named)
    note = "\n(white: a client with itself, off the scale)" if beyond else ""
    above, below = any(v > high for v in beyond), any(v < low for v in beyond)
    extend = {(1, 1): "both", (1, 0): "max", (0, 1): "min"}.get((above, below), "neither")
    figure.colorbar(heat, ax=list(panels), label=name + note, extend=extend, fraction=0.03)
    figure.suptitle(f"{method}: {name} between clients", fontsize=11)
    figure.supxlabel(
        "how the row's client sees the column's; clients in the order of their latest clusters",
        fontsize=8,
    )
    return figure


def common_order(series: Sequence[RoundMatrix]) -> list[str]:
    """All clients of a series, by cluster: the order of the last round where all are in it.

    Where they are not, a pair counts as it was when last together, and as the average pair if it
    never was.
    """
    clients = list(
        dict.fromkeys(client for matrix in reversed(series) for client in matrix.clients)
    )
    place = {client: i for i, client in enumerate(clients)}
    latest = np.full((len(clients), len(clients)), np.nan)
    for matrix in series:
        own = [place[client] for client in matrix.clients]
        latest[np.ix_(own, own)] = matrix.values
    pairs = latest[~np.eye(len(clients), dtype=bool)]
    known = pairs[~np.isnan(pairs)]
    latest[np.isnan(latest)] = known.mean() if len(known) else 0.0
    return [clients[i] for i in clustered(latest)]


def clustered(values: NDArray[np.float64]) -> list[int]:
    """Positions in an order that keeps the clusters of average linkage together.

    >>> clustered(np.array([[1.0, 0.1, 0.9], [0.1, 1.0, 0.2], [0.9, 0.2, 1.0]]))
    [0, 2, 1]
    """
    likeness = (values + values.T) / 2
    # Average linkage is blind to a constant on all distances, and so needs no scale that ends at 1.
    distance = likeness.max() - likeness
    np.fill_diagonal(distance, 0.0)
    pairs = squareform(distance, checks=False)
    if len(set(pairs.tolist())) < 2:
        return list(range(len(values)))
    tree = linkage(pairs, method="average", optimal_ordering=len(values) <= ORDERED_BEST)
    order: list[int] = leaves_list(tree).tolist()
    return order if order[0] < order[-1] else order[::-1]


def colour_range(series: Sequence[RoundMatrix]) -> tuple[float, float]:
    """The least and the largest number off the diagonals, a little apart where they are equal."""
    off = [m.values[~np.eye(len(m.clients), dtype=bool)] for m in series]
    values = np.concatenate(off)
    if not len(values):
        values = np.concatenate([m.values.ravel() for m in series])
    low, high = float(values.min()), float(values.max())
    room = max(1.0, abs(low), abs(high))
    if high - low > 1e-9 * room:
        return low, high
    return low - 0.05 * room, high + 0.05 * room


def _label(axes: Axes, clients: Sequence[str], named: bool) -> None:
    if named:
        names = [short(name) for name in clients]
        axes.set_xticks(range(len(clients)), names, rotation=90, fontsize=6)
        axes.set_yticks(range(len(clients)), names, fontsize=6)
        return
    axes.set_xlabel(f"{len(clients)} clients", fontsize=9)
    axes.tick_params(labelsize=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
