"""Clients that are the owners of samples, or pieces of an owner's samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from fedskew.data.dataset import Dataset
from fedskew.data.shares import Labels, Pool, Rng, occurrence
from fedskew.errors import DataError
from fedskew.registry.knobs import Knob
from fedskew.trust.names import check_names
from fedskew.types import Indices

MinSamples = Annotated[int, Knob("owners with fewer samples are left out", ge=0)]


def owner(
    pool: Pool,
    clients: int | None,
    rng: Rng,
    *,
    min_samples: MinSamples = 0,
    size: Annotated[
        int,
        Knob("approximate samples in each piece of an owner; 0: an owner is one client", ge=0),
    ] = 0,
    shuffled: Annotated[bool, Knob("pieces are drawn at random, not in stored order")] = False,
) -> list[Indices]:
    """One client per writer, subject or source; fewer clients are a seeded choice of owners.

    ``size`` cuts each owner's samples into clients of about this size: source-00, source-01 and so
    on. Samples that overlap (segments) stay together, and fewer clients are a choice of pieces.
    With 0 an owner is one client. Pieces follow the order in which samples are stored, which may be
    that of labels; ``shuffled`` puts samples into pieces at random instead.
    """
    parts = _by_owner("owner", pool.owners, min_samples)
    if size:
        units = np.arange(len(pool)) if pool.segments is None else pool.segments
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
    pool: Pool,
    clients: int | None,
    rng: Rng,
    *,
    owners_per_client: Annotated[int, Knob("owners of each client", ge=1)] = 3,
    min_samples: MinSamples = 0,
) -> list[Indices]:
    """Several writers, subjects or sources per client: a seeded choice, the same number for each.

    All owners with ``min_samples`` take part if the number of clients is not given; if they do not
    divide evenly, the first clients have one more.
    """
    parts = _by_owner("owner-groups", pool.owners, min_samples)
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
            f"partition {name!r} needs a dataset that records the owner of each sample: set "
            "federation.partition to 'dirichlet', 'iid' or another (fedskew list partitions), or "
            "give clients files of their own, images in CLIENT/CLASS/ folders."
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


def owners_of(dataset: Dataset, parts: Sequence[Indices]) -> Indices | None:
    """The owner of each client's rows, if every client holds rows of only one owner."""
    return None if dataset.owner is None else dataset.owner[[part[0] for part in parts]]


def client_names(
    dataset: Dataset,
    parts: Sequence[Indices],
    owners: Indices | None,
    partition: str,
    in_pieces: bool,
) -> list[str]:
    """Names of clients: their owner's, numbered if owners are cut into pieces, or just numbers."""
    if owners is None:
        stem = "group" if partition == "owner-groups" else "client"
        width = max(3, len(str(len(parts) - 1)))
        return [f"{stem}-{i:0{width}d}" for i in range(len(parts))]
    names = [dataset.owner_names[i] if dataset.owner_names else f"owner-{i}" for i in owners]
    check_names(dataset.name, dict.fromkeys(names))
    if not in_pieces:
        return names
    turns = occurrence(owners)
    width = max(2, len(str(turns.max())))
    return [f"{name}-{turn:0{width}d}" for name, turn in zip(names, turns, strict=True)]


def own_rows(owner_of_row: Indices, rows: Indices, owners: Indices) -> list[Indices]:
    """For each client, the rows of its owner; clients of the same owner share them in order."""
    counts = zip(*np.unique(owners, return_counts=True), strict=True)
    shares = {i: np.array_split(rows[owner_of_row[rows] == i], count) for i, count in counts}
    return [shares[i][turn] for i, turn in zip(owners, occurrence(owners), strict=True)]


def group_rows(owner_of_row: Indices, rows: Indices, parts: Sequence[Indices]) -> list[Indices]:
    """For each client, the rows of all owners whose rows it holds."""
    return [rows[np.isin(owner_of_row[rows], owner_of_row[part])] for part in parts]
