"""Ways to divide a pool of labelled samples among clients, each a pure function of a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from fedskew.data.graded import graded
from fedskew.data.owners import owner, owner_groups
from fedskew.data.shares import (
    Draws,
    Labels,
    Pool,
    Rng,
    class_sizes,
    cut,
    deal,
    largest_remainder,
    number_of_clients,
    spread,
)
from fedskew.errors import ConfigError, DataError, at_least
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob
from fedskew.types import Indices

PARTITIONS = Registry("partition", "partitions", Entry, leading=3)
"""Functions ``(pool, clients, rng, **knobs)`` that return each client's positions in the pool."""
_named = PARTITIONS.register
HALF = Draws()


def partition(
    name: str,
    labels: Labels,
    *,
    clients: int | None,
    rng: Rng,
    owners: Labels | None = None,
    segments: Labels | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> list[Indices]:
    """Divide a pool by a named partition: the sorted positions each client gets.

    >>> labels = np.array([0, 0, 1, 1, 2, 2])
    >>> [p.tolist() for p in partition("one-class", labels, clients=None,
    ...                                rng=np.random.default_rng(0))]
    [[0, 1], [2, 3], [4, 5]]
    """
    entry = PARTITIONS.find(name)
    entry.check(knobs or {})
    if len(labels) == 0:
        raise DataError(f"partition {name!r} was given no samples to divide.")
    if clients is not None:
        at_least("clients", clients, 1)
        if clients > len(labels):
            raise DataError(
                f"{clients} clients cannot share {len(labels)} samples: ask for fewer clients."
            )
    parts = entry.make(Pool(labels, owners, segments), clients, rng, **(knobs or {}))
    if not isinstance(parts, list | tuple):
        raise DataError(f"partition {name!r} must return a list of places, not {parts!r:.60}.")
    return [_rows(name, part, len(labels)) for part in parts]


def _rows(name: str, part: Any, rows: int) -> Indices:
    """One client's places in the pool, as a partition must give them."""
    places = np.asarray(part)
    if places.ndim != 1 or (places.size and places.dtype.kind not in "ui"):
        raise DataError(f"partition {name!r} must return places in the pool, not {part!r:.60}.")
    if places.size and not (places.min() >= 0 and places.max() < rows):
        raise DataError(f"partition {name!r} returned a place outside of the {rows} rows it has.")
    return np.sort(places).astype(np.int64)


@_named("iid")
def iid(pool: Pool, clients: int | None, rng: Rng) -> list[Indices]:
    """Equal random shares, whatever the label."""
    return np.array_split(rng.permutation(len(pool)), number_of_clients("iid", clients))


@_named("dirichlet")
def dirichlet(
    pool: Pool,
    clients: int | None,
    rng: Rng,
    *,
    draws: Draws = HALF,
    cap: Annotated[bool, Knob("clients stop at an equal share of the pool")] = False,
) -> list[Indices]:
    """Each class shared by Dirichlet(alpha) proportions; cap stops clients at an equal share.

    With ``cap`` a client that already holds samples/clients gets nothing of later classes, as in
    FedDisco, PFLlib and NIID-Bench; sizes then differ less. Everything is drawn again, at most
    ``retries`` times, until every client holds ``min_size`` samples.
    """
    number = number_of_clients("dirichlet", clients)
    labels = pool.labels
    classes = np.unique(labels)
    sizes = class_sizes(labels, classes)

    def draw() -> Indices:
        counts = np.zeros((len(classes), number), dtype=np.int64)
        for row, size in enumerate(sizes):
            proportions = rng.dirichlet(np.full(number, draws.alpha))
            if cap:
                open_ = counts.sum(axis=0) < len(labels) / number
                proportions = np.where(open_, proportions, 0.0)
                # A tiny alpha can put all of the mass on clients that are full.
                proportions = proportions if proportions.any() else open_.astype(float)
            counts[row] = cut(int(size), proportions)
        return counts

    counts = draws.until_large_enough("dirichlet", draw, len(pool), number)
    return deal(labels, classes, counts, rng)


@_named("quantity")
def quantity(
    pool: Pool,
    clients: int | None,
    rng: Rng,
    *,
    draws: Draws = HALF,
) -> list[Indices]:
    """Sizes by Dirichlet(alpha), labels iid: clients differ only in how much they hold."""
    number = number_of_clients("quantity", clients)

    def draw() -> Indices:
        return cut(len(pool), rng.dirichlet(np.full(number, draws.alpha)))[None]

    counts = draws.until_large_enough("quantity", draw, len(pool), number)
    return np.split(rng.permutation(len(pool)), np.cumsum(counts[0])[:-1])


@_named("shards")
def shards(
    pool: Pool,
    clients: int | None,
    rng: Rng,
    *,
    shards_per_client: Annotated[int, Knob("shards of each client", ge=1)] = 2,
) -> list[Indices]:
    """Classes cut into equal shards, assigned so that a client holds few labels (FedBABU).

    The list of all shards' labels is shuffled into one row per client; a row may repeat a label.
    If the shards do not divide evenly by classes, the largest classes get one more.
    """
    number = number_of_clients("shards", clients)
    labels = pool.labels
    classes = np.unique(labels)
    sizes = class_sizes(labels, classes)
    total = number * shards_per_client
    per_class = np.full(len(classes), total // len(classes))
    per_class[np.argsort(-sizes, kind="stable")[: total % len(classes)]] += 1
    if (per_class == 0).any() or (per_class > sizes).any():
        raise DataError(
            f"{total} shards ({number} clients, shards_per_client={shards_per_client}) cannot be "
            f"cut from {len(classes)} classes of {sizes.min()} to {sizes.max()} samples: choose "
            f"at least {len(classes)} shards and no more per class than its samples."
        )
    piles = [rng.permuted(np.arange(count)).tolist() for count in per_class]
    pieces = [
        np.array_split(np.flatnonzero(labels == label), count)
        for label, count in zip(classes, per_class, strict=True)
    ]
    table = rng.permutation(np.repeat(np.arange(len(classes)), per_class)).reshape(number, -1)
    return [np.concatenate([pieces[c][piles[c].pop()] for c in row]) for row in table]


@_named("biased")
def biased(
    pool: Pool,
    clients: int | None,
    rng: Rng,
    *,
    variant: Annotated[
        Literal["random", "even"],
        Knob("classes grouped at random, or in order with even shares of each"),
    ] = "random",
    classes_per_client: Annotated[int, Knob("classes of each biased client", ge=1)] = 2,
) -> list[Indices]:
    """Client 0 holds every class, each other client a few classes of its own (NIID-2).

    The unbiased client takes an equal share of the pool: ``random`` draws it uniformly and groups
    the classes at random; ``even`` takes the same share of each class, in class order.
    """
    labels = pool.labels
    classes = np.unique(labels)
    if len(classes) % classes_per_client:
        raise ConfigError(
            f"classes_per_client={classes_per_client} does not divide the {len(classes)} classes."
        )
    number = len(classes) // classes_per_client + 1
    if clients not in (None, number):
        raise ConfigError(
            f"partition 'biased' of {len(classes)} classes, {classes_per_client} per client, makes "
            f"{number} clients (one unbiased), not {clients}: set clients={number}."
        )
    sizes = class_sizes(labels, classes)
    share = len(labels) // number
    if variant == "random":
        unbiased = rng.multivariate_hypergeometric(sizes, share)
        order = rng.permutation(len(classes))
    else:
        unbiased = largest_remainder(share, sizes, rng)
        order = np.arange(len(classes))
    counts = np.zeros((len(classes), number), dtype=np.int64)
    counts[:, 0] = unbiased
    counts[order, np.repeat(np.arange(1, number), classes_per_client)] = (sizes - unbiased)[order]
    return deal(labels, classes, counts, rng)


@_named("one-class")
def one_class(pool: Pool, clients: int | None, rng: Rng) -> list[Indices]:
    """One class per client; with more clients than classes, several share a class evenly."""
    labels = pool.labels
    classes = np.unique(labels)
    number = len(classes) if clients is None else clients
    if number % len(classes):
        raise ConfigError(
            f"partition 'one-class' needs clients to be a multiple of the {len(classes)} classes, "
            f"not {number}."
        )
    holders = np.arange(number) % len(classes) == np.arange(len(classes))[:, None]
    return deal(labels, classes, spread(class_sizes(labels, classes), holders), rng)


@_named("label-groups")
def label_groups(
    pool: Pool,
    clients: int | None,
    rng: Rng,
    *,
    groups: Annotated[
        Sequence[Sequence[int]] | None,
        Knob("labels of each group, like [[0, 1], [2, 3]]; none: two halves of the labels"),
    ] = None,
) -> list[Indices]:
    """Groups of clients share groups of labels evenly (default: two halves of the labels).

    Labels in no group are left out. Clients are divided among the groups in order.
    """
    labels = pool.labels
    if groups is None:
        groups = [half.tolist() for half in np.array_split(np.unique(labels), 2)]
    named = _group_labels(groups, labels)
    number = len(groups) if clients is None else clients
    if number % len(groups):
        raise ConfigError(
            f"partition 'label-groups' cannot divide {number} clients evenly over "
            f"{len(groups)} groups: choose a multiple of {len(groups)}."
        )
    group_of_client = np.repeat(np.arange(len(groups)), number // len(groups))
    group_of_label = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    holders = group_of_client == group_of_label[:, None]
    return deal(labels, named, spread(class_sizes(labels, named), holders), rng)


_named("graded")(graded)
_named("owner")(owner)
_named("owner-groups")(owner_groups)


def _group_labels(groups: Sequence[Sequence[int]], labels: Labels) -> Indices:
    """The labels named in groups, in order, after checking that each can be shared."""
    if not groups or not all(groups):
        raise ConfigError(
            "groups of partition 'label-groups' must be lists of labels like [[0, 1], [2, 3]], "
            f"not {groups!r}."
        )
    named = [label for group in groups for label in group]
    if len(set(named)) < len(named):
        twice = next(label for label in named if named.count(label) > 1)
        raise ConfigError(f"label {twice} is in groups twice: give it to one group.")
    missing = sorted(set(named) - set(labels.tolist()))
    if missing:
        raise ConfigError(f"label {missing[0]} in groups has no samples in the pool.")
    return np.array(named, dtype=np.int64)
