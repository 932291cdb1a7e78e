"""Single labels as a file holds them: words, numbers, yes or no; missing ones are named by row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.errors import DataError


def number_first(label: str) -> tuple[bool, float, str]:
    """Sort 2 before 10, and numbers before words."""
    number = float(label) if is_number(label) else float("nan")
    return (number != number, 0.0 if number != number else number, label)


def is_number(cell: Any) -> bool:
    """Whether a cell reads as a number; Python's own 1_000 does not."""
    try:
        float(cell)
    except (ValueError, TypeError, OverflowError):
        return False
    return not (isinstance(cell, str) and "_" in cell)


def word_of(origin: Path | str, column: str, row: int, cell: Any) -> str:
    missing = cell is None or (isinstance(cell, float) and math.isnan(cell))
    text = "" if missing else str(cell).strip()
    if not text:
        raise DataError(f"{origin}: row {row + 1} has no label in column {column!r}.")
    return text


def target_of(origin: Path | str, column: str, row: int, word: str) -> float:
    value = float(word) if is_number(word) else math.nan
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise DataError(
            f"{origin}: row {row + 1}, column {column!r} holds {word!r:.60}, which is not a finite "
            "number, as federation.task = 'regression' needs."
        )
    return value


def yes_or_no(origin: Path | str, column: str, row: int, cell: Any) -> float:
    word = word_of(origin, column, row, cell).lower()
    if word in ("true", "false"):
        return float(word == "true")
    if is_number(word) and float(word) in (0.0, 1.0):
        return float(word)
    raise DataError(
        f"{origin}: row {row + 1}, column {column!r} holds {word!r:.60}, but a label of a "
        "multi-label problem is 0 or 1."
    )
