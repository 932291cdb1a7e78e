"""Mean and deviation of samples that nobody holds all of, from sums that each holder tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from fedskew.data.dataset import Dataset
from fedskew.data.prepare import ROWS_AT_ONCE, Floats
from fedskew.types import Indices


@dataclass(frozen=True)
class Moments:
    """All that a holder tells of its samples: ``count`` values of every channel or feature,
    their sum, and the sum of their squared distances from the holder's own mean.

    Squares of the values themselves would do as well on paper, but lose the deviation of what is
    large and hardly varies.
    """

    count: int
    total: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, x: Floats, rows: Indices) -> Moments:
        """Of some rows, in double precision; a part at a time, so that images are never copied.

        >>> Moments.of(np.array([[1.0], [5.0], [9.0]], np.float32), np.array([0, 1]))
        Moments(count=2, total=array([[6.]]), squares=array([[8.]]))
        """
        axes = (0, 2, 3) if x.ndim == 4 else (0,)
        count = len(rows) * prod(x.shape[2:])
        chunks = [rows[i : i + ROWS_AT_ONCE] for i in range(0, len(rows), ROWS_AT_ONCE)]
        total = sum(x[c].sum(axis=axes, dtype=np.float64, keepdims=True) for c in chunks)
        mean = total / count
        squares = sum(np.square(x[c] - mean).sum(axis=axes, keepdims=True) for c in chunks)
        return cls(count, np.asarray(total), np.asarray(squares))


def figures(sent: Sequence[Moments]) -> tuple[Floats, Floats]:
    """Mean and standard deviation over everybody's samples; a constant gets deviation 1.

    Σ(x - m)² is, of every holder k, its own Σ(x - m_k)² and n_k·(m_k - m)².
    """
    count = sum(each.count for each in sent)
    mean = np.asarray(sum(each.total for each in sent)) / count
    between = (each.count * np.square(each.total / each.count - mean) for each in sent)
    squares = sum(each.squares for each in sent) + sum(between)
    deviation = np.sqrt(squares / count)
    deviation[deviation <= 1e-6 * np.abs(mean)] = 1.0  # rounding noise is not a spread
    return mean.astype(np.float32), deviation.astype(np.float32)


def standardised(dataset: Dataset, holders: Sequence[Indices]) -> Dataset:
    """The samples scaled by figures of these rows, one entry a holder, if that is left to do.

    Without any row there are no figures, and nothing is done.
    """
    x = dataset.x.numpy()
    sent = [Moments.of(x, rows) for rows in holders if dataset.standardise and len(rows)]
    if not sent:
        return dataset
    mean, deviation = map(torch.from_numpy, figures(sent))
    return replace(dataset, x=(dataset.x - mean).div_(deviation), standardise=False)
