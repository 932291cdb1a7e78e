"""What a figure is before it is drawn: its numbers first, as for every figure here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = list[dict[str, Any]]


class Picture(NamedTuple):
    """A figure to be: its name, its numbers, and what draws them."""

    name: str
    table: Table
    draw: Callable[[], Figure]
