"""What training rows look like, column by column, as counts: what new rows are held against.

A profile keeps no row. Of a number it has the range, rounded outwards, and how many rows lie
between rounded deciles; of words how many rows hold each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.tables.kinds import WORDS, Column, Columns
from fedskew.data.tokens import PADDING
from fedskew.types import Indices

PARTS = 10
"""A number's range is cut into so many parts of about as many rows each."""
SKETCHED = 50_000
"""Parts are found from at most so many rows, evenly taken; all rows are counted."""
MOST_COLUMNS = 4096
MOST_WORDS = 200
FEWEST = 50
"""Clients of fewer training rows do not say how much clients differ."""
OTHER, MISSING = "(another word)", "(missing)"
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Counted:
    """One column in counts: of each bin, and last of the rows where the value is missing.

    A number's bins lie between ``edges``, which belong to the bin below them; those of words are
    ``words`` and one for any other word. ``apart`` is how far the most unusual training client
    lies from all together: see :func:`distance`.
    """

    name: str
    counts: tuple[int, ...]
    edges: tuple[float, ...] = ()
    words: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    apart: float = 0.0

    @property
    def bins(self) -> tuple[str, ...]:
        """What each of the counts is of."""
        if self.words:
            return (*self.words, OTHER, MISSING)
        if not self.edges:
            return ("any", MISSING)
        inner = [f"{a:g} to {b:g}" for a, b in zip(self.edges, self.edges[1:], strict=False)]
        ends = (f"up to {self.edges[0]:g}", f"above {self.edges[-1]:g}")
        return (ends[0], *inner, ends[1], MISSING)

    def count(self, column: Column) -> Counts:
        """How many rows of a column lie in each bin."""
        return np.bincount(self.places(column), minlength=len(self.bins))

    def places(self, column: Column) -> Indices:
        """The bin of each row."""
        gone = np.isnan(column.values)
        last = len(self.bins) - 1
        if column.kind in WORDS:
            known = {word: place for place, word in enumerate(self.words)}
            found = [known.get(word, last - 1) for word in column.words]
            table = np.array([*found, last], dtype=np.int64)
            return table[np.where(gone, -1, column.values).astype(np.int64)]
        placed = np.searchsorted(np.array(self.edges), column.values.astype(np.float32), "left")
        return np.where(gone, last, placed).astype(np.int64)

    def beyond(self, column: Column) -> NDArray[np.bool_]:
        """Which rows hold what no training row held: outside the range, or another word."""
        if column.kind in WORDS:
            # Hashed words are not listed, so none of them is known to be new.
            strange: NDArray[np.bool_] = self.places(column) == len(self.bins) - 2
            return strange & bool(self.words)
        if self.low is None or self.high is None:
            return ~np.isnan(column.values)
        values = column.values.astype(np.float32)
        outside: NDArray[np.bool_] = (values < np.float32(self.low)) | (
            values > np.float32(self.high)
        )
        return outside


@dataclass(frozen=True)
class Profile:
    """The columns of training rows in counts, and how many rows and clients they are of.

    ``of`` says what the columns are: "columns" of a table as they are stored, "features" as models
    take them, or "statistics" of each image or signal.
    """

    of: str
    rows: int
    clients: int
    columns: tuple[Counted, ...] = field(default_factory=tuple)


def distance(counts: Counts, shares: Floats) -> float:
    """How far counts are from shares, by row, without what chance does to few rows.

    It estimates Σ (p - q)²/q: Pearson's statistic less its degrees of freedom, divided by the
    number of rows; at least 0.

    >>> distance(np.array([60, 40]), np.array([0.5, 0.5]))  # (4 - 1) / 100
    0.03
    """
    total = int(counts.sum())
    held = shares > 0
    if total == 0 or held.sum() < 2:
        return 0.0
    expected = shares[held] * total
    statistic = float((np.square(counts[held] - expected) / expected).sum())
    return max(0.0, (statistic - (int(held.sum()) - 1)) / total)


def furthest(by_client: Sequence[Counts]) -> float:
    """How far the client lies from all together that is most unlike them."""
    together = np.sum(by_client, axis=0)
    if len(by_client) < 2 or not together.sum():
        return 0.0
    shares = together / together.sum()
    told = [distance(counts, shares) for counts in by_client if counts.sum() >= FEWEST]
    return round(max(told, default=0.0), 6)


def profiled(of: str, columns: Sequence[Column], holders: Sequence[Indices]) -> Profile:
    """The profile of these rows of some columns, one entry of rows for each client."""
    rows = np.concatenate(holders)
    made = [counted(column, holders) for column in columns[:MOST_COLUMNS]]
    return Profile(of, len(rows), len(holders), tuple(made))


def profile_of_table(table: Columns, holders: Sequence[Indices]) -> Profile:
    return profiled("columns", table.used, holders)


def profile_of_samples(x: Tensor, holders: Sequence[Indices]) -> Profile:
    """Of samples as models take them: their features, or statistics of each image or signal."""
    rows = np.concatenate(holders)
    place = np.full(len(x), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    columns = columns_of(x[rows])
    of = "features" if x.ndim == 2 and x.is_floating_point() else "statistics"
    return profiled(of, columns, [place[held] for held in holders])


def columns_of(x: Tensor) -> tuple[Column, ...]:
    """Samples as columns of numbers: features, or of each channel of images and signals the
    brightness (mean), the contrast (deviation) and the detail (mean step between neighbours);
    of token ids, which are no amounts, how many there are in a sample.
    """
    if not x.is_floating_point():
        filled = np.sort(x.numpy(), axis=1)
        fresh = np.diff(filled, axis=1, prepend=PADDING) != 0
        counts = {"words": filled != PADDING, "different words": fresh & (filled != PADDING)}
        return tuple(
            Column(name, "number", held.sum(axis=1).astype(np.float64))
            for name, held in counts.items()
        )
    if x.ndim == 2:
        values = x[:, :MOST_COLUMNS].double().numpy()
        return tuple(
            Column(f"feature {place}", "number", values[:, place])
            for place in range(values.shape[1])
        )
    channels = x.flatten(start_dim=2)
    steps = (x[..., 1:] - x[..., :-1]).abs().flatten(start_dim=2)
    found = {
        "brightness": channels.mean(dim=2),
        "contrast": channels.std(dim=2, correction=0),
        "detail": steps.mean(dim=2) if steps.shape[2] else channels.mean(dim=2) * 0,
    }
    names = [f" of channel {c}" for c in range(x.shape[1])] if x.shape[1] > 1 else [""]
    return tuple(
        Column(f"{kind}{name}", "number", values[:, c].double().numpy())
        for kind, values in found.items()
        for c, name in enumerate(names)
    )


def counted(column: Column, holders: Sequence[Indices]) -> Counted:
    """These rows of a column in counts, one entry of rows for each client."""
    rows = np.concatenate(holders)
    held = column.values[rows]
    held = held[~np.isnan(held)]
    if column.kind in WORDS:
        words = np.unique(held.astype(np.int64))
        listed = column.kind == "category" and len(words) <= MOST_WORDS
        order = sorted(column.words[place] for place in words) if listed else []
        made = Counted(column.name, (), words=tuple(order))
    else:
        made = Counted(column.name, (), *_bins(held))
    told = [made.count(column.take(each)) for each in holders]
    total = tuple(int(n) for n in np.sum(told, axis=0))
    return Counted(made.name, total, made.edges, made.words, made.low, made.high, furthest(told))


def _bins(
    held: Floats,
) -> tuple[tuple[float, ...], tuple[str, ...], float | None, float | None]:
    """Edges between parts of about as many values, and the range; rounded, so that no edge is the
    value of a row.
    """
    if not len(held):
        return (), (), None, None
    low, high = float(held.min()), float(held.max())
    unit = _unit(high - low)
    sketch = held[:: -(-len(held) // SKETCHED)]
    few = np.unique(sketch)
    if len(few) > PARTS:
        inner = np.quantile(sketch, np.arange(1, PARTS) / PARTS, method="inverted_cdf")
        edges = sorted({_rounded(float(edge), unit) for edge in inner})
    else:
        edges = few[:-1].tolist()  # a bin for each value, however rare
    lowest, highest = _rounded(low, unit, math.floor), _rounded(high, unit, math.ceil)
    # An edge above all values would leave its bin empty.
    return tuple(e for e in edges if e < high), (), lowest, highest


def _unit(width: float) -> float:
    """The power of ten that values of such a range are rounded to: two to three digits."""
    return 10.0 ** (math.floor(math.log10(width)) - 2) if width > 0 else 0.0


def _rounded(value: float, unit: float, how: Callable[[float], int] = round) -> float:
    """A value in whole units, up to what float32 tells apart.

    >>> _rounded(0.1234, 0.01), _rounded(0.1234, 0.01, math.ceil), _rounded(5.0, 0.0)
    (0.12, 0.13, 5.0)
    """
    if unit == 0.0 or abs(value) / unit > 2**23:
        return value
    count = how(round(value / unit, 6))
    return float(f"{count * unit:.12g}")


def plain(profile: Profile) -> dict[str, Any]:
    """As JSON holds it, without what is empty."""
    columns = [
        {k: v for k, v in vars(column).items() if v not in ((), None)} for column in profile.columns
    ]
    return {**vars(profile), "columns": columns}


def columns_by_name(columns: Sequence[Column]) -> Mapping[str, Column]:
    return {column.name: column for column in columns}
