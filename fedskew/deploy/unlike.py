"""Which new inputs hold what no training row held."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedskew.data.formats import Array
from fedskew.data.profile import Profile, columns_of
from fedskew.data.tables.kinds import Column, column_of
from fedskew.data.tables.reading import Table
from fedskew.runs.preparation import SamplePreparation

NAMED = 3
"""So many columns of a row are named."""


def input_columns(
    preparation: SamplePreparation, stored: Array | Table, x: Tensor
) -> tuple[Column, ...]:
    """New inputs as the columns that a run's profile is of; ``x`` are the same as models take
    them.
    """
    encoder = preparation.encoder
    if encoder is None:
        return columns_of(x)
    if isinstance(stored, Table):
        return tuple(column_of(stored, column.name, column.kind) for column in encoder.columns)
    # An array of a run on a table of plain numbers: its columns in their order.
    values = np.asarray(stored, np.float64)
    return tuple(
        Column(column.name, "number", values[:, place])
        for place, column in enumerate(encoder.columns)
    )


def unlike(profile: Profile, columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """By row, the columns that lie beyond what training rows held: outside their range, or another
    word.
    """
    known = {column.name: column for column in profile.columns}
    found: list[list[str]] = [[] for _ in range(len(columns[0].values) if columns else 0)]
    for column in columns:
        if column.name in known:
            for row in np.flatnonzero(known[column.name].beyond(column)):
                found[row].append(column.name)
    return [tuple(names) for names in found]


def named(columns: Sequence[str]) -> str:
    """The first few of a row's columns.

    >>> named(["a", "b", "c", "d", "e"]), named([])
    ('a, b, c and 2 more', '')
    """
    more = len(columns) - NAMED
    return ", ".join(columns[:NAMED]) + (f" and {more} more" if more > 0 else "")
