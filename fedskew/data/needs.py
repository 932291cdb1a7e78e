"""What skews ask of the samples they change."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fedskew.data.federation import Federation
from fedskew.errors import DataError


def all_real(values: list[Any]) -> bool:
    """Whether all are finite numbers."""
    numbers = (v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
    return sum(math.isfinite(v) for v in numbers) == len(values)


def need_images(kind: str, federation: Federation, channels: int | None = None) -> None:
    """Refuse samples that are no images, or have other channels."""
    shape = federation.sample_shape
    if len(shape) != 3 or channels not in (None, shape[0]):
        wanted = "images" if channels is None else "grey images (one channel)"
        raise DataError(
            f"skew {kind!r} needs {wanted}, but a sample of {federation.name} has shape {shape}."
        )


def need_unit_scale(kind: str, x: Tensor, otherwise: str = "") -> None:
    """Refuse values outside 0..1."""
    low, high = x.aminmax()
    if low < 0 or high > 1:
        raise DataError(
            f"skew {kind!r} needs values in [0, 1], but they span {low:g} to {high:g}: load the "
            f"dataset with normalise='unit'{otherwise}."
        )
