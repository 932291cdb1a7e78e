"""Metric rows in columns: a file is read in one pass, and rows are selected by their names."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from fedskew.errors import RunError
from fedskew.federate.metrics import Row, plain_mean
from fedskew.runs.logs import Extent, refuse_other

Text = Literal["stage", "model", "on", "client", "adapted", "split", "metric"]
TEXTS: tuple[Text, ...] = get_args(Text)
"""The text fields of a row, in their order."""
FIELDS = {field.name for field in fields(Row)}
Made = TypeVar("Made")
Wanted = str | Collection[str] | None
"""A name, or several of which any matches; None matches all."""
Whole = NDArray[np.int32]
"""Large enough for all counts here, and half as large as numpy's default."""
PORTION = 1 << 18
"""How many bytes of a file are in memory at once, plus the rest of a line."""
SHOWN = 80
"""How many bytes of a damaged line are shown."""
AS_WRITTEN = re.compile(
    rb'^\{"stage": ("[^"\\]*"), "round": (\d+), "model": (.*), '
    rb'"value": (-?\d[\d.eE+-]*|NaN|-?Infinity), "n": (\d+)\}\n',
    re.MULTILINE,
)
"""A line as run folders write it. Matching it is three times as fast as parsing JSON."""


@dataclass(frozen=True, eq=False)
class _Columns:
    """All rows of a run. Rows that differ only in round, value and n belong to one series.

    ``codes`` gives each text of a series as its position in ``names``.
    """

    series: Whole
    round: Whole
    value: NDArray[np.float64]
    n: Whole
    codes: dict[Text, Whole]
    names: dict[Text, tuple[str, ...]]


class Rows:
    """Some rows of a run, in the order in which they were written."""

    def __init__(self, columns: _Columns, places: Whole) -> None:
        self._columns, self._places = columns, places

    def __len__(self) -> int:
        return len(self._places)

    def where(
        self,
        *,
        stage: Wanted = None,
        round: int | None = None,
        model: Wanted = None,
        on: Wanted = None,
        client: Wanted = None,
        adapted: Wanted = None,
        split: Wanted = None,
        metric: Wanted = None,
    ) -> Rows:
        """The rows that have all of these names."""
        wanted: dict[Text, Wanted] = {
            "stage": stage, "model": model, "on": on, "client": client, "adapted": adapted,
            "split": split, "metric": metric,
        }  # fmt: skip
        columns, places = self._columns, self._places
        fits = np.ones(len(columns.codes["stage"]), dtype=np.bool_)
        for text, choice in wanted.items():
            if choice is not None:
                among = (choice,) if isinstance(choice, str) else choice
                known = np.array([name in among for name in columns.names[text]], dtype=np.bool_)
                fits &= known[columns.codes[text]]
        places = places[fits[columns.series[places]]]
        if round is not None:
            places = places[columns.round[places] == round]
        return Rows(columns, places)

    @property
    def round(self) -> Whole:
        return self._columns.round[self._places]

    @property
    def value(self) -> NDArray[np.float64]:
        return self._columns.value[self._places]

    @property
    def n(self) -> Whole:
        return self._columns.n[self._places]

    def texts(self, text: Text) -> list[str]:
        """Each row's value of one text field."""
        names = self._columns.names[text]
        codes = self._columns.codes[text][self._columns.series[self._places]]
        return [names[code] for code in codes.tolist()]

    def names(self, text: Text) -> list[str]:
        """The different values of one text field, in the order in which they first appear."""
        codes = self._columns.codes[text][self._columns.series[self._places]]
        different, first = np.unique(codes, return_index=True)
        return [self._columns.names[text][code] for code in different[np.argsort(first)].tolist()]

    def by_round(self) -> dict[int, list[float]]:
        """The values of each round, the first round first."""
        rounds = self.round
        order = np.argsort(rounds, kind="stable")
        numbers, starts = np.unique(rounds[order], return_index=True)
        parts = np.split(self.value[order], starts[1:])
        return {n: part.tolist() for n, part in zip(numbers.tolist(), parts, strict=False)}

    def curve(self, mean: Callable[[Sequence[float]], float] = plain_mean) -> dict[int, float]:
        """The mean value by round."""
        return {number: float(mean(values)) for number, values in self.by_round().items()}

    def by_client(self) -> dict[str, float]:
        """Each client's value; the last if there are several."""
        return dict(zip(self.texts("client"), self.value.tolist(), strict=True))

    def rows(self) -> list[Row]:
        """Each row as an object, for small numbers of rows."""
        stage, *others = (self.texts(text) for text in TEXTS)
        numbers = (self.value.tolist(), self.n.tolist())
        return [*map(Row, stage, self.round.tolist(), *others, *numbers)]


def read_rows(path: Path, length: int | None = None, sha256: str | None = None) -> Rows:
    """The rows of a file, or of those lines that start within its first ``length`` bytes.

    If there is no file, there are no rows. Bytes with another hash than is given are refused.
    """
    reader = _Reader(path)
    for portion in _portions(path, length, sha256):
        reader.take(portion)
    return reader.rows()


def read_lines(
    path: Path,
    make: Callable[[dict[str, Any]], Made],
    length: int | None = None,
    sha256: str | None = None,
) -> list[Made]:
    """An object for each line of a short file, or for those that start within ``length`` bytes."""
    found: list[Made] = []
    # A line that cannot be read says more than a hash that differs, so it is reported first.
    for portion in _portions(path, length, sha256):
        for line in portion.splitlines():
            found.append(_made(path, len(found) + 1, line, make))
    return found


def _portions(path: Path, length: int | None, sha256: str | None) -> Iterator[bytes]:
    """Whole lines, in portions of a size that is fast to process."""
    left, read, hashed = math.inf if length is None else length, 0, hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while portion := file.read(int(min(PORTION, left))):
                if not portion.endswith(b"\n"):
                    portion += file.readline()
                hashed.update(portion if left >= len(portion) else portion[: int(left)])
                left, read = max(0, left - len(portion)), read + len(portion)
                yield portion
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}.") from error
    if sha256 is not None:
        refuse_other(path, Extent(length or 0, sha256), Extent(read, hashed.hexdigest()))


def _made(path: Path, number: int, line: bytes, make: Callable[[dict[str, Any]], Made]) -> Made:
    """The object made from a line; for a damaged one, an error that says where it is."""
    try:
        return make(dict(json.loads(line)))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"line {number} of {path} is damaged: {line[:SHOWN]!r}.") from error


class _Series(dict[tuple[bytes, bytes], int]):
    """Series by their text in the file: most lines belong to a series seen before."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, ...], int] = {}

    def __missing__(self, written: tuple[bytes, bytes]) -> int:
        line = json.loads(b'{"stage": %b, "model": %b}' % written)
        if len(line) != len(TEXTS):
            raise ValueError(line)
        self[written] = number = self.number(line)
        return number

    def number(self, line: dict[str, Any]) -> int:
        """The series of a line."""
        names = tuple(line[text] for text in TEXTS)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(names)
        return self.names.setdefault(names, len(self.names))


class _Reader:
    """Reads lines into columns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self.series = _Series()
        self.parts: list[tuple[NDArray[Any], ...]] = []

    def take(self, portion: bytes) -> None:
        """Read some whole lines."""
        count = portion.count(b"\n")
        found = AS_WRITTEN.findall(portion)
        try:
            if len(found) != count or not portion.endswith(b"\n"):
                raise ValueError("lines in another form")
            self._take_as_written(found)
        except (KeyError, OverflowError, TypeError, ValueError):
            self._take_any(portion.splitlines())
        self.lines += count

    def _take_as_written(self, found: Sequence[tuple[bytes, ...]]) -> None:
        stages, rounds, names, values, counts = zip(*found, strict=True)
        series = [self.series[key] for key in zip(stages, names, strict=True)]
        self._add(series, [*map(int, rounds)], [*map(float, values)], [*map(int, counts)])

    def _take_any(self, lines: Sequence[bytes]) -> None:
        numbered = enumerate(lines, start=self.lines + 1)
        found = [_made(self.path, number, line, self._checked) for number, line in numbered]
        self._add(*zip(*found, strict=True))

    def _checked(self, line: dict[str, Any]) -> tuple[int, int, float, int]:
        if line.keys() != FIELDS or type(line["value"]) not in (int, float):
            raise ValueError(line)
        for count in (line["round"], line["n"]):
            if type(count) is not int or not 0 <= count < 2**31:
                raise ValueError(count)
        return self.series.number(line), line["round"], line["value"], line["n"]

    def _add(
        self,
        series: Sequence[int],
        rounds: Sequence[int],
        values: Sequence[float],
        counts: Sequence[int],
    ) -> None:
        self.parts.append(
            (
                np.array(series, dtype=np.int32), np.array(rounds, dtype=np.int32),
                np.array(values, dtype=np.float64), np.array(counts, dtype=np.int32),
            )
        )  # fmt: skip

    def rows(self) -> Rows:
        if not self.parts:
            self._add([], [], [], [])
        series, rounds, values, counts = map(np.concatenate, zip(*self.parts, strict=True))
        codes: dict[Text, Whole] = {}
        names: dict[Text, tuple[str, ...]] = {}
        for place, text in enumerate(TEXTS):
            known: dict[str, int] = {}
            numbers = [known.setdefault(of[place], len(known)) for of in self.series.names]
            codes[text], names[text] = np.array(numbers, dtype=np.int32), tuple(known)
        columns = _Columns(series, rounds, values, counts, codes, names)
        return Rows(columns, np.arange(len(series), dtype=np.int32))
