"""How similar clients are to each other: recorded similarity matrices, and heat maps of them.

In the maps similar clients are side by side, so that groups show. If there are very many clients,
the numbers are not copied: the CSV file beside a map then names the files of the run that hold
them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from fedskew.canvas import HEAT, Picture, Table, blank_figure, save_picture, short
from fedskew.errors import RunError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "matrices"
FILE = re.compile(r"(.+)-(\d{6,})\.csv")
PANELS = 6
"""The most rounds that fit side by side."""
COPIED = 100
"""Up to this number of clients, the numbers of a map are written beside it."""
FEW_CLIENTS = 25
"""Up to this number of clients, each row and column has its client's name."""
ORDERED_BEST = 200
"""Up to this number of clients, finding the best order within clusters is affordable."""


class SimilarityMatrix(NamedTuple):
    """A number for every pair of clients at a round: how the row's client sees the column's."""

    round: int
    clients: tuple[str, ...]
    values: NDArray[np.float64]


def similarity_names(run: Path) -> list[str]:
    """The names under which a run recorded similarity matrices."""
    return sorted({name for name, _, _ in _files(run)})


def similarity_series(run: Path, name: str) -> list[SimilarityMatrix]:
    """The similarity matrices of one name, in the order of their rounds."""
    found = sorted((at, path) for what, at, path in _files(run) if what == name)
    return [SimilarityMatrix(at, *_read(path)) for at, path in found]


def evenly(series: Sequence[SimilarityMatrix], most: int = PANELS) -> list[SimilarityMatrix]:
    """At most ``most`` of a series, evenly chosen; the first and the last are always among them."""
    if len(series) <= most:
        return list(series)
    return [series[i] for i in np.linspace(0, len(series) - 1, most).round().astype(int)]


def similarity_table(series: Sequence[SimilarityMatrix], name: str) -> Table:
    """The numbers of similarity matrices, one per line; for many clients, the files with them."""
    if len({client for each in series for client in each.clients}) > COPIED:
        return [{"round": at, "file": f"{FOLDER}/{name}-{at:06d}.csv"} for at, _, _ in series]
    return [
        {"round": at, "row": row, "column": column, "value": value}
        for at, clients, values in series
        for row, line in zip(clients, values.tolist(), strict=True)
        for column, value in zip(clients, line, strict=True)
    ]


def draw_similarity(run: Path, what: str, folder: Path, file: str, title: str) -> Path:
    """Draw the similarity matrices of one name as heat maps side by side."""
    series = similarity_series(run, what)
    shown, order = evenly(series), common_order(series)
    table = similarity_table(shown, what)
    save_picture(folder, Picture(file, table, lambda: heat_maps(shown, order, what, title)))
    return folder / f"{file}.png"


def heat_maps(
    series: Sequence[SimilarityMatrix], order: Sequence[str], name: str, method: str
) -> Figure:
    """One heat map per round, side by side, with the same colour scale and order of clients.

    Each round shows the clients it has. The diagonal does not stretch the scale: with a client's
    similarity to itself on it, all other pairs would have nearly the same colour.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    largest = max(len(each.clients) for each in series)
    named = largest <= FEW_CLIENTS
    side = 2.6 + 0.06 * largest if named else 3.0
    figure = blank_figure(max(5.5, side * len(series) + 1.2), side + 0.9)
    panels = figure.subplots(1, len(series), squeeze=False)[0]
    low, high = colour_range(series)
    beyond = [v for m in series for v in np.diagonal(m.values).tolist() if not low <= v <= high]
    colours = colormaps[HEAT].with_extremes(under="white", over="white")
    place = {client: i for i, client in enumerate(order)}
    for axes, each in zip(panels, series, strict=True):
        own = np.argsort([place[client] for client in each.clients])
        heat = axes.imshow(each.values[np.ix_(own, own)], cmap=colours, norm=Normalize(low, high))
        axes.set_title(f"round {each.round}", fontsize=10)
        _label(axes, [each.clients[i] for i in own], named)
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


def common_order(series: Sequence[SimilarityMatrix]) -> list[str]:
    """All clients of a series, by cluster: the order of the last round if all are in it.

    Otherwise a pair has the value of the last round in which both took part, or the average value
    if there is no such round.
    """
    clients = list(dict.fromkeys(client for each in reversed(series) for client in each.clients))
    place = {client: i for i, client in enumerate(clients)}
    latest = np.full((len(clients), len(clients)), np.nan)
    for each in series:
        own = [place[client] for client in each.clients]
        latest[np.ix_(own, own)] = each.values
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
    # Average linkage ignores a constant added to all distances: the scale need not end at 1.
    distance = likeness.max() - likeness
    np.fill_diagonal(distance, 0.0)
    pairs = squareform(distance, checks=False)
    if len(set(pairs.tolist())) < 2:
        return list(range(len(values)))
    tree = linkage(pairs, method="average", optimal_ordering=len(values) <= ORDERED_BEST)
    order: list[int] = leaves_list(tree).tolist()
    return order if order[0] < order[-1] else order[::-1]


def colour_range(series: Sequence[SimilarityMatrix]) -> tuple[float, float]:
    """The smallest and largest number off the diagonals; slightly apart if they are equal."""
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
    from matplotlib.ticker import MaxNLocator

    if named:
        names = [short(name) for name in clients]
        axes.set_xticks(range(len(clients)), names, rotation=90, fontsize=6)
        axes.set_yticks(range(len(clients)), names, fontsize=6)
        return
    axes.set_xlabel(f"{len(clients)} clients", fontsize=9)
    axes.tick_params(labelsize=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))


def _files(run: Path) -> Iterator[tuple[str, int, Path]]:
    """The name, the round and the file of every similarity matrix."""
    for path in (run / FOLDER).glob("*.csv"):
        if match := FILE.fullmatch(path.name):
            yield match[1], int(match[2]), path


def _read(path: Path) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    try:
        with open(path, newline="") as file:
            (_, *clients), *lines = csv.reader(file)
        values = np.array([line[1:] for line in lines], dtype=np.float64)
    except (OSError, ValueError) as error:
        raise RunError(f"could not read {path}: {error}.") from error
    if not clients or [line[0] for line in lines] != clients or values.shape != (len(clients),) * 2:
        raise RunError(f"{path} is not a square matrix of clients: remove it to draw the others.")
    return tuple(clients), values
