"""Mean and deviation of samples that nobody holds all of, from sums that each holder tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.prepare import ROWS_AT_ONCE, Floats
from fedskew.types import Indices

Doubles = NDArray[np.float64]


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
        axes = (0, *range(2, x.ndim))
        count = len(rows) * prod(x.shape[2:])
        chunks = [rows[i : i + ROWS_AT_ONCE] for i in range(0, len(rows), ROWS_AT_ONCE)]
        total = sum(x[c].sum(axis=axes, dtype=np.float64, keepdims=True) for c in chunks)
        mean = total / count
        squares = sum(np.square(x[c] - mean).sum(axis=axes, keepdims=True) for c in chunks)
        return cls(count, np.asarray(total), np.asarray(squares))

    def plain(self) -> dict[str, Any]:
        """As a message holds it."""
        return {
            "count": self.count, "total": self.total.tolist(), "squares": self.squares.tolist(),
        }  # fmt: skip

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Moments:
        """From a message."""
        return cls(told["count"], np.array(told["total"]), np.array(told["squares"]))


def overall(sent: Sequence[Moments]) -> tuple[Doubles, Doubles]:
    """Mean and standard deviation over everybody's samples; 0 where rounding is all that differs.

    Σ(x - m)² is, of every holder k, its own Σ(x - m_k)² and n_k·(m_k - m)².
    """
    count = sum(each.count for each in sent)
    mean = np.asarray(sum(each.total for each in sent)) / count
    between = (each.count * np.square(each.total / each.count - mean) for each in sent)
    squares = sum(each.squares for each in sent) + sum(between)
    deviation = np.sqrt(squares / count)
    deviation[deviation <= 1e-6 * np.abs(mean)] = 0.0
    return mean, deviation


def figures(sent: Sequence[Moments]) -> tuple[Floats, Floats]:
    """The same to scale by: a constant gets deviation 1."""
    mean, deviation = overall(sent)
    deviation[deviation == 0.0] = 1.0
    return mean.astype(np.float32), deviation.astype(np.float32)
