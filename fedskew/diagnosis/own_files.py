"""A folder of clients' files, or one site's file, as a federation whose inputs are as stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedskew.data.dataset import Dataset
from fedskew.data.federation import Client, Federation
from fedskew.data.own import load_own
from fedskew.data.tables.kinds import Columns
from fedskew.diagnosis.basis import Basis, kind_of
from fedskew.errors import DataError, unknown
from fedskew.problem import Problem


def folder_federation(folder: Path) -> Federation:
    """Each file, or folder of images, is a client; the published test split is left out."""
    found = _read(folder)
    if found.owner is None:
        raise DataError(
            f"{folder} does not say who owns a row: put a file per client into a folder, or "
            "diagnose a CONFIG that deals it."
        )
    train = found.train_rows
    clients = []
    for number, name in enumerate(found.owner_names):
        rows = train[found.owner[train] == number]
        if len(rows):
            clients.append(Client(name, rows))
    return _federation(found, clients)


def site_federation(source: Path, name: str | None) -> Federation:
    """All rows of a site outside a published test split, as one client."""
    found = _read(source)
    own = source.stem if name is None else name
    return _federation(found, [Client(own, found.train_rows)])


def _read(source: Path) -> Dataset:
    if source.is_dir() and not any(source.iterdir()):
        raise DataError(f"{source} is empty: it needs a file per client.")
    found = load_own(source, normalise="unit")
    if found.table is not None and not _is_plain(found.table):
        raise DataError(
            f"{source} has columns of words or gaps, which clients must encode alike first: "
            "diagnose a CONFIG over all of them instead."
        )
    return found


def _is_plain(table: Columns) -> bool:
    """Whether there is nothing but numbers, none of them missing."""
    return all(c.kind == "number" and not np.isnan(c.values).any() for c in table.used)


def _federation(found: Dataset, clients: list[Client]) -> Federation:
    return Federation(
        found.name, found.x, found.y, found.class_names, tuple(clients), problem=found.problem
    )


def in_classes_of(federation: Federation, basis: Basis) -> Federation:
    """A site's samples with their classes numbered as the basis numbers them."""
    kind = kind_of(federation.name, federation.problem)
    if kind != basis.kind:
        raise DataError(
            f"labels of {federation.name} are {kind}, those of the basis {basis.kind}: diagnose "
            "sites that learn the same."
        )
    if basis.kind == "numbers" or federation.class_names == basis.class_names:
        return federation
    place = {name: number for number, name in enumerate(basis.class_names)}
    for name in federation.class_names:
        if name not in place:
            raise unknown("class (not in the basis)", name, basis.class_names)
    numbers = np.array([place[name] for name in federation.class_names], np.int64)
    y = federation.y.new_tensor(numbers[federation.y.numpy()])
    # Of two classes that a site has, the basis may know more.
    return federation.with_data(y=y, class_names=basis.class_names, problem=Problem())
