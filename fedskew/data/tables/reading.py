"""Tables as their files hold them: CSV of any usual kind, Parquet, and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.data.bounded import check_regular, most_unpacked
from fedskew.data.formats import Array
from fedskew.data.tables.csv_text import csv_columns, objects
from fedskew.errors import DataError
from fedskew.types import Indices

SUFFIXES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Places:
    """Where rows stand: in which of the files below one another, with how many rows each.

    ``rows`` are the places of those that were kept, if some were not.
    """

    origin: Path | str
    parts: tuple[tuple[Path | str, int], ...] = ()
    rows: Indices | None = None

    def __str__(self) -> str:
        return str(self.origin)

    def at(self, row: int) -> str:
        """In which file, and which row of it, from 1 on."""
        row = row if self.rows is None else int(self.rows[row])
        for origin, rows in self.parts:
            if row < rows:
                return f"{origin}: row {row + 1}"
            row -= rows
        return f"{self.origin}: row {row + 1}"

    def take(self, rows: Indices) -> Places:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, cells as they are stored.

    A column is an array of numbers, truth values or dates, or of objects: text, and None where
    there is nothing. ``origin`` is the file or folder an error should name, ``parts`` the files
    that lie below one another, with their rows.
    """

    origin: Path | str
    columns: dict[str, Array]
    parts: tuple[tuple[Path | str, int], ...] = ()

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def places(self) -> Places:
        return Places(self.origin, self.parts)

    def without(self, names: Iterable[str]) -> Table:
        gone = set(names)
        return replace(self, columns={n: c for n, c in self.columns.items() if n not in gone})


def read_table(path: Path) -> Table:
    """A CSV or Parquet file, told by its suffix."""
    if path.suffix.lower() == ".parquet":
        return Table(path, _parquet_columns(path))
    return Table(path, csv_columns(path))


def table_of(origin: str, frame: Any) -> Table:
    """A pandas or polars data frame, or a mapping of names to columns."""
    if not isinstance(frame, Mapping) and not hasattr(frame, "columns"):
        raise DataError(
            f"{origin} is a {type(frame).__name__}: give a data frame, or a mapping of names to "
            "columns."
        )
    names = list(frame) if isinstance(frame, Mapping) else list(frame.columns)
    written = [str(name) for name in names]
    if len(set(written)) < len(written):
        twice = next(name for name in written if written.count(name) > 1)
        raise DataError(f"{origin} has two columns named {twice!r}.")
    columns = {str(name): _cells(origin, str(name), frame[name]) for name in names}
    sizes = {name: len(cells) for name, cells in columns.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"{origin} has columns of different lengths: {sizes}.")
    return Table(origin, columns)


def joined(origin: Path | str, tables: Sequence[Table]) -> Table:
    """Tables below one another; their columns must have the same names, in any order."""
    first = tables[0]
    for table in tables[1:]:
        differing = set(table.columns) ^ set(first.columns)
        if differing:
            raise DataError(
                f"{table.origin} and {first.origin} differ in column {min(differing)!r}."
            )
    columns = {name: _below([t.columns[name] for t in tables]) for name in first.columns}
    return Table(origin, columns, tuple((table.origin, table.rows) for table in tables))


def _below(parts: Sequence[Array]) -> Array:
    kinds = {part.dtype.kind for part in parts}
    if len(kinds) > 1 and not kinds <= set("iuf"):
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


def _parquet_columns(path: Path) -> dict[str, Array]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow: pip install 'fedskew[parquet]'."
        ) from error
    check_regular(path)
    try:
        about = pyarrow.parquet.read_metadata(path)
        if about.num_rows * about.num_columns * 4 > most_unpacked(path.stat().st_size):
            raise DataError(f"{path} holds far more cells than a file of its size can.")
        names = pyarrow.parquet.read_schema(path).names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{path} has two columns named {twice!r}.")
        table = pyarrow.parquet.read_table(path)
        return {name: _arrow_cells(pyarrow, path, name, table.column(name)) for name in names}
    except DataError:
        raise
    except Exception as error:  # a damaged file can fail in any way at all
        raise DataError(f"{path} is not a complete Parquet file.") from error


def _arrow_cells(pyarrow: Any, path: Path, name: str, column: Any) -> Array:
    kind = column.type
    if pyarrow.types.is_nested(kind):
        raise DataError(f"{path}: column {name!r} holds {kind}, not one value a row: leave it out.")
    if pyarrow.types.is_duration(kind):
        return _days(np.asarray(column.to_numpy()))
    if pyarrow.types.is_temporal(kind) and not pyarrow.types.is_time(kind):
        column = column.cast(pyarrow.timestamp("us"))
    elif pyarrow.types.is_decimal(kind):
        column = column.cast(pyarrow.float64())
    elif not pyarrow.types.is_integer(kind) and not pyarrow.types.is_floating(kind):
        return objects(column.to_pylist())
    return np.asarray(column.to_numpy())


def _days(durations: Array) -> Array:
    micros = durations.astype("timedelta64[us]")
    days: Array = micros.astype(np.int64) / 86_400e6
    return np.where(np.isnat(micros), np.nan, days)


def _cells(origin: str, name: str, column: Any) -> Array:
    """A column of a frame; what its library calls missing becomes None or NaN."""
    try:
        cells = np.asarray(column)
    except ValueError:  # lists of different lengths
        cells = np.empty((len(column), 0))
    if cells.ndim != 1:
        raise DataError(
            f"{origin}: column {name!r} has shape {list(cells.shape)}, not one value a row."
        )
    if cells.dtype.kind in "biuf":
        return cells
    if cells.dtype.kind == "M":
        return cells.astype("datetime64[us]")  # nanoseconds become numbers beside other objects
    if cells.dtype.kind == "m":
        return _days(cells)
    if any(isinstance(cell, list | tuple | dict | set | np.ndarray) for cell in cells):
        raise DataError(f"{origin}: column {name!r} holds lists, not one value a row.")
    asked = getattr(column, "isna", None) or getattr(column, "is_null", None)
    made = objects(cells.tolist())
    if asked is not None:
        made[np.asarray(asked(), dtype=bool)] = None
    return made
