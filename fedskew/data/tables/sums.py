"""What a client tells of its columns, so that all rows are encoded alike: sums, and no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedskew.data.moments import Moments, overall
from fedskew.data.tables.kinds import WORDS, Column, Columns
from fedskew.types import Indices

MOST_LEVELS = 20
"""A column of more words is hashed: each word gets a place by itself, and none is told."""
ROWS_A_WORD = 2
"""A client with fewer rows for each word of a column tells none: a word could name a row."""
NORMAL_QUARTILES = 1.349
"""Deviations between the quartiles of a normal law."""


@dataclass(frozen=True)
class ColumnSums:
    """Of a client's training rows: the kinds they may be of, how many hold a value, and sums.

    ``total`` and ``squares`` are as in :class:`Moments`. ``middle`` is the client's median and
    ``spread`` its squared deviation as its quartiles tell it, each times ``present``: summed over
    clients they give a centre and a scale that a few wild values do not move. ``words`` are those
    of a column of words: none where there are few rows for each, None if there are too many or they
    are withheld. ``distinct`` is how many there are.
    """

    kinds: tuple[str, ...]
    present: int
    missing: int
    total: float = 0.0
    squares: float = 0.0
    middle: float = 0.0
    spread: float = 0.0
    distinct: int = 0
    words: tuple[str, ...] | None = None

    @classmethod
    def of(cls, column: Column, rows: Indices) -> ColumnSums:
        """Of some rows of a column.

        >>> column = Column("age", "number", np.array([1.0, 2.0, 3.0, 4.0, 90.0, np.nan]))
        >>> told = ColumnSums.of(column, np.arange(6))
        >>> told.present, told.missing, told.total, told.middle / told.present
        (5, 1, 100.0, 3.0)
        """
        kinds = column.fits(rows)
        held = column.take(rows).read_as(kinds[0]).values
        held = held[~np.isnan(held)]
        present, missing = len(held), len(rows) - len(held)
        if not present:
            return cls(kinds, 0, missing)
        if kinds[0] in WORDS:
            words = tuple(sorted(column.words[i] for i in np.unique(held.astype(np.int64))))
            few = present < ROWS_A_WORD * len(words)
            many = kinds[0] == "hash" or len(words) > MOST_LEVELS
            told = None if many else () if few else words
            return cls(kinds, present, missing, distinct=len(words), words=told)
        squares = float(np.square(held - held.mean()).sum())
        low, middle, high = (float(q) for q in np.quantile(held, (0.25, 0.5, 0.75)))
        spread = present * ((high - low) / NORMAL_QUARTILES) ** 2
        return cls(
            kinds, present, missing, float(held.sum()), squares, present * middle,
            spread if high > low else squares,
        )  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """As a message holds it."""
        return {k: v for k, v in asdict(self).items() if k == "words" or v not in (0, 0.0)}


@dataclass(frozen=True)
class TableSums:
    """What a client tells of all columns, by name in their order.

    ``moments`` are those of all columns together where each is a number that no training row lacks:
    if that holds for everybody, samples are scaled like those of any other file.
    """

    columns: dict[str, ColumnSums]
    moments: Moments | None = None

    @classmethod
    def of(cls, table: Columns, rows: Indices) -> TableSums:
        told = {column.name: ColumnSums.of(column, rows) for column in table.used}
        plain = all(each.kinds[0] == "number" and not each.missing for each in told.values())
        return cls(told, Moments.of(table.numbers, rows) if plain else None)

    def without_words(self) -> TableSums:
        """The same where words may not leave: they are hashed."""
        return replace(self, columns={n: replace(c, words=None) for n, c in self.columns.items()})

    def plain(self) -> dict[str, Any]:
        """As a message holds it."""
        told: dict[str, Any] = {"columns": {n: c.plain() for n, c in self.columns.items()}}
        return told if self.moments is None else {**told, "moments": self.moments.plain()}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> TableSums:
        """From a message."""
        columns = {}
        for name, each in told["columns"].items():
            words = None if each["words"] is None else tuple(each["words"])
            given = {"present": 0, "missing": 0, **each, "words": words}
            columns[name] = ColumnSums(**{**given, "kinds": tuple(each["kinds"])})
        moments = told.get("moments")
        return cls(columns, None if moments is None else Moments.read(moments))


def centre_and_scale(told: Sequence[ColumnSums], robust: bool) -> tuple[float, float]:
    """Over everybody's values: mean and deviation, or median and quartiles as clients have them.

    The scale is 0 where all values are the same. There must be a value. The robust centre is the
    mean of clients' medians by their rows: like the median of all rows it lies between the least
    and the greatest of these, so that it is exact where clients are alike.
    """
    sums = [
        Moments(
            each.present,
            np.array([each.middle if robust else each.total]),
            np.array([each.spread if robust else each.squares]),
        )
        for each in told
        if each.present
    ]
    centre, deviation = overall(sums)
    return float(centre[0]), float(deviation[0])


def words_of(told: Sequence[ColumnSums]) -> tuple[str, ...]:
    """The words that somebody tells of, in order; none where there are too many, or they hide."""
    held = [each for each in told if each.present]
    if any(each.words is None for each in held):
        return ()
    words = {word for each in held for word in each.words or ()}
    return tuple(sorted(words)) if len(words) <= MOST_LEVELS else ()
