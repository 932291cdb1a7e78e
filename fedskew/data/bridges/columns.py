"""Datasets with columns: Hugging Face's and Arrow's, told by what they offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedskew.data.formats import Array
from fedskew.data.tables.reading import Table, table_of
from fedskew.errors import DataError, unknown

LABELS = ("label", "labels")
"""What a column of labels is usually called."""
SCALARS = ("Value", "ClassLabel")
Found = tuple[Any, Any, tuple[str, ...] | None]
"""Samples, labels, and the names of classes that the labels number."""


def is_hugging_face(data: Any) -> bool:
    """Whether it has the features and columns of a dataset of Hugging Face."""
    return hasattr(data, "features") and hasattr(data, "column_names")


def arrow_table(origin: str, data: Any) -> Table:
    """An Arrow table by its columns."""
    columns = {name: data.column(name) for name in data.column_names}
    return table_of(origin, {n: c.to_numpy(zero_copy_only=False) for n, c in columns.items()})


def hugging_face(
    origin: str, data: Any, x: str | None, label: str | Sequence[str] | None
) -> Found | Table:
    """Samples of one column (images, lists of numbers), else a table of all that are one value."""
    if not hasattr(data, "num_rows") or data.features is None:
        raise DataError(
            f"{origin} is a stream of Hugging Face, which has no length: load it without "
            "streaming=True."
        )
    if not data.num_rows:
        raise DataError(f"{origin} has no samples: give it at least one, or leave it out.")
    kinds = {name: type(feature).__name__ for name, feature in data.features.items()}
    labels = _label_columns(origin, kinds, label)
    column = _sample_column(origin, kinds, x, labels)
    if column is None:
        return _table(origin, data, kinds, labels)
    if len(labels) != 1:
        raise DataError(f"{origin}: label names {len(labels)} columns; name one with label=.")
    whole = data.with_format(None)
    names = getattr(data.features[labels[0]], "names", None)
    y = list(whole[labels[0]])
    if names and any(number is None or number < 0 for number in y):
        row = next(i for i, number in enumerate(y) if number is None or number < 0)
        raise DataError(f"{origin}: row {row + 1} has no label in column {labels[0]!r}.")
    return list(whole[column]), y, tuple(names) if names else None


def _label_columns(
    origin: str, kinds: dict[str, str], label: str | Sequence[str] | None
) -> tuple[str, ...]:
    """The columns of labels: as told, else the one of classes, else by its name."""
    if label is not None:
        named = (label,) if isinstance(label, str) else tuple(label)
        for name in named:
            if name not in kinds:
                raise unknown(f"label column of {origin}", name, kinds)
        return named
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    usual = [name for name in LABELS if name in kinds]
    found = classes if len(classes) == 1 else usual
    if not found:
        raise DataError(
            f"{origin} has no label column, only {', '.join(kinds)}: name it with label=."
        )
    return tuple(found[:1])


def _sample_column(
    origin: str, kinds: dict[str, str], x: str | None, labels: Sequence[str]
) -> str | None:
    """The one column that holds whole samples; none if they are made of columns of one value."""
    if x is not None:
        if x not in kinds:
            raise unknown(f"sample column of {origin}", x, kinds)
        return None if kinds[x] in SCALARS else x
    whole = [n for n, kind in kinds.items() if kind not in SCALARS and n not in labels]
    if len(whole) > 1:
        raise DataError(
            f"{origin} has several columns of samples, {', '.join(whole)}: name one with x=."
        )
    return whole[0] if whole else None


def _table(origin: str, data: Any, kinds: dict[str, str], labels: Sequence[str]) -> Table:
    """All columns, classes by their names."""
    table = arrow_table(origin, data.with_format("arrow")[:])
    columns: dict[str, Array] = {}
    for name, cells in table.columns.items():
        columns[name] = cells
        if kinds[name] == "ClassLabel":
            names = data.features[name].names
            words = [None if v is None or v != v or v < 0 else names[int(v)] for v in cells]
            columns[name] = np.array(words, dtype=object)
    return Table(origin, columns)
