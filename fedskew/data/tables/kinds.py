"""What a column is: numbers, words, truth values or dates; as its cells look, or as told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from fedskew.config import ColumnKind
from fedskew.data.formats import Array
from fedskew.data.tables.cells import (
    DAY,
    READERS,
    coded,
    holds_code,
    is_code,
    is_open_date,
    key_of,
    number_in,
    text_of,
)
from fedskew.data.tables.reading import Places, Table
from fedskew.errors import DataError
from fedskew.types import Indices

KINDS: tuple[str, ...] = get_args(ColumnKind)
FOUND = ("number", "boolean", "date", "category")
"""Kinds that are found without being told; of several that fit, the first."""
WORDS = ("category", "hash")
OWNER = "it says whose a row is"
MEANT = {"number": "a number", "boolean": "yes or no", "date": "a date"}
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Column:
    """A column in numbers, NaN where a value is missing.

    Dates are days since 1970, truth values 0 and 1, and words the places of theirs in ``words``.
    Of ``kind`` "text" it is not known yet what its words stand for: see :meth:`read_as`. ``told``
    is the kind that the user gave it. ``late`` says that a model was trained already, for which
    it has to be what it was.
    """

    name: str
    kind: str
    values: Doubles
    words: tuple[str, ...] = ()
    told: str | None = None
    late: bool = False
    places: Places = field(default_factory=lambda: Places("the table"))

    def take(self, rows: Indices) -> Column:
        return replace(self, values=self.values[rows], places=self.places.take(rows))

    def fits(self, rows: Indices) -> tuple[str, ...]:
        """The kinds that these rows may be of; any, where all are missing.

        Where most cells fit a kind and few do not, these are mistakes, and an error names one.
        """
        if self.told is not None:
            return (self.told,)
        held = self.values[rows]
        held = held[~np.isnan(held)]
        if not len(held):
            return FOUND
        if self.kind != "text":
            truths = self.kind == "number" and bool(np.isin(held, (0.0, 1.0)).all())
            return ("number", "boolean") if truths else (self.kind,)
        index = np.unique(held.astype(np.int64))
        found = tuple(k for k in READERS if not np.isnan(self._read[k][index]).any())
        if "number" in found and any(is_code(self.words[i]) for i in index):
            return ("category",)
        if not found:
            self._check_mistakes(rows)
        return found or ("category",)

    def _check_mistakes(self, rows: Indices) -> None:
        """Refuse words that are most likely no words; missing cells are neither."""
        rows = rows[~np.isnan(self.values[rows])]
        index = self.values[rows].astype(np.int64)
        open_dates = np.array([is_open_date(word) for word in self.words])[index]
        if open_dates.sum() > len(index) / 2:
            raise DataError(
                f"{self._cell(int(rows[open_dates.argmax()]))}, which can be read as a date in two "
                f"ways: {self._remedy('write dates like 2024-03-31')}"
            )
        for kind in ("number", "date"):
            odd = np.isnan(self._read[kind][index])
            if odd.sum() < len(index) / 2:
                self._refuse(int(rows[odd.argmax()]), kind)

    @cached_property
    def _read(self) -> dict[str, Doubles]:
        """By kind, what each word stands for, and last a missing one."""
        return {kind: np.array([*map(read, self.words), np.nan]) for kind, read in READERS.items()}

    @property
    def roughly(self) -> Doubles:
        """Cells as numbers before it is known what they are; words that are none as places."""
        if self.kind != "text":
            return self.values
        read = self._read["number"][np.where(np.isnan(self.values), -1, self.values).astype(int)]
        return np.where(np.isnan(read), self.values, read)

    def read_as(self, kind: str) -> Column:
        """The same column of this kind, which all cells must fit."""
        if kind == self.kind:
            return self
        if np.isnan(self.values).all():
            return replace(self, kind=kind, words=())
        if kind in WORDS:
            self._check_stored(kind, "text")
            return replace(self, kind=kind)
        if self.kind == "text":
            made = self._read[kind][np.where(np.isnan(self.values), -1, self.values).astype(int)]
        elif kind == "boolean":
            self._check_stored(kind, "number")
            made = np.where(np.isin(self.values, (0.0, 1.0)), self.values, np.nan)
        else:
            self._check_stored(kind, "boolean")
            made = self.values
        if (odd := np.isnan(made) & ~np.isnan(self.values)).any():
            self._refuse(int(odd.argmax()), kind)
        self._check_finite(made)
        return replace(self, kind=kind, values=made, words=())

    def _check_finite(self, values: Doubles) -> None:
        if (odd := np.abs(values) > np.finfo(np.float32).max).any():
            raise DataError(f"{self._cell(int(odd.argmax()))}, which is not a finite number.")

    def _check_stored(self, kind: str, needed: str) -> None:
        if self.kind != needed:
            raise DataError(
                f"{self.places.origin}: column {self.name!r} holds values of kind {self.kind}, "
                f"not {kind}: {'mend it' if self.late else 'correct federation.columns'}."
            )

    def _refuse(self, row: int, kind: str) -> NoReturn:
        raise DataError(f"{self._cell(row)}, which is not {MEANT[kind]}: {self._remedy()}")

    def _cell(self, row: int) -> str:
        value = self.values[row]
        cell = repr(self.words[int(value)]) if self.kind == "text" else f"{value:g}"
        return f"{self.places.at(row)}, column {self.name!r} holds {cell:.60}"

    def _remedy(self, mend: str = "mend it") -> str:
        if self.late:
            return f"{mend}."
        key = key_of(self.name)
        told = f"federation.columns = {{{key} = 'category'}}"
        return f"{mend}, or set {told}, or 'ignore' to leave it out."


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table that are used, in its order; why others are not, by name."""

    origin: Path | str
    used: tuple[Column, ...]
    ignored: dict[str, str] = field(default_factory=dict)

    def take(self, rows: Indices) -> Columns:
        return replace(self, used=tuple(column.take(rows) for column in self.used))

    @cached_property
    def numbers(self) -> NDArray[np.float32]:
        """All cells [rows, columns] as numbers where they are any; 0 for what is missing."""
        most = float(np.finfo(np.float32).max)
        made = [np.nan_to_num(c.roughly.clip(-most, most)) for c in self.used]
        return np.stack(made, axis=1).astype(np.float32)


def recognised(table: Table, told: Mapping[str, str]) -> Columns:
    """The columns of a table, and what a user told of some of them."""
    ignored = {name: OWNER for name, kind in told.items() if kind == "client"}
    kept = [name for name in table.columns if name not in ignored]
    if not kept:
        raise DataError(f"{table.origin} has no column left to learn from.")
    used = tuple(_stored(table, name, told.get(name)) for name in kept)
    return Columns(table.origin, used, ignored)


def column_of(table: Table, name: str, kind: str) -> Column:
    """A column of the kind that a model was trained with, which all cells must fit."""
    return replace(_stored(table, name, kind), late=True).read_as(kind)


def _stored(table: Table, name: str, told: str | None) -> Column:
    """A column as it is stored; text is numbers where every cell is one, and no code like 007."""
    cells, places = table.columns[name], table.places
    made = Column(name, "number", np.empty(0), told=told, places=places)
    if cells.dtype.kind == "M" and told not in WORDS:
        micros = cells.astype("datetime64[us]")
        days = micros.astype(np.int64) / (DAY * 1e6)
        return replace(made, kind="date", values=np.where(np.isnat(micros), np.nan, days))
    if cells.dtype.kind == "b" and told not in WORDS:
        return replace(made, kind="boolean", values=cells.astype(np.float64))
    values: Doubles | None = None
    if told not in WORDS:
        numeric = cells.dtype.kind in "iuf"
        values = cells.astype(np.float64) if numeric else _all_numbers(cells, told == "number")
    if values is None:
        index, words = coded(cells)
        values = np.where(index < 0, np.nan, index.astype(np.float64))
        return replace(made, kind="text", values=values, words=words)
    made = replace(made, values=values)
    made._check_finite(values)
    return made


def _all_numbers(cells: Array, codes: bool) -> Doubles | None:
    """Text as numbers, NaN where there is nothing; None where a cell is anything else."""
    try:
        text = "\0".join(cells.tolist())
        if "_" not in text and (codes or not holds_code(text)):
            return cells.astype(np.float64)  # much faster, and the same where nothing is missing
    except (TypeError, ValueError):
        pass
    read: dict[Any, float] = {}
    for cell in set(cells.tolist()):
        word = text_of(cell)
        number = math.nan if word is None else number_in(word)
        if word is not None and (math.isnan(number) or (is_code(word) and not codes)):
            return None
        read[cell] = number
    return np.array([read[cell] for cell in cells.tolist()], dtype=np.float64)
