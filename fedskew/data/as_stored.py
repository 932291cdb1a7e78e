"""What was done to samples between their files and a federation, to do it to new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedskew.data.prepare import ROWS_AT_ONCE, Floats
from fedskew.types import Indices


@dataclass(frozen=True)
class AsStored:
    """From samples as stored, converted to floats of shape ``taken``, to samples on a common scale.

    Of every channel or feature ``shift`` was subtracted, and what was left divided by ``spread``.
    ``span`` are the smallest and largest value of images before that, over training rows.
    """

    taken: tuple[int, ...]
    shift: tuple[float, ...] = (0.0,)
    spread: tuple[float, ...] = (1.0,)
    span: tuple[float, float] | None = None

    def scaled(self, shift: Floats, spread: Floats) -> AsStored:
        """The same, scaled by these figures as well."""
        return replace(self, shift=_listed(shift), spread=_listed(spread))

    def spanning(self, x: torch.Tensor, holders: Sequence[Indices]) -> AsStored:
        """The same, with the span of these rows if they are images; ``x`` is scaled already."""
        rows = np.concatenate([np.empty(0, np.int64), *holders])
        if x.ndim != 4 or not len(rows):
            return self
        parts = [rows[i : i + ROWS_AT_ONCE] for i in range(0, len(rows), ROWS_AT_ONCE)]
        ends = [x[torch.from_numpy(part)].aminmax() for part in parts]
        low, high = min(float(e.min) for e in ends), max(float(e.max) for e in ends)
        figures = list(zip(self.shift, self.spread, strict=True))
        # Scaling and back leaves a trace of rounding; adding 0 makes 0 of -0.
        back = [round(v * wide + middle, 6) + 0.0 for v in (low, high) for middle, wide in figures]
        return replace(self, span=(min(back), max(back)))


def _listed(figures: Floats) -> tuple[float, ...]:
    return tuple(figures.reshape(-1).tolist())
