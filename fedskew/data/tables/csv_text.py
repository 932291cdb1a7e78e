"""CSV files of any usual kind: separators, quotes, encodings, decimal commas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.data.formats import Array, read_bytes
from fedskew.errors import DataError

SEPARATORS = ",;\t|"
PROBED = 200
"""Rows by which a separator is found."""
LONGEST_CELL = 10**6
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_DECIMAL_COMMA = re.compile(r"[+-]?([1-9]\d{0,2}(\.\d{3})+|\d*)(,\d+)?([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d*)?([eE][+-]?\d+)?")


def csv_columns(path: Path) -> dict[str, Array]:
    """The columns of a CSV file by name, as text."""
    text = _text(path)
    separator = _separator(text)
    rows, lines = _records(path, text, separator)
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    if not rows:
        raise DataError(f"{path} is empty: it needs a header row.")
    header = [name.strip() or f"column {i}" for i, name in enumerate(rows.pop(0), start=1)]
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path} has two columns named {twice!r}.")
    for line, row in zip(lines[1:], rows, strict=False):
        if len(row) != len(header):
            raise DataError(
                f"{path}: line {line} has {len(row)} cells where the header has {len(header)} "
                f"(separated by {separator!r})."
            )
    cells = zip(*rows, strict=True) if rows else ((),) * len(header)
    columns = {name: objects(column) for name, column in zip(header, cells, strict=True)}
    return {name: _plain_numbers(path, separator, name, c) for name, c in columns.items()}


def _text(path: Path) -> str:
    """The text of a file by its byte order mark, else UTF-8, else what Windows writes."""
    data = read_bytes(path)
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    try:
        text = data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise DataError(f"{path} begins like {encoding} text, but is not.") from error
        try:
            text = data.decode("cp1252")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
    if _CONTROL.search(text):
        raise DataError(f"{path} is not a table in text: it holds control characters.")
    return text


def _separator(text: str) -> str:
    """The one that gives rows as long as the header, and most columns."""
    found = {}
    for mark in SEPARATORS:
        rows = _probed(text, mark)
        width = len(rows[0]) if rows else 0
        if width > 1:
            fitting = sum(len(row) == width for row in rows)
            found[mark] = (fitting == len(rows), width)
    return max(found, key=lambda mark: found[mark]) if found else ","


def _probed(text: str, separator: str) -> list[list[str]]:
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            if row:
                rows.append(row)
            if len(rows) == PROBED:
                break
    except csv.Error:  # told by whoever reads all of it
        pass
    return rows


def _records(path: Path, text: str, separator: str) -> tuple[list[list[str]], list[int]]:
    """All rows but blank ones, and the line each begins in.

    Lenient with quotes inside cells, but not with one that never closes.
    """
    csv.field_size_limit(LONGEST_CELL)
    found: list[list[str]] = []
    lines: list[int] = []
    for strict in (True, False):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=strict)
        found, lines, begun = [], [], 0
        try:
            for row in reader:
                if row and (len(row) > 1 or row[0].strip()):
                    found.append(row)
                    lines.append(begun + 1)
                begun = reader.line_num
            return found, lines
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise DataError(
                    f"{path}: a quote is opened after line {begun} and never closed."
                ) from error
            if not strict:
                raise DataError(f"{path} is not a CSV file: {error}.") from error
    return found, lines


def objects(cells: Sequence[Any]) -> Array:
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


def _plain_numbers(path: Path, separator: str, name: str, cells: Array) -> Array:
    """Numbers written like 1.234,5 or 1,234.5 as 1234.5; any other column as it is.

    Where all of a column are like 1,234, files separated by commas are taken to have thousands,
    and those by semicolons, as spreadsheets write them where the comma is decimal, to have none.
    """
    if "," not in "\0".join(cells.tolist()):
        return cells
    bare = {word: word.strip() for word in set(cells.tolist()) if any(map(str.isdigit, word))}
    commas = [word for word in bare.values() if "," in word]
    decimal = all(map(_DECIMAL_COMMA.fullmatch, bare.values()))
    grouped = all(map(_THOUSANDS.fullmatch, bare.values()))
    if not commas or not (decimal or grouped):
        return cells
    if decimal and grouped and separator not in ",;":
        raise DataError(
            f"{path}: column {name!r} holds {commas[0]!r}, which may be "
            f"{commas[0].replace(',', '.')} or {commas[0].replace(',', '')}: write numbers with a "
            "decimal point and without thousands."
        )
    if decimal and not (grouped and separator == ","):
        made = {word: text.replace(".", "").replace(",", ".") for word, text in bare.items()}
    else:
        made = {word: text.replace(",", "") for word, text in bare.items()}
    return objects([made.get(word, word) for word in cells.tolist()])
