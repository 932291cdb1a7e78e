"""Metric rows that say what was measured on which client, and their summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

MAIN = "main"
"""The main stage of a method, which comes after the stages that prepare it."""
CENTRAL = ""
"""No client's name: the client of rows about the central test set."""


@dataclass(frozen=True)
class Row:
    """One measured number.

    ``model`` is "global" or "personal"; ``on`` is "seen", "unseen" or "central"; ``adapted`` is
    "none", "fine-tuned n" or "k-shot n"; ``split`` is "validation", "test", "environment" (what a
    client has of an environment nobody trains on), "keeping" (what a client chooses by what it
    keeps) or "server" (what the server measured itself).
    """

    stage: str
    round: int
    model: str
    on: str
    client: str
    adapted: str
    split: str
    metric: str
    value: float
    n: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Measured(NamedTuple):
    """Numbers about one client's model, or about all together if there is no name."""

    model: str
    client: str
    values: Mapping[str, float]


def plain_mean(values: Sequence[float]) -> float:
    """The very sum a run chooses its round by; NaN of nothing.

    Another order of rounding could break a tie anew.

    >>> plain_mean([0.5, 1.0])
    0.75
    """
    return sum(values) / len(values) if values else math.nan


@dataclass(frozen=True)
class Summary:
    """Many clients in five numbers; every client counts the same."""

    mean: float
    std: float
    worst: float
    bottom_decile: float
    clients: int


def summarise(values: Sequence[float], higher_is_better: bool = True) -> Summary:
    """Mean, population standard deviation, worst client and the limit of the worst tenth.

    >>> summarise([0.5, 1.0])
    Summary(mean=0.75, std=0.25, worst=0.5, bottom_decile=0.55, clients=2)
    """
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return Summary(math.nan, math.nan, math.nan, math.nan, 0)
    worst, share = (array.min(), 10) if higher_is_better else (array.max(), 90)
    decile = float(np.percentile(array, share)) if np.isfinite(array).all() else math.nan
    return Summary(float(array.mean()), float(array.std()), float(worst), decile, len(array))


Group = tuple[str, str, str, str, str]
"""model, on, adapted, split, metric."""


def by_group(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        key = (row.model, row.on, row.adapted, row.split, row.metric)
        groups.setdefault(key, []).append(row)
    return groups
