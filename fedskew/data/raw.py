"""Samples as their files hold them, before they are scaled or split over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedskew.data.formats import Array
from fedskew.data.prepare import (
    ROWS_AT_ONCE,
)
from fedskew.data.remarks import NOTHING, Remarks
from fedskew.data.tables.kinds import Columns
from fedskew.data.tokens import TextReader, check_tokens
from fedskew.errors import ConfigError, DataError
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.types import Indices


@dataclass(frozen=True)
class RawSamples:
    """What a reader found. uint8 images still hold 0..255; everything else is final.

    ``signals`` says that samples are [channels, time] and no images without a channel; with a
    ``vocabulary`` they are token ids.

    ``origin`` is the file or folder an error should name. ``test`` marks the published test rows.
    ``log_densities`` are those of the owners' laws, where they are known, ``table`` and ``label``
    the columns that samples and labels come from: see ``Dataset``.
    """

    origin: Path | str
    x: Array
    y: Array
    class_names: tuple[str, ...]
    test: NDArray[np.bool_] | None = None
    owner: Indices | None = None
    owner_names: tuple[str, ...] = ()
    segment: Indices | None = None
    log_densities: Array | None = None
    problem: Problem = CLASSIFICATION
    table: Columns | None = None
    label: tuple[str, ...] = ()
    remarks: Remarks = NOTHING
    signals: bool = False
    vocabulary: int = 0
    text: TextReader | None = None

    def __post_init__(self) -> None:
        check_values(self.origin, self.x)
        if self.vocabulary:
            check_tokens(self.origin, self.x, self.vocabulary)
        if self.signals and self.x.ndim != 3:
            raise DataError(
                f"{self.origin}: signals must be of shape [samples, channels, time], not "
                f"{list(self.x.shape)}."
            )
        if self.problem.classifies:
            check_labels(self.origin, self.y, len(self.class_names))
        for field_name in ("y", "test", "owner", "segment"):
            values = getattr(self, field_name)
            rows = field_name == "y" and values.ndim == 2 and not self.problem.classifies
            if values is not None and values.shape[: 1 if rows else None] != (len(self.x),):
                raise DataError(
                    f"{self.origin}: {len(self.x)} samples need {len(self.x)} values of "
                    f"{field_name!r}, not an array of shape {list(values.shape)}."
                )
        if self.owner is not None:
            check_labels(self.origin, self.owner, len(self.owner_names), "owner")

    def only(self, classes: Sequence[int | Sequence[int]]) -> RawSamples:
        """Only these classes, renumbered in this order; owners left without rows disappear.

        Several classes in a list of their own become one.
        """
        if not self.problem.classifies:
            raise ConfigError(
                f"federation.classes chooses classes, but {self.origin} has none "
                f"({self.problem.kind}): leave it out."
            )
        groups = [[one] if isinstance(one, int) else list(one) for one in classes]
        for number in chain.from_iterable(groups):
            if not 0 <= number < len(self.class_names):
                raise ConfigError(
                    f"classes names class {number}, but {self.origin} numbers its classes "
                    f"0..{len(self.class_names) - 1}."
                )
        place = np.full(len(self.class_names), -1)
        for new, group in enumerate(groups):
            place[group] = new
        rows = place[self.y] >= 0
        if not rows.any():
            raise DataError(f"{self.origin} has no samples of classes {list(classes)}.")
        kept = replace(
            self,
            x=self.x[rows],
            y=place[self.y[rows]],
            class_names=tuple("+".join(self.class_names[n] for n in group) for group in groups),
            test=None if self.test is None else self.test[rows],
            segment=None if self.segment is None else self.segment[rows],
            table=None if self.table is None else self.table.take(np.flatnonzero(rows)),
            owner=None,
            owner_names=(),
            problem=CLASSIFICATION,
            log_densities=None,  # samples of some classes follow another law
        )
        if self.owner is None:
            return kept
        left, owner = np.unique(self.owner[rows], return_inverse=True)
        return replace(kept, owner=owner, owner_names=tuple(self.owner_names[i] for i in left))


def check_values(origin: Path | str, x: Array) -> None:
    """Refuse samples that are not finite numbers, naming where they came from."""
    if x.dtype.kind not in "buif":
        raise DataError(f"{origin}: samples must be numbers, not {x.dtype}.")
    if x.ndim < 2 or x.size == 0:
        raise DataError(f"{origin}: no samples, or samples without values: shape {list(x.shape)}.")
    if x.dtype.kind != "f":
        return
    for start in range(0, len(x), ROWS_AT_ONCE):
        chunk = x[start : start + ROWS_AT_ONCE]
        bad = ~(np.abs(chunk.reshape(len(chunk), -1)) <= np.finfo(np.float32).max).all(axis=1)
        if bad.any():
            row = start + int(bad.argmax())
            raise DataError(f"{origin}: sample {row} holds a NaN or infinite value.")


def check_labels(origin: Path | str, y: Array, classes: int, kind: str = "label") -> None:
    """Refuse labels outside 0..classes-1, naming the file and the row."""
    if y.dtype.kind not in "bui":
        raise DataError(f"{origin}: each {kind} must be a whole number, not {y.dtype}.")
    bad = (y < 0) | (y >= classes)
    if bad.any():
        row = int(bad.argmax())
        raise DataError(f"{origin}: {kind} {y[row]} of sample {row} is outside 0..{classes - 1}.")


def numbered(classes: int) -> tuple[str, ...]:
    """Class names for data that only numbers its classes."""
    return tuple(str(c) for c in range(classes))


def concatenate(origin: Path | str, parts: Sequence[RawSamples]) -> RawSamples:
    """Parts that agree on shape and classes as one; segments stay apart, owners are dropped."""
    first = parts[0]
    for part in parts[1:]:
        if part.x.shape[1:] != first.x.shape[1:] or part.x.dtype != first.x.dtype:
            raise DataError(
                f"{part.origin}: samples are {part.x.dtype} {list(part.x.shape[1:])}, but those "
                f"of {first.origin} are {first.x.dtype} {list(first.x.shape[1:])}."
            )
        if part.class_names != first.class_names:
            raise DataError(f"{part.origin}: class names differ from those of {first.origin}.")
    if part_of_another := next((p for p in parts if p.problem.kind != first.problem.kind), None):
        raise DataError(
            f"{part_of_another.origin}: its labels are of another kind than those of "
            f"{first.origin}: set federation.task."
        )
    for part in parts[1:]:
        if (part.signals, part.vocabulary) != (first.signals, first.vocabulary):
            raise DataError(
                f"{part.origin}: its samples are not of the same kind as those of {first.origin}: "
                "store 'vocabulary' or 'signals' alike in both."
            )
    masks = [np.zeros(len(p.y), bool) if p.test is None else p.test for p in parts]
    return RawSamples(
        origin,
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        first.class_names,
        test=np.concatenate(masks) if any(p.test is not None for p in parts) else None,
        segment=_joined_segments(parts),
        problem=first.problem,
        signals=first.signals,
        vocabulary=first.vocabulary,
        text=first.text,
    )


def _joined_segments(parts: Sequence[RawSamples]) -> Indices | None:
    """Segment ids made unique across parts; rows of a part without any stand alone."""
    if all(part.segment is None for part in parts):
        return None
    joined, offset = [], 0
    for part in parts:
        ids: Array = np.arange(len(part.y)) if part.segment is None else part.segment
        values, index = np.unique(ids, return_inverse=True)
        joined.append(index + offset)
        offset += len(values)
    return np.concatenate(joined).astype(np.int64)
