"""Samples on a common scale, or each client's on its own: by training rows of those who train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from fedskew.data.dataset import Dataset
from fedskew.data.federation import Client, Federation, training_rows
from fedskew.data.moments import Moments, figures
from fedskew.data.own_scale import OwnScale
from fedskew.data.skew_tools import scaled_apart
from fedskew.data.tables.fitting import fitted
from fedskew.data.tables.sums import TableSums
from fedskew.types import Indices

Learned = TypeVar("Learned", Dataset, Federation)


def standardised(
    dataset: Dataset, holders: Sequence[Indices], names: Sequence[str] = ()
) -> Dataset:
    """The samples encoded and scaled by figures of these rows, one entry a holder.

    ``names`` are those of the holders, for errors. Without any row there are no figures, and
    nothing is done.
    """
    names = names or [str(number) for number in range(1, len(holders) + 1)]
    held = {name: rows for name, rows in zip(names, holders, strict=True) if len(rows)}
    table = dataset.table
    if not held:
        return dataset
    if table is not None:
        encoder = fitted(
            table.origin,
            {name: TableSums.of(table, rows) for name, rows in held.items()},
            scaled=dataset.standardise,
            given=[column.name for column in table.used if column.told is not None],
            label=dataset.label,
            ignored=table.ignored,
        )
        table = encoder.read(table)
        x = torch.from_numpy(encoder.encode_columns(table.used))
        stored = dataset.stored
        if stored is not None:
            stored = replace(stored, taken=tuple(x.shape[1:]))
        if stored is not None and encoder.plain:
            stored = stored.scaled(*encoder.figures)
        return replace(dataset, x=x, standardise=False, table=table, encoder=encoder, stored=stored)
    if not dataset.standardise:
        return dataset
    mean, deviation = figures([Moments.of(dataset.x.numpy(), rows) for rows in held.values()])
    x = (dataset.x - torch.from_numpy(mean)).div_(torch.from_numpy(deviation))
    stored = dataset.stored and dataset.stored.scaled(mean, deviation)
    return replace(dataset, x=x, standardise=False, stored=stored)


def with_units(learned: Learned, holders: Sequence[Indices]) -> Learned:
    """Samples whose targets are numbers, scaled by the figures of these rows.

    Whoever gave units of their own has scaled them already.
    """
    problem = learned.problem
    if problem.kind != "regression" or problem.units is not None:
        return learned
    y = learned.y.numpy()[:, None]
    mean, deviation = figures([Moments.of(y, rows) for rows in holders if len(rows)])
    units = float(mean.item()), float(deviation.item())
    return replace(learned, y=in_scale(learned.y, units), problem=replace(problem, units=units))


def scaled_targets(federation: Federation) -> Federation:
    """A federation whose targets, if they are numbers, are scaled by what those who train hold."""
    return with_units(federation, training_rows(federation.clients))


def in_scale(y: Tensor, units: tuple[float, float]) -> Tensor:
    """Targets less their centre, divided by their scale."""
    centre, scale = torch.tensor(units)
    return y.sub(centre).div_(scale)


def scaled_by_clients(federation: Federation, central: Sequence[Client] = ()) -> Federation:
    """Every client's samples, unseen ones too, scaled by its own training rows.

    ``central`` are the clients the central test set was collected from, with the rows it has of
    their test splits. Rows that come from no client, and those of clients without training rows,
    are scaled by the figures of all seen clients.
    """
    x, encoder = federation.x, federation.encoder
    own = {
        client.name: OwnScale.of(x, [client.train], encoder)
        for client in federation.by_name.values()
        if len(client.train)
    }
    seen = OwnScale.of(x, training_rows(federation.clients), encoder)
    made = scaled_apart(federation, {n: s.scaled for n, s in own.items()}, seen.scaled, central)
    return made.with_data(scales={**own, "": seen})
