"""How a client scales its samples by itself: a scanner that is shifted is shifted back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedskew.data.moments import Moments, figures
from fedskew.data.tables.encoder import FARTHEST, TableEncoder
from fedskew.data.tables.kinds import Column
from fedskew.data.tables.sums import ColumnSums, centre_and_scale
from fedskew.types import Indices


@dataclass(frozen=True)
class OwnScale:
    """Of every channel or feature ``shift`` is subtracted, and what is left divided by ``spread``.

    Of a table's features those in ``places`` alone are scaled, like a table's numbers are: by
    median and quartiles. ``flags`` are the places that say whether a value was missing, -1 where
    none does; such a value becomes 0, the client's own median.
    """

    shift: tuple[float, ...]
    spread: tuple[float, ...]
    places: tuple[int, ...] = ()
    flags: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, x: Tensor, holders: Sequence[Indices], encoder: TableEncoder | None = None
    ) -> OwnScale:
        """By these rows of samples, an entry for each holder.

        >>> OwnScale.of(torch.tensor([[1.0], [3.0], [8.0]]), [np.array([0, 1])])
        OwnScale(shift=(2.0,), spread=(1.0,), places=(), flags=())
        """
        if encoder is None or encoder.plain:
            mean, deviation = figures([Moments.of(x.numpy(), rows) for rows in holders])
            return cls(tuple(mean.reshape(-1).tolist()), tuple(deviation.reshape(-1).tolist()))
        found = [_of_place(x, holders, place, flag) for place, flag in encoder.measured]
        centres, scales = zip(*found, strict=True) if found else ((), ())
        places, flags = zip(*encoder.measured, strict=True) if found else ((), ())
        return cls(centres, scales, places, flags)

    def scaled(self, x: Tensor) -> Tensor:
        """Samples scaled so."""
        if not self.places:
            if len(self.shift) == 0:
                return x
            shape = (1, -1) + (1,) * (x.ndim - 2)
            shift, spread = torch.tensor(self.shift), torch.tensor(self.spread)
            return (x - shift.reshape(shape)).div_(spread.reshape(shape))
        made = x.clone()
        scales = zip(self.places, self.flags, self.shift, self.spread, strict=True)
        for place, flag, centre, scale in scales:
            made[:, place] = ((x[:, place] - centre) / scale).clamp(-FARTHEST, FARTHEST)
            if flag >= 0:
                made[x[:, flag] > 0.5, place] = 0.0
        return made


def _of_place(x: Tensor, holders: Sequence[Indices], place: int, flag: int) -> tuple[float, float]:
    """Centre and scale of one feature over the rows where it is not missing."""
    values = x[:, place].double().numpy()
    if flag >= 0:
        values = np.where(x[:, flag].numpy() > 0.5, np.nan, values)
    column = Column(str(place), "number", values)
    told = [ColumnSums.of(column, rows) for rows in holders]
    if not any(each.present for each in told):
        return 0.0, 1.0
    centre, scale = centre_and_scale(told, robust=True)
    return centre, scale or 1.0
