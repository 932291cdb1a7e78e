"""Samples before they are split over clients: as their files hold them, and as a Dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.as_stored import AsStored
from fedskew.data.federation import check_samples
from fedskew.data.formats import Array
from fedskew.data.prepare import (
    ROWS_AT_ONCE,
    Preparation,
    as_floats,
    as_sequences,
    channels_first,
    scale,
)
from fedskew.data.problem import Wanted, classes_problem
from fedskew.data.remarks import NOTHING, Remarks
from fedskew.data.tables.encoder import TableEncoder
from fedskew.data.tables.kinds import Columns
from fedskew.data.tokens import TextReader, check_tokens
from fedskew.errors import ConfigError, DataError
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.types import Indices


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples in one place.

    ``x`` is float32, images as [N, channels, height, width] and features as [N, features].
    ``official_test`` holds the rows of the published test split (empty where there is none).
    ``owner`` gives each row the index of its writer, subject or source in ``owner_names``.
    ``segment`` groups rows that overlap (sliding windows), which no split may tear apart.
    ``environment`` gives each row the id of the environment it comes from inside its client.
    ``log_densities`` [N, owners] holds, where the owners' laws are known, the log density of each
    law at each sample, up to a term that is the same for all owners. ``standardise`` says that the
    samples still have to get zero mean and unit deviation, which ``build`` does: by the training
    rows of those who train. ``by_client`` says that each client will scale its samples by itself.
    With a ``vocabulary`` samples are token ids instead, int64 [N, length] with 0 for padding, and
    ``text`` says how they are made of texts.
    ``table`` holds the columns that samples come from; unless they are plain numbers, ``x`` is what
    ``build`` makes of them. ``label`` names the columns of labels. ``stored`` says what was done to
    samples since they were read, and ``remarks`` what there was to say when files were read.
    """

    name: str
    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]
    official_test: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    owner: Indices | None = None
    owner_names: tuple[str, ...] = ()
    segment: Indices | None = None
    environment: Tensor | None = None
    log_densities: Tensor | None = None
    standardise: bool = False
    problem: Problem = CLASSIFICATION
    by_client: bool = False
    table: Columns | None = None
    label: tuple[str, ...] = ()
    encoder: TableEncoder | None = None
    stored: AsStored | None = None
    remarks: Remarks = NOTHING
    vocabulary: int = 0
    text: TextReader | None = None

    def __post_init__(self) -> None:
        check_samples(self.name, self.x, self.y, self.vocabulary)
        self.problem.check(self.name, self.y, self.class_names)
        for field_name in ("owner", "segment", "environment"):
            values = getattr(self, field_name)
            if values is not None and len(values) != len(self.y):
                raise DataError(
                    f"{self.name}: {len(values)} {field_name} ids for {len(self.y)} samples."
                )
        if self.log_densities is not None:
            owners = 0 if self.owner is None else int(self.owner.max()) + 1
            shape = list(self.log_densities.shape)
            if not owners or len(shape) != 2 or shape[0] != len(self.y) or shape[1] < owners:
                raise DataError(
                    f"{self.name}: log_densities of shape {shape} do not fit {len(self.y)} samples "
                    f"of {owners} owners."
                )

    @property
    def train_rows(self) -> Indices:
        """Rows outside the published test split."""
        keep = np.ones(len(self.y), dtype=bool)
        keep[self.official_test] = False
        return np.flatnonzero(keep).astype(np.int64)


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


def to_dataset(
    name: str,
    raw: RawSamples,
    preparation: Preparation,
    published: tuple[float, float] | None = None,
) -> Dataset:
    """Float32 tensors, channels first, converted, and scaled as far as nobody's rows are needed.

    ``published`` are the mean and deviation everybody uses for these images in their stored size.
    """
    if preparation.classes is not None:
        raw = raw.only(preparation.classes)
    test = np.zeros(len(raw.y), dtype=bool) if raw.test is None else raw.test
    if test.all():
        raise DataError(f"{raw.origin}: every row is marked as test; none is left to train on.")
    if raw.vocabulary or raw.signals:
        x = as_sequences(raw.origin, raw.x, preparation, bool(raw.vocabulary))
        shift, spread = 0.0, 1.0
    else:
        x = as_floats(raw.origin, raw.x, preparation.image)
        if x.shape[2:] != channels_first(raw.origin, raw.x).shape[2:]:
            published = None
        shift, spread = scale(raw.origin, x, preparation.normalise, published)
    return Dataset(
        name,
        torch.from_numpy(x),
        torch.from_numpy(raw.y.astype(np.int64 if raw.problem.classifies else np.float32)),
        raw.class_names,
        official_test=np.flatnonzero(test).astype(np.int64),
        owner=None if raw.owner is None else raw.owner.astype(np.int64),
        owner_names=raw.owner_names,
        segment=raw.segment,
        # Scaling shifts the logarithms of all owners' densities alike.
        log_densities=None if raw.log_densities is None else torch.from_numpy(raw.log_densities),
        standardise=preparation.normalise == "standard" and not (published or raw.vocabulary),
        problem=raw.problem,
        by_client=preparation.normalise == "client",
        table=raw.table,
        label=raw.label,
        stored=AsStored(tuple(x.shape[1:]), (shift,), (spread,)),
        remarks=raw.remarks,
        vocabulary=raw.vocabulary,
        text=raw.text,
    )


def with_problem(dataset: Dataset, wanted: Wanted = "auto", positive: str | None = None) -> Dataset:
    """The dataset, its classes learned as the user says: two are binary."""
    had = dataset.problem
    if had.classifies and wanted in ("auto", "classification", "binary"):
        problem = classes_problem(dataset.name, dataset.class_names, wanted, positive)
        return replace(dataset, problem=replace(problem, said=had.said or problem.said))
    if wanted not in ("auto", had.kind):
        raise ConfigError(
            f"federation.task = {wanted!r} does not fit {dataset.name}, which is for {had.kind}: "
            "leave it out."
        )
    if positive is not None:
        raise ConfigError(
            f"federation.positive names a class, but {dataset.name} has none ({had.kind}): leave "
            "it out."
        )
    return dataset
