"""A user's own data: one npz, a folder per federation, or a function that builds it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedskew.data.bounded import check_regular, check_segments, most_unpacked
from fedskew.data.dataset import Dataset, RawSamples, concatenate, read_shared, to_dataset
from fedskew.data.datasets import DATASETS
from fedskew.data.federation import Federation, checked_federation
from fedskew.data.formats import Array, read_csv
from fedskew.data.prepare import Preparation
from fedskew.data.sources import read_owner_tree
from fedskew.errors import DataError
from fedskew.registry.knobs import Knob, declared_knobs

_TABLES = (".csv", ".parquet")
MANY_ROWS = 20
"""Of so many rows, two should be of one class."""
_CLIENT_FILES = (".npz", *_TABLES)


def load_own(
    source: str | Path,
    *,
    normalise: str = "standard",
    classes: Sequence[int | Sequence[int]] | None = None,
    image: Mapping[str, int] | None = None,
    label: Annotated[str, Knob("column of the labels in CSV and Parquet files")] = "label",
    image_size: Annotated[int | None, Knob("side that images are resized to", ge=1)] = None,
) -> Dataset:
    """Samples from one npz, a folder with a file per client, or folders client/class/image.

    In the folders each client owns its rows. ``label`` names the label column of CSV and Parquet
    files, whose other columns are features; ``image_size`` resizes pictures to a square while
    they are read, so that they may differ in size. The rest is as for named datasets: see
    :class:`~fedskew.data.prepare.Preparation`.
    """
    preparation = Preparation(normalise, classes, image)
    path = Path(source)
    try:
        raw = _read_folder(path, label, image_size) if path.is_dir() else _read_file(path, label)
    except PermissionError as error:
        raise DataError(f"no permission to read {error.filename}.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    return to_dataset(path.stem, raw, preparation)


FILE_KNOBS = {n: knob for n, knob in declared_knobs(load_own).items() if knob.knob.text}
"""What federation.options says of a user's own files."""


def _read_file(path: Path, label: str) -> RawSamples:
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    if path.suffix.lower() in _TABLES:
        return _join_tables(path, [_read_table(path, label)])
    return read_shared(path)


def _read_folder(folder: Path, label: str, image_size: int | None) -> RawSamples:
    listed = [folder / name for name in sorted(os.listdir(folder)) if not name.startswith(".")]
    files = [path for path in listed if path.suffix.lower() in _CLIENT_FILES and path.is_file()]
    if not files and any(path.is_dir() for path in listed):
        return read_owner_tree(folder, image_size)
    if not files:
        raise DataError(
            f"{folder} has neither a .npz, .csv or .parquet file per client nor folders of images."
        )
    kinds = {path.suffix.lower() for path in files}
    if len(kinds) > 1:
        raise DataError(f"{folder} mixes {' and '.join(sorted(kinds))} files; keep to one kind.")
    if kinds <= set(_TABLES):
        tables = [_read_table(path, label) for path in files]
        return _owned_by_file(_join_tables(folder, tables), files, [len(t.x) for t in tables])
    parts = _same_classes([read_shared(path) for path in files])
    return _owned_by_file(concatenate(folder, parts), files, [len(p.y) for p in parts])


def _owned_by_file(raw: RawSamples, files: Sequence[Path], sizes: Sequence[int]) -> RawSamples:
    owner = np.repeat(np.arange(len(files)), sizes).astype(np.int64)
    return replace(raw, owner=owner, owner_names=tuple(path.stem for path in files))


def _same_classes(parts: Sequence[RawSamples]) -> list[RawSamples]:
    """Clients that only number their classes may each lack the last ones: take the longest list."""
    longest = max((part.class_names for part in parts), key=len)
    return [
        replace(part, class_names=longest)
        if part.class_names == longest[: len(part.class_names)]
        else part
        for part in parts
    ]


@dataclass(frozen=True)
class _Table:
    """One CSV or Parquet file: named features, and labels still as written."""

    path: Path
    columns: tuple[str, ...]
    x: Array
    labels: list[str]


def _read_table(path: Path, label: str) -> _Table:
    read = _read_csv_columns if path.suffix.lower() == ".csv" else _read_parquet_columns
    columns = read(path)
    if label not in columns:
        raise DataError(f"{path} has no label column {label!r}; its columns: {', '.join(columns)}.")
    labels = columns.pop(label)
    if not labels:
        raise DataError(f"{path} has no rows: a client needs at least one sample.")
    if not columns:
        raise DataError(f"{path} has no column besides the label {label!r}.")
    x = np.stack([_numbers(path, name, cells) for name, cells in columns.items()], axis=1)
    return _Table(
        path, tuple(columns), x, [_label(path, label, i, v) for i, v in enumerate(labels)]
    )


def _read_csv_columns(path: Path) -> dict[str, list[Any]]:
    header, rows = read_csv(path)
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path} has two columns named {twice!r}.")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _read_parquet_columns(path: Path) -> dict[str, list[Any]]:
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
        columns: dict[str, list[Any]] = pyarrow.parquet.read_table(path).to_pydict()
    except DataError:
        raise
    except Exception as error:  # a damaged file can fail in any way at all
        raise DataError(f"{path} is not a complete Parquet file.") from error
    return columns


def _numbers(path: Path, column: str, cells: Sequence[Any]) -> Array:
    """A column as float32; only when that fails is the offending cell looked for."""
    try:
        values = np.array(cells, dtype=np.float64)
        if any(isinstance(cell, str) and "_" in cell for cell in cells):
            raise ValueError("Python's own way to write 1_000")
    except (ValueError, TypeError, OverflowError):
        values = np.array([float(cell) if _is_number(cell) else np.nan for cell in cells])
    bad = ~(np.abs(values) <= np.finfo(np.float32).max)
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"{path}: row {row + 1}, column {column!r} holds {cells[row]!r:.60}, "
            "which is not a finite number."
        )
    return values.astype(np.float32)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (ValueError, TypeError, OverflowError):
        return False
    return not (isinstance(cell, str) and "_" in cell)


def _label(path: Path, column: str, row: int, value: Any) -> str:
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"{path}: row {row + 1} has no label in column {column!r}.")
    return text


def _join_tables(origin: Path, tables: Sequence[_Table]) -> RawSamples:
    """Tables with the same columns; the labels written anywhere are the classes of all."""
    first = tables[0]
    for table in tables[1:]:
        if table.columns != first.columns:
            differing = set(table.columns) ^ set(first.columns)
            what = f"column {min(differing)!r}" if differing else "the order of columns"
            raise DataError(f"{table.path} and {first.path} differ in {what}.")
    labels = [label for table in tables for label in table.labels]
    class_names = tuple(sorted(set(labels), key=_numbers_first))
    index = {name: i for i, name in enumerate(class_names)}
    y = np.array([index[label] for label in labels], dtype=np.int64)
    return RawSamples(origin, np.concatenate([table.x for table in tables]), y, class_names)


def check_learnable(source: str, data: Dataset) -> None:
    """Refuse samples that nothing can be learned from, and measurements where classes are wanted:
    fractions, or a label of its own for each row.
    """
    check_segments(source, data.segment)
    if bool((data.x == data.x[0]).all()):
        raise DataError(f"{source}: all samples are the same; nothing can be learned from them.")
    names, rows = data.class_names, len(data.y)
    fraction = next((n for n in names if _is_number(n) and not float(n).is_integer()), None)
    if fraction is not None:
        raise DataError(
            f"{source}: label {fraction} is a fraction: labels must be classes, by name or number."
        )
    if rows > MANY_ROWS and len(names) == rows:
        raise DataError(
            f"{source}: all {rows} labels differ, so they are no classes: name the right column "
            "with federation.options.label."
        )


def _numbers_first(label: str) -> tuple[bool, float, str]:
    """Sort 2 before 10, and numbers before words."""
    number = float(label) if _is_number(label) else float("nan")
    return (number != number, 0.0 if number != number else number, label)


def load_function(target: str, **knobs: Any) -> Federation:
    """The federation that a user's ``module:function`` returns when called with these knobs."""
    return checked_federation(f"dataset {target!r}", DATASETS.find(target).make(**knobs))
