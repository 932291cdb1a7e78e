"""What a loader returns: samples, labels and who they came from, before any split into clients."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fedskew.data.federation import check_samples
from fedskew.errors import DataError
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
    law at each sample, up to a term that is the same for all owners.
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

    def __post_init__(self) -> None:
        check_samples(self.name, self.x, self.y, len(self.class_names))
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
