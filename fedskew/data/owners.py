"""Clients that are the owners of samples, or pieces of what an owner has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedskew.data.choice import at_least
from fedskew.data.dataset import Dataset
from fedskew.data.deal import Labels, occurrence
from fedskew.errors import DataError
from fedskew.types import Indices


def owner(
    labels: Labels,
    owners: Labels | None,
    clients: int | None,
    rng: np.random.Generator,
    segments: Labels | None = None,
    *,
    min_samples: int = 0,
    size: int = 0,
    shuffled: bool = False,
) -> list[Indices]:
    """One client per writer, subject or source; fewer clients are a seeded choice of owners.

    ``size`` cuts what each owner has into clients of about so many samples in all: source-00,
    source-01 and so on. Samples that overlap (segments) stay together, and fewer clients are a
    choice of pieces. With 0 an owner is one client. Pieces follow the order in which samples are
    stored, which may be that of labels; ``shuffled`` deals them at random instead.
    """
    at_least("size", size, 0)
    parts = _by_owner("owner", owners, min_samples)
    if size:
        units = np.arange(len(labels)) if segments is None else segments
        order_by = rng if shuffled else None
        parts = [piece for part in parts for piece in _pieces(part, units[part], size, order_by)]
    if not parts or (clients or 0) > len(parts):
        raise DataError(
            f"{'clients' if clients is None else f'{clients} clients'} cannot be made from "
            f"{len(parts)} {'pieces of ' if size else ''}owners with at least "
            f"min_samples={min_samples} samples each."
        )
    if clients is None:
        return parts
    return [parts[i] for i in np.sort(rng.choice(len(parts), clients, replace=False))]


def owner_groups(
    labels: Labels,
    owners: Labels | None,
    clients: int | None,
    rng: np.random.Generator,
    *,
    owners_per_client: int = 3,
    min_samples: int = 0,
) -> list[Indices]:
    """Several writers, subjects or sources per client: a seeded choice, so many each.

    All owners with ``min_samples`` take part if the number of clients is left open; where they do
    not divide evenly, the first clients then have more of them.
    """
    at_least("owners_per_client", owners_per_client, 1)
    parts = _by_owner("owner-groups", owners, min_samples)
    number = len(parts) // owners_per_client if clients is None else clients
    if not 0 < number * owners_per_client <= len(parts):
        raise DataError(
            f"{'clients' if clients is None else f'{clients} clients'} of owners_per_client="
            f"{owners_per_client} cannot be made from {len(parts)} owners with at least "
            f"min_samples={min_samples} samples each."
        )
    order = rng.permutation(len(parts))
    chosen = order if clients is None else order[: number * owners_per_client]
    groups = np.array_split(chosen, number)
    return [np.concatenate([parts[i] for i in group]) for group in groups]


def _by_owner(name: str, owners: Labels | None, min_samples: int) -> list[Indices]:
    """The rows of each owner that has enough of them."""
    if owners is None:
        raise DataError(
            f"partition {name!r} needs a dataset that records the owner of each sample: choose "
            "another dataset or another partition."
        )
    order = np.argsort(owners, kind="stable")
    _, first = np.unique(owners[order], return_index=True)
    return [part for part in np.split(order, first[1:]) if len(part) >= min_samples]


def _pieces(
    rows: Indices, segments: Labels, size: int, rng: np.random.Generator | None
) -> list[Indices]:
    """Rows cut where a segment ends into pieces of about equal size, in order or at random."""
    count = max(1, round(len(rows) / size))
    _, first, segment, sizes = np.unique(
        segments, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first) if rng is None else rng.permutation(len(first))
    middles = np.empty(len(sizes))
    middles[order] = np.cumsum(sizes[order]) - sizes[order] / 2
    piece = (middles[segment] * count / len(rows)).astype(np.int64)
    return [rows[piece == number] for number in np.unique(piece)]


def owner_names(dataset: Dataset, owners: Indices, in_pieces: bool) -> list[str]:
    """What clients are called, given the owner each one's samples are from."""
    names = [dataset.owner_names[i] if dataset.owner_names else f"owner-{i}" for i in owners]
    if not in_pieces:
        return names
    turns = occurrence(owners)
    width = max(2, len(str(turns.max())))
    return [f"{name}-{turn:0{width}d}" for name, turn in zip(names, turns, strict=True)]


def own_rows(owner_of_row: Indices, rows: Indices, owners: Indices) -> list[Indices]:
    """Of some rows, those of each client's owner; clients of one owner share them in order."""
    counts = zip(*np.unique(owners, return_counts=True), strict=True)
    shares = {i: np.array_split(rows[owner_of_row[rows] == i], count) for i, count in counts}
    return [shares[i][turn] for i, turn in zip(owners, occurrence(owners), strict=True)]


def group_rows(owner_of_row: Indices, rows: Indices, parts: Sequence[Indices]) -> list[Indices]:
    """Of some rows, those of the owners whose rows each client holds."""
    return [rows[np.isin(owner_of_row[rows], owner_of_row[part])] for part in parts]
