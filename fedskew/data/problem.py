"""What is to be learned of samples, found out by how their labels are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.data.bounded import check_class_number
from fedskew.data.label_cells import (
    Origin,
    alike,
    is_number,
    looked_for,
    number_first,
    row_of,
    target_of,
    word_of,
    yes_or_no,
)
from fedskew.errors import ConfigError, DataError
from fedskew.problem import Kind, Problem, check_positive

Wanted = Literal["auto", "classification", "binary", "multi-label", "regression"]
MOST_CLASSES = 20
"""Whole numbers with more distinct values are classes only if they count from 0 or 1 and are
common."""
ROWS_PER_CLASS = 10
"""How many rows there are of a common class, on average."""
TO_NUMBERS = "set federation.task = 'regression' to learn numbers"
TO_CLASSES = "set federation.task = 'classification' if they are classes"


def labels_of(
    origin: Origin,
    cells: Sequence[Any],
    wanted: Wanted = "auto",
    positive: str | None = None,
    column: str = "label",
) -> tuple[Problem, NDArray[Any], tuple[str, ...]]:
    """What a column of labels, as it is written, is about: the problem, ``y`` and class names.

    Unless it is said, fractions are regression; so are whole numbers of many values, unless these
    count from 0 or 1 with rows enough for a class each. Everything else is a class; two classes
    are binary.

    >>> problem, y, names = labels_of("t.csv", ["no", "yes", "no"])
    >>> problem.kind, problem.positive, y.tolist(), names
    ('binary', 'yes', [0, 1, 0], ('no', 'yes'))
    >>> labels_of("t.csv", [0.5, 1.25, 3])[0].kind
    'regression'
    """
    words = _spelled_alike([word_of(origin, column, row, c) for row, c in enumerate(cells)])
    if wanted == "auto":
        _check_meant(origin, column, words)
    kind, why = (wanted, "as set") if wanted != "auto" else _inferred(words)
    if kind == "regression":
        if positive is not None:
            raise ConfigError(
                f"federation.positive is for two classes, but {column!r} of {origin} is learned as "
                f"a number, {why}: leave it out, or set federation.task = 'binary'."
            )
        y = np.array([target_of(origin, column, row, w) for row, w in enumerate(words)], np.float32)
        check_varies(origin, y)
        return Problem("regression", said=f"{column!r} is learned as a number: {why}."), y, ()
    if kind == "multi-label":
        return many_labels_of(origin, {column: cells})
    names = tuple(sorted(set(words), key=number_first))
    if len(names) > MOST_CLASSES and _fractions(names):
        raise ConfigError(
            f"{origin}: {column!r} holds {len(names)} different fractions, which are no classes: "
            "leave federation.task out to learn numbers, or cut them into classes yourself."
        )
    index = {name: i for i, name in enumerate(names)}
    y = np.array([index[word] for word in words], dtype=np.int64)
    return classes_problem(str(origin), names, wanted, positive, why, column), y, names


def classes_problem(
    origin: str,
    class_names: tuple[str, ...],
    wanted: Wanted = "auto",
    positive: str | None = None,
    why: str = "as set",
    column: str = "label",
) -> Problem:
    """The problem of telling these classes apart: binary if there are two."""
    kind: Kind = "classification"
    if wanted == "binary" or (wanted == "auto" and len(class_names) == 2):
        kind = "binary"
    check_positive(origin, kind, positive, class_names)
    if kind == "binary":
        chosen = looked_for(*class_names) if positive is None else positive
        how = "" if positive is not None else " (federation.positive names another)"
        said = f"{column!r} is one of two classes, {chosen!r} the positive one{how}: {why}."
        return Problem(kind, chosen, said=said)
    if positive is not None:
        raise ConfigError(
            f"federation.positive is for two classes, but {origin} has {len(class_names)}: leave "
            "it out."
        )
    return Problem(kind, said=f"{column!r} is one of {len(class_names)} classes: {why}.")


def many_labels_of(
    origin: Origin, columns: Mapping[str, Sequence[Any]]
) -> tuple[Problem, NDArray[Any], tuple[str, ...]]:
    """A multi-label problem, its ``y`` and the labels' names, from a column of 0 and 1 each."""
    said = f"{len(columns)} labels, any of which a sample may have: {', '.join(columns)}."
    y = [
        [yes_or_no(origin, name, row, cell) for row, cell in enumerate(cells)]
        for name, cells in columns.items()
    ]
    return Problem("multi-label", said=said), np.array(y, np.float32).T, tuple(columns)


def problem_of(
    origin: Path | str,
    y: NDArray[Any],
    class_names: tuple[str, ...] | None,
    wanted: Wanted = "auto",
    positive: str | None = None,
) -> tuple[Problem, NDArray[Any], tuple[str, ...]]:
    """What an array of labels is about; whole numbers with ``class_names`` are classes.

    [N, labels] is multi-label. Whole numbers are the numbers of classes, none left out.
    """
    if y.ndim == 2:
        return _label_matrix(origin, y, class_names, wanted)
    if wanted == "multi-label":
        raise DataError(
            f"{origin}: federation.task = 'multi-label' needs 'y' of shape [N, labels]."
        )
    whole = y.dtype.kind in "bui" or bool(np.equal(y, np.round(y)).all())
    if wanted == "regression" or (wanted == "auto" and not (class_names or whole)):
        return labels_of(origin, y.tolist(), "regression", column="y")
    if not whole:
        raise DataError(
            f"{origin}: 'y' holds fractions, which are no classes: leave federation.task out, or "
            "set it to 'regression'."
        )
    if class_names is None and wanted == "auto":
        kind, _ = _inferred(
            [word_of(origin, "y", row, cell) for row, cell in enumerate(y.tolist())]
        )
        if kind == "regression":
            return labels_of(origin, y.tolist(), column="y")
    if class_names is None:
        largest = int(y.max()) if y.size else -1
        check_class_number(Path(origin), largest)
        class_names = tuple(str(c) for c in range(largest + 1))
    names, said = class_names, "it holds whole numbers"
    problem = classes_problem(str(origin), names, wanted, positive, said, "y")
    return problem, y.astype(np.int64), names


def _label_matrix(
    origin: Path | str, y: NDArray[Any], class_names: tuple[str, ...] | None, wanted: Wanted
) -> tuple[Problem, NDArray[Any], tuple[str, ...]]:
    if wanted not in ("auto", "multi-label"):
        raise DataError(
            f"{origin}: 'y' has {y.shape[1]} labels for each sample, which is 'multi-label', not "
            f"{wanted!r}: leave federation.task out."
        )
    names = class_names or tuple(str(label) for label in range(y.shape[1]))
    if len(names) != y.shape[1]:
        raise DataError(f"{origin}: {len(names)} class_names for {y.shape[1]} labels.")
    return many_labels_of(origin, dict(zip(names, y.T, strict=True)))


def check_varies(origin: Origin, targets: NDArray[Any]) -> None:
    """Refuse targets of one value: nothing can be learned from them."""
    if len(targets) and bool((targets == targets[0]).all()):
        raise DataError(f"{origin}: all targets are {targets[0]:g}; nothing can be learned.")


def _fractions(words: Iterable[str]) -> bool:
    """Whether these are numbers, not all of them whole."""
    words = list(words)
    return all(map(is_number, words)) and not all(float(word).is_integer() for word in words)


def _spelled_alike(words: Sequence[str]) -> list[str]:
    """The same, where one label is spelled in several ways, 1 and 1.0 or Yes and yes, in one."""
    spellings: dict[str, set[str]] = {}
    for word in set(words):
        spellings.setdefault(alike(word), set()).add(word)
    several = {word: key for key, each in spellings.items() if len(each) > 1 for word in each}
    return [several.get(word, word) for word in words]


def _check_meant(origin: Origin, column: str, words: Sequence[str]) -> None:
    """Refuse a column that is most likely not what is to be learned, or has a mistake in it."""
    distinct = set(words)
    if len(distinct) <= MOST_CLASSES:
        return
    odd = {word for word in distinct if not is_number(word)}
    if odd and len(odd) < len(distinct) / 2:
        row = next(row for row, word in enumerate(words) if word in odd)
        raise DataError(
            f"{row_of(origin, row)}, column {column!r} holds {words[row]!r:.60}, but most labels "
            f"are numbers: mend it, leave the row out, or {TO_CLASSES}."
        )
    if odd and len(distinct) == len(words):
        raise DataError(
            f"{origin}: {column!r} is another word in every row, so nothing can be learned of it: "
            "name another column with --label or federation.label."
        )


def _inferred(words: Sequence[str]) -> tuple[Kind, str]:
    """Classes or a number, and why."""
    distinct = set(words)
    if not all(map(is_number, distinct)):
        return "classification", "it holds words"
    values = {float(word) for word in distinct}
    if _fractions(distinct):
        remedy = f" ({TO_CLASSES})" if len(values) <= MOST_CLASSES else ""
        return "regression", f"it holds fractions{remedy}"
    if len(values) <= MOST_CLASSES:
        return "classification", f"it holds {len(values)} whole numbers ({TO_NUMBERS})"
    counted = min(values) in (0, 1) and max(values) - min(values) == len(values) - 1
    if counted and len(words) >= ROWS_PER_CLASS * len(values):
        return "classification", f"it counts {len(values)} classes ({TO_NUMBERS})"
    return "regression", f"it holds {len(values)} different numbers ({TO_CLASSES})"
