"""Metric rows that say what was measured on whom, and their summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

MAIN = "main"
"""The stage of a method itself, which comes after those that prepare it."""
CENTRAL = ""
"""The name of nobody: rows about the central test set carry it as their client."""


@dataclass(frozen=True)
class Row:
    """One measured number.

    ``model`` is "global" or "personal"; ``on`` is "seen", "unseen" or "central"; ``adapted`` is
    "none", "fine-tuned n" or "k-shot n".
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
    """Numbers about one client's model, or about all together if it names nobody."""

    model: str
    client: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Summary:
    """Many clients in five numbers; every client counts the same."""

    mean: float
    std: float
    worst: float
    bottom_decile: float
    clients: int


def summarise(values: Sequence[float], higher_is_better: bool = True) -> Summary:
    """Mean, population standard deviation, worst client and the worst tenth's boundary.

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
