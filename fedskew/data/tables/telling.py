"""What columns were taken for, as a table that is read before training."""

from __future__ import annotations

from itertools import groupby

from torch import Tensor

from fedskew.data.tables.encoder import BUCKETS, Encoding, TableEncoder
from fedskew.data.tables.kinds import WORDS

MOST_NAMED = 5
"""So many words of a column are named."""


def columns_told(encoder: TableEncoder, apart: bool = False) -> str:
    """One line a column, or for columns alike that stand beside one another.

    ``apart`` says that clients scale their numbers by themselves.
    """
    label = ", ".join(encoder.label)
    about = f"{len(encoder.columns)} columns become {len(encoder.outputs)} features"
    if encoder.plain and not encoder.ignored:
        each = ", scaled by each client's own mean and deviation" if apart else ""
        return f"{about}, all of them numbers{each}; label: {label}"
    rows = [("column", "kind", "what is made of it")]
    for (kind, made), alike in groupby(
        encoder.columns, lambda each: (each.kind, _made_of(each, apart))
    ):
        names = [each.name for each in alike]
        shown = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"
        rows.append((shown, kind, made))
    rows += [(name, "ignored", why) for name, why in encoder.ignored.items()]
    wide, kinds = (max(len(row[place]) for row in rows) for place in (0, 1))
    lines = [f"  {name:<{wide}}  {kind:<{kinds}}  {made}" for name, kind, made in rows]
    return "\n".join(
        [f"{about}; label: {label} (federation.columns changes what columns are)", *lines]
    )


def unscaled_told(x: Tensor) -> str:
    """What to say of samples that were left as they are stored: nothing where that fits a model.

    >>> import torch
    >>> unscaled_told(torch.tensor([[0.5, 700.0]]))[:59]
    "normalise = 'unit' scales images, but leaves features as th"
    >>> unscaled_told(torch.tensor([[0.5, -1.0]]))
    ''
    """
    if x.ndim != 2 or not x.numel():
        return ""
    low, high = (float(end) for end in x.aminmax())
    if low >= -1 and high <= 1:
        return ""
    return (
        "normalise = 'unit' scales images, but leaves features as they are stored, here "
        f"{low:g} to {high:g}: 'standard' brings them to a common scale."
    )


def _made_of(column: Encoding, apart: bool) -> str:
    """What becomes of one column, in a few words."""
    if column.levels:
        words = ", ".join(column.levels[:MOST_NAMED])
        more = f", … ({len(column.levels)})" if len(column.levels) > MOST_NAMED else ""
        made = f"0 or 1 for each of: {words}{more}"
    elif column.kind in WORDS:
        made = f"words hashed to {BUCKETS} features"
    elif column.kind == "boolean":
        made = "0 or 1"
    elif apart:
        made = "scaled by each client's own median and quartiles"
    elif column.limit is not None:
        made = "scaled by median and quartiles"
    elif (column.shift, column.spread) == (0.0, 1.0):
        made = "as stored"
    else:
        made = "scaled by mean and deviation"
    made = f"days, {made}" if column.kind == "date" else made
    return f"{made}; missing ones flagged" if column.flagged else made
