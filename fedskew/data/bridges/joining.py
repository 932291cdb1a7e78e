"""The pieces of all clients below one another, with one set of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from fedskew.data.bridges.pieces import Arrays, Piece
from fedskew.data.formats import Array
from fedskew.data.label_cells import number_first
from fedskew.data.prepare import as_floats
from fedskew.data.problem import classes_problem, labels_of, problem_of
from fedskew.data.raw import RawSamples, concatenate
from fedskew.data.tables.reading import Table
from fedskew.data.tables.samples import Asked, samples_of
from fedskew.errors import ConfigError, DataError


def joined(
    name: str,
    pieces: Sequence[Piece],
    asked: Asked,
    class_names: tuple[str, ...] | None,
    image: Mapping[str, int] | None,
) -> RawSamples:
    """All rows in the order of the pieces, their labels decided together."""
    tables = [piece for piece in pieces if isinstance(piece, Table)]
    if tables and len(tables) < len(pieces):
        other = next(piece for piece in pieces if not isinstance(piece, Table))
        raise DataError(
            f"{tables[0].origin} is a table and {other.origin} is not: give all clients alike."
        )
    if tables:
        raw = samples_of(name, tables, asked)
        return raw if class_names is None else _in_order(raw, class_names, asked)
    if asked.columns:
        raise ConfigError("columns says what columns of tables are, but the clients bring none.")
    return _of_arrays(name, cast(Sequence[Arrays], pieces), asked, class_names, image)


def _in_order(raw: RawSamples, class_names: tuple[str, ...], asked: Asked) -> RawSamples:
    """The classes in the user's order, with those that no row has."""
    if not raw.problem.classifies:
        raise ConfigError(f"class_names names classes, but {raw.origin} is for {raw.problem.kind}.")
    strangers = [name for name in raw.class_names if name not in class_names]
    if strangers:
        raise DataError(f"{raw.origin} has the class {strangers[0]!r}, which class_names lacks.")
    place = np.array([class_names.index(name) for name in raw.class_names])
    problem = classes_problem(str(raw.origin), class_names, asked.task, asked.positive)
    return replace(raw, y=place[raw.y], class_names=class_names, problem=problem)


def _of_arrays(
    name: str,
    pieces: Sequence[Arrays],
    asked: Asked,
    class_names: tuple[str, ...] | None,
    image: Mapping[str, int] | None,
) -> RawSamples:
    pieces = _with_names(pieces, class_names)
    x = concatenate(name, [_unlabelled(piece) for piece in _alike(pieces, image)]).x
    y = _labels_below(pieces)
    names = pieces[0].names
    if y.dtype == object:
        problem, y, names = labels_of(name, y.tolist(), asked.task, asked.positive)
        made = RawSamples(name, x, y, names, problem=problem)
        return made if class_names is None else _in_order(made, class_names, asked)
    problem, decided, names = problem_of(name, y, names, asked.task, asked.positive)
    if problem.classifies:
        for piece in pieces:
            _check_numbers(piece, len(names))
    return RawSamples(name, x, decided, names, problem=problem)


def _alike(pieces: Sequence[Arrays], image: Mapping[str, int] | None) -> Sequence[Arrays]:
    """The same, images converted where clients have others than each other."""
    kinds = {(piece.x.dtype, piece.x.shape[1:]) for piece in pieces}
    if image is None or len(kinds) == 1 or any(piece.x.ndim < 3 for piece in pieces):
        return pieces
    return [replace(piece, x=as_floats(piece.origin, piece.x, image)) for piece in pieces]


def _unlabelled(piece: Arrays) -> RawSamples:
    """A piece's samples alone: labels are decided for all pieces together."""
    return RawSamples(piece.origin, piece.x, np.zeros(len(piece.x), np.int64), ("",))


def _labels_below(pieces: Sequence[Arrays]) -> Array:
    first = pieces[0]
    for piece in pieces[1:]:
        words = (piece.y.dtype == object) != (first.y.dtype == object)
        if words or piece.y.shape[1:] != first.y.shape[1:]:
            raise DataError(
                f"{piece.origin}: labels are {_described(piece.y)}, but those of {first.origin} "
                f"are {_described(first.y)}."
            )
    return np.concatenate([piece.y for piece in pieces])


def _described(y: Array) -> str:
    kind = "words" if y.dtype == object else "fractions" if y.dtype.kind == "f" else "whole numbers"
    return kind if y.ndim == 1 else f"rows of {' x '.join(map(str, y.shape[1:]))} numbers"


def _check_numbers(piece: Arrays, classes: int) -> None:
    bad = (piece.y < 0) | (piece.y >= classes)
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"{piece.origin}: label {piece.y[row]} of sample {row} is outside 0..{classes - 1}, "
            "the numbers of the classes: number them from 0 on, or give words."
        )


def _with_names(pieces: Sequence[Arrays], class_names: tuple[str, ...] | None) -> Sequence[Arrays]:
    """The same with one list of classes: as the user says, else all that anybody names.

    Whoever lacks a class may have numbered the others differently, so labels go by name.
    """
    lists = [piece.names for piece in pieces]
    named = [names for names in lists if names is not None]
    if not named:
        return [replace(piece, names=class_names) for piece in pieces]
    wanted = class_names or named[0]
    if class_names is None and any(names != wanted for names in named):
        wanted = tuple(sorted({name for names in named for name in names}, key=number_first))
    made = []
    for piece in pieces:
        if piece.names is None and class_names is None:
            raise DataError(
                f"{piece.origin} only numbers its classes, while others name theirs: give "
                "class_names."
            )
        made.append(_renumbered(piece, wanted))
    return made


def _renumbered(piece: Arrays, wanted: tuple[str, ...]) -> Arrays:
    if piece.names in (None, wanted) or piece.y.dtype == object:
        return replace(piece, names=wanted)
    assert piece.names is not None
    _check_numbers(piece, len(piece.names))
    used = sorted({int(number) for number in piece.y})
    strangers = [piece.names[number] for number in used if piece.names[number] not in wanted]
    if strangers:
        raise DataError(f"{piece.origin} has the class {strangers[0]!r}, which class_names lacks.")
    place = np.array([wanted.index(n) if n in wanted else -1 for n in piece.names])
    return replace(piece, y=place[piece.y], names=wanted)
