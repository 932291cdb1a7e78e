"""What a figure is before it is drawn: its numbers first, as for every figure here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = list[dict[str, Any]]


class Picture(NamedTuple):
    """A figure to be: its name, its numbers, and what draws them."""

    name: str
    table: Table
    draw: Callable[[], Figure]


class RoundMatrix(NamedTuple):
    """A number for every pair of clients at a round: how the row's client sees the column's."""

    round: int
    clients: tuple[str, ...]
    values: NDArray[np.float64]
