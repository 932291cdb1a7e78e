"""Single labels as a file holds them: words, numbers, yes or no; missing ones are named by row."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedskew.errors import DataError

YES = frozenset({"true", "yes", "ja", "oui", "si", "sí", "sim", "wahr", "vrai", "vero", "waar"})
NO = frozenset({"false", "no", "nein", "nee", "nej", "non", "não", "nao", "falsch", "faux", "falso",
                "onwaar"})  # fmt: skip
"""Words for yes and no, in small letters, as people and their spreadsheets write them."""
SIGNS = (("+", "-"), ("y", "n"), ("j", "n"), ("t", "f"), ("pos", "neg"), ("positive", "negative"),
         ("positiv", "negativ"), ("positif", "négatif"), ("positivo", "negativo"))  # fmt: skip
"""What else two classes may be called of which the first is looked for."""


class Rows(Protocol):
    """What knows in which of several files a row is."""

    def at(self, row: int) -> str: ...


Origin = Path | str | Rows
"""Where labels are from, as errors name it."""


def row_of(origin: Origin, row: int) -> str:
    return f"{origin}: row {row + 1}" if isinstance(origin, Path | str) else origin.at(row)


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


def alike(label: str) -> str:
    """What labels have in common that are one label in two spellings.

    >>> alike("1.0"), alike("1"), alike("Yes"), alike("YES"), alike("A"), alike("01")
    ('1', '1', 'yes', 'yes', 'A', '01')
    """
    if re.fullmatch(r"[+-]?(0|[1-9]\d*)(\.0*)?", label):
        return str(int(float(label)))
    small = label.lower()
    return small if small in YES or small in NO else label


def looked_for(first: str, second: str) -> str:
    """Of two classes the one that is looked for, unless it is said: yes of yes and no.

    >>> looked_for("ja", "nein"), looked_for("+", "-"), looked_for("0", "1"), looked_for("a", "b")
    ('ja', '+', '1', 'b')
    """
    small = (first.lower(), second.lower())
    return first if small in SIGNS or (small[0] in YES and small[1] in NO) else second


def word_of(origin: Origin, column: str, row: int, cell: Any) -> str:
    missing = cell is None or (isinstance(cell, float) and math.isnan(cell))
    text = "" if missing else str(cell).strip()
    if not text:
        raise DataError(f"{row_of(origin, row)} has no label in column {column!r}: leave it out.")
    return text


def target_of(origin: Origin, column: str, row: int, word: str) -> float:
    value = float(word) if is_number(word) else math.nan
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise DataError(
            f"{row_of(origin, row)}, column {column!r} holds {word!r:.60}, which is not a finite "
            "number, as federation.task = 'regression' needs."
        )
    return value


def yes_or_no(origin: Origin, column: str, row: int, cell: Any) -> float:
    word = word_of(origin, column, row, cell).lower()
    if word in YES or word in NO:
        return float(word in YES)
    if is_number(word) and float(word) in (0.0, 1.0):
        return float(word)
    raise DataError(
        f"{row_of(origin, row)}, column {column!r} holds {word!r:.60}, but a label of a "
        "multi-label problem is 0 or 1, yes or no."
    )
