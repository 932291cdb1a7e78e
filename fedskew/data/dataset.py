"""Samples before they are split over clients, in tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedskew.data.as_stored import AsStored
from fedskew.data.federation import check_samples
from fedskew.data.prepare import (
    Preparation,
    as_floats,
    as_sequences,
    channels_first,
    scale,
)
from fedskew.data.problem import Wanted, classes_problem
from fedskew.data.raw import RawSamples
from fedskew.data.remarks import NOTHING, Remarks
from fedskew.data.tables.encoder import TableEncoder
from fedskew.data.tables.kinds import Columns
from fedskew.data.tokens import TextReader
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
