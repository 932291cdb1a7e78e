"""From raw rows of a table to samples: the one thing that a model needs to read new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.tables.kinds import WORDS, Column, Columns, column_of
from fedskew.data.tables.reading import Table
from fedskew.errors import DataError

BUCKETS = 32
"""Places that hashed words share."""
FARTHEST = 6.0
"""A robust scale is not moved by wild values, so these are held at so many deviations."""
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Encoding:
    """How one column becomes features.

    Of numbers and dates ``shift`` is subtracted and what is left divided by ``spread``, between
    -``limit`` and ``limit`` if there is one; ``fill`` stands for what is missing. ``levels`` are
    words with a feature each; without any, words are hashed. ``flagged`` adds a feature that is 1
    where the value was missing.
    """

    name: str
    kind: str
    fill: float = 0.0
    shift: float = 0.0
    spread: float = 1.0
    limit: float | None = None
    levels: tuple[str, ...] = ()
    flagged: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its features."""
        made: tuple[str, ...] = (self.name,)
        if self.levels:
            made = tuple(f"{self.name}={level}" for level in self.levels)
        elif self.kind in WORDS:
            made = tuple(f"{self.name}#{bucket}" for bucket in range(BUCKETS))
        return (*made, *((f"{self.name} missing",) if self.flagged else ()))

    def encode(self, column: Column) -> Floats:
        """Its features of all rows of a column of its kind."""
        cells = column.values
        gone = np.isnan(cells)
        if self.kind in WORDS:
            made = self._places(column.words)[np.where(gone, -1, cells).astype(np.int64)]
        elif self.limit is None:
            # In single precision, as samples that are no tables are scaled.
            values = np.where(gone, self.fill, cells).astype(np.float32)
            made = ((values - np.float32(self.shift)) / np.float32(self.spread))[:, None]
        else:
            exact = (np.where(gone, self.fill, cells) - self.shift) / self.spread
            made = exact.clip(-self.limit, self.limit).astype(np.float32)[:, None]
        if not self.flagged:
            return made
        return np.concatenate([made, gone[:, None].astype(np.float32)], axis=1)

    def _places(self, words: Sequence[str]) -> Floats:
        """The features of each word, and last those of a missing one; a strange word has none."""
        made = np.zeros((len(words) + 1, len(self.levels) or BUCKETS), dtype=np.float32)
        if not self.levels:
            made[:-1] = hashed(words)
            return made
        place = {level: number for number, level in enumerate(self.levels)}
        for row, word in enumerate(words):
            if word in place:
                made[row, place[word]] = 1.0
        return made


def hashed(words: Sequence[str]) -> Floats:
    """One of 32 places for each word, by itself: no label and no other word decides."""
    from sklearn.feature_extraction import FeatureHasher

    if not words:
        return np.zeros((0, BUCKETS), dtype=np.float32)
    hasher = FeatureHasher(BUCKETS, input_type="string", alternate_sign=False, dtype=np.float32)
    made: Floats = hasher.transform([word] for word in words).toarray()
    return made


@dataclass(frozen=True)
class TableEncoder:
    """How raw rows become samples: which columns, by name, and what is made of each.

    ``ignored`` says by name why a column is not used.
    """

    columns: tuple[Encoding, ...]
    label: tuple[str, ...] = ()
    ignored: dict[str, str] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of all features, in the order of a sample."""
        return tuple(name for column in self.columns for name in column.outputs)

    @property
    def measured(self) -> tuple[tuple[int, int], ...]:
        """Of every number or date, the place of its feature, and that of its flag or -1."""
        found, place = [], 0
        for column in self.columns:
            end = place + len(column.outputs)
            if column.kind in ("number", "date"):
                found.append((place, end - 1 if column.flagged else -1))
            place = end
        return tuple(found)

    @property
    def plain(self) -> bool:
        """Whether features are the columns, numbers all of them, that nothing was done to but
        scaling.
        """
        return all(c.kind == "number" and not c.flagged and c.limit is None for c in self.columns)

    @property
    def figures(self) -> tuple[Floats, Floats]:
        """Of every column, what is subtracted and what it is divided by."""
        shifts, spreads = zip(*((c.shift, c.spread) for c in self.columns), strict=True)
        return np.array(shifts, np.float32), np.array(spreads, np.float32)

    def encode(self, table: Table) -> Floats:
        """Samples of raw rows; columns are found by name, and others left alone."""
        lacking = [column.name for column in self.columns if column.name not in table.columns]
        if lacking:
            raise DataError(lacks(table, lacking))
        return self.encode_columns(
            [column_of(table, each.name, each.kind) for each in self.columns]
        )

    def read(self, columns: Columns) -> Columns:
        """The columns that become features, of the kinds they have here."""
        held = {column.name: column for column in columns.used}
        used = [held[column.name].read_as(column.kind) for column in self.columns]
        return Columns(columns.origin, tuple(used), self.ignored)

    def encode_columns(self, columns: Sequence[Column]) -> Floats:
        """Samples of these columns, which were read as what they are."""
        made = [encoding.encode(c) for encoding, c in zip(self.columns, columns, strict=True)]
        return np.ascontiguousarray(np.concatenate(made, axis=1))

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> TableEncoder:
        columns = [
            Encoding(**{**each, "levels": tuple(each["levels"])}) for each in values["columns"]
        ]
        return cls(tuple(columns), tuple(values["label"]), dict(values["ignored"]))


def lacks(table: Table, lacking: Sequence[str]) -> str:
    """The sentence on columns that are not there, with the nearest that are."""
    lowered = {name.lower(): name for name in table.columns}
    near = get_close_matches(lacking[0].lower(), list(lowered), n=1, cutoff=0.5)
    hint = (
        f"is it {lowered[near[0]]!r}?" if near else f"it has {', '.join(list(table.columns)[:20])}."
    )
    which = "column" if len(lacking) == 1 else "columns"
    return f"{table.origin} lacks {which} {', '.join(map(repr, lacking[:10]))}: {hint}"
