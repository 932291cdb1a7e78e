"""Single cells of a table: words, and what numbers, truth values and dates they stand for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedskew.data.formats import Array
from fedskew.data.label_cells import NO, YES
from fedskew.types import Indices

MISSING = frozenset({"", ".", "na", "n/a", "#n/a", "#na", "nan", "null", "?", "-", "<na>"})
"""What stands for a missing value, in any case."""
BOOLEANS = {**dict.fromkeys({"1", *YES}, 1.0), **dict.fromkeys({"0", *NO}, 0.0)}
DAY = 86_400.0
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([T ].*)?|\d{1,2}\.\d{1,2}\.\d{4}")
_OPEN_DATE = re.compile(r"\d{1,2}[-/]\d{1,2}[-/](\d{4}|\d{2})|\d{1,2}\.\d{1,2}\.\d{2}")
_CODE = re.compile(r"0\d+")
_SOME_CODE = re.compile(r"(?:\A|\0)\s*0\d+\s*(?:\0|\Z)")


def text_of(cell: Any) -> str | None:
    """A cell as text, or None if it stands for a missing value.

    >>> text_of(" a "), text_of(3.0), text_of("NA"), text_of(None)
    ('a', '3', None, None)
    """
    if cell is None:
        return None
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    text = str(cell).strip()
    return None if text.lower() in MISSING else text


def coded(cells: Array) -> tuple[Indices, tuple[str, ...]]:
    """The place of each cell among the words of a column, -1 where it is missing.

    >>> coded(np.array(["b", " a", None, "NA", "b"], dtype=object))
    (array([ 0,  1, -1, -1,  0]), ('b', 'a'))
    """
    places: dict[str, int] = {}
    by_cell: dict[Any, int] = {}
    index = np.empty(len(cells), dtype=np.int64)
    for row, cell in enumerate(cells.tolist()):
        key = (type(cell), cell) if not isinstance(cell, str) else cell
        place = by_cell.get(key)
        if place is None:
            word = text_of(cell)
            place = -1 if word is None else places.setdefault(word, len(places))
            by_cell[key] = place
        index[row] = place
    return index, tuple(places)


def key_of(name: str) -> str:
    """A name as a key in TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def number_in(word: str) -> float:
    """The number that a word is, NaN if it is none; Python's own 1_000 is none."""
    if "_" in word:
        return math.nan
    try:
        return float(word)
    except ValueError:
        return math.nan


def is_code(word: str) -> bool:
    """Whether it is written like the number of a thing: 007 is not 7."""
    return _CODE.fullmatch(word) is not None


def holds_code(text: str) -> bool:
    """Whether one of many words, with NUL between them, is such a code.

    >>> holds_code("1\\0 07 \\0x"), holds_code("0\\0" + "0.07\\0" + "1e07")
    (True, False)
    """
    return _SOME_CODE.search(text) is not None


def truth_in(word: str) -> float:
    return BOOLEANS.get(word.lower(), math.nan)


def date_in(word: str) -> float:
    """Days since 1970 of dates like 2024-03-31, with a time or without, or 31.3.2024.

    >>> date_in("1970-01-02"), date_in("2.1.1970"), date_in("1970/1/2 12:00"), date_in("2/1/1970")
    (1.0, 1.0, 1.5, nan)
    """
    if not _DATE.fullmatch(word):
        return math.nan
    try:
        if "." in word[:3]:
            made = datetime.strptime(word, "%d.%m.%Y")
        else:
            day, mark, time = word.replace("/", "-").partition("T" if "T" in word else " ")
            year, month, number = day.split("-")
            made = datetime.fromisoformat(f"{year}-{month:0>2}-{number:0>2}{mark}{time.strip()}")
    except ValueError:
        return math.nan
    made = made if made.tzinfo else made.replace(tzinfo=UTC)
    return made.timestamp() / DAY


def is_open_date(word: str) -> bool:
    """Whether it is a date that may be read in two ways: of 03/04/2024 nobody knows the month."""
    return _OPEN_DATE.fullmatch(word) is not None


READERS: Mapping[str, Callable[[str], float]] = {
    "number": number_in,
    "boolean": truth_in,
    "date": date_in,
}
"""How words become numbers, by the kind of their column; the first kind that fits all is taken."""
