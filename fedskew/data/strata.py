"""What stands for a sample's class where samples are dealt or set aside, whatever is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedskew.types import Indices

BINS = 10
"""A target that is a number is dealt by the tenth of all targets it lies in."""


def strata(y: Tensor) -> Indices:
    """What partitions deal by: the class; of a number its tenth; of several labels the rarest.

    Samples without any label come last.

    >>> import torch
    >>> strata(torch.arange(20.0)).tolist()[::4], strata(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    ([0, 2, 4, 6, 8], array([1, 0]))
    """
    values: NDArray[Any] = y.numpy()
    found: Indices
    if not y.is_floating_point():
        found = values
    elif values.ndim == 1:
        edges = np.quantile(values.astype(np.float64), np.arange(1, BINS) / BINS)
        found = np.digitize(values, edges)
    else:
        held = values > 0.5
        rarest = np.where(held, held.sum(axis=0), len(values) + 1).argmin(axis=1)
        found = np.where(held.any(axis=1), rarest, held.shape[1])
    return found


def strata_names(y: Tensor, class_names: Sequence[str]) -> tuple[str, ...]:
    """What the strata of these labels are called.

    >>> import torch
    >>> strata_names(torch.zeros(3, 2), ("fever", "cough"))
    ('fever', 'cough', 'none')
    """
    if not y.is_floating_point():
        return tuple(class_names)
    if y.ndim == 1:
        return tuple(f"tenth {place + 1}" for place in range(BINS))
    return (*class_names, "none")


def kinds(y: Tensor) -> Indices:
    """Groups of which every split and every few shots get some: classes, else all samples alike."""
    return np.zeros(len(y), np.int64) if y.is_floating_point() else strata(y)
