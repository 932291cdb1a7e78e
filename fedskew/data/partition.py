"""Ways to divide a pool of labelled samples over clients, each a pure function of a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedskew.data.choice import Choice, at_least, register
from fedskew.data.deal import (
    Labels,
    class_sizes,
    cut,
    deal,
    largest_remainder,
    number_of_clients,
    spread,
)
from fedskew.data.graded import graded
from fedskew.data.owners import owner, owner_groups
from fedskew.errors import ConfigError, DataError, unknown
from fedskew.types import Indices

Rng = np.random.Generator

PARTITIONS: dict[str, Choice] = {}
_named = partial(register, "partition", PARTITIONS)


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

    ``segments`` groups samples that overlap; only partition ``owner`` minds them.

    >>> labels = np.array([0, 0, 1, 1, 2, 2])
    >>> [p.tolist() for p in partition("one-class", labels, clients=None,
    ...                                rng=np.random.default_rng(0))]
    [[0, 1], [2, 3], [4, 5]]
    """
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    PARTITIONS[name].check(knobs or {})
    if len(labels) == 0:
        raise DataError(f"partition {name!r} was given no samples to divide.")
    if clients is not None:
        at_least("clients", clients, 1)
        if clients > len(labels):
            raise DataError(
                f"{clients} clients cannot share {len(labels)} samples: ask for fewer clients."
            )
    minded = (segments,) if name == "owner" else ()
    parts = PARTITIONS[name].function(labels, owners, clients, rng, *minded, **(knobs or {}))
    return [np.sort(part).astype(np.int64) for part in parts]


def matched_test(
    train_parts: Sequence[Indices],
    train_labels: Labels,
    test_labels: Labels,
    rng: Rng,
) -> list[Indices]:
    """Share test rows so that each client is tested on the labels it trains on.

    Each class's test rows go to the clients in proportion to their training samples of that
    class (largest remainder), so no client is tested on a label it never saw.
    """
    classes = np.unique(train_labels)
    held = np.stack([class_sizes(train_labels[part], classes) for part in train_parts], axis=1)
    available = class_sizes(test_labels, classes)
    counts = np.stack(
        [
            largest_remainder(int(total), row, rng) if row.any() else row
            for total, row in zip(available, held, strict=True)
        ]
    )
    return deal(test_labels, classes, counts, rng)


@_named("iid")
def iid(labels: Labels, owners: Labels | None, clients: int | None, rng: Rng) -> list[Indices]:
    """Equal random shares, whatever the label."""
    return np.array_split(rng.permutation(len(labels)), number_of_clients("iid", clients))


@_named("dirichlet")
def dirichlet(
    labels: Labels,
    owners: Labels | None,
    clients: int | None,
    rng: Rng,
    *,
    alpha: float = 0.5,
    cap: bool = False,
    min_size: int = 10,
    retries: int = 100,
) -> list[Indices]:
    """Each class shared by Dirichlet(alpha) proportions; cap stops clients at an equal share.

    With ``cap`` a client that already holds samples/clients gets nothing of later classes, as in
    FedDisco, PFLlib and NIID-Bench; sizes then differ less. All is drawn anew, at most
    ``retries`` times, until every client holds ``min_size`` samples.
    """
    number = number_of_clients("dirichlet", clients)
    classes = np.unique(labels)
    sizes = class_sizes(labels, classes)

    def draw() -> Indices:
        counts = np.zeros((len(classes), number), dtype=np.int64)
        for row, size in enumerate(sizes):
            proportions = rng.dirichlet(np.full(number, alpha))
            if cap:
                open_ = counts.sum(axis=0) < len(labels) / number
                proportions = np.where(open_, proportions, 0.0)
                # A tiny alpha can put every bit of mass on full clients.
                proportions = proportions if proportions.any() else open_.astype(float)
            counts[row] = cut(int(size), proportions)
        return counts

    counts = _large_enough("dirichlet", draw, len(labels), number, alpha, min_size, retries)
    return deal(labels, classes, counts, rng)


@_named("quantity")
def quantity(
    labels: Labels,
    owners: Labels | None,
    clients: int | None,
    rng: Rng,
    *,
    alpha: float = 0.5,
    min_size: int = 10,
    retries: int = 100,
) -> list[Indices]:
    """Sizes by Dirichlet(alpha), labels iid: clients differ only in how much they hold."""
    number = number_of_clients("quantity", clients)

    def draw() -> Indices:
        return cut(len(labels), rng.dirichlet(np.full(number, alpha)))[None]

    counts = _large_enough("quantity", draw, len(labels), number, alpha, min_size, retries)
    return np.split(rng.permutation(len(labels)), np.cumsum(counts[0])[:-1])


@_named("shards")
def shards(
    labels: Labels,
    owners: Labels | None,
    clients: int | None,
    rng: Rng,
    *,
    shards_per_client: int = 2,
) -> list[Indices]:
    """Classes cut into equal shards, dealt so that a client holds few labels (FedBABU).

    The list of all shards' labels is shuffled into one row per client; a row may repeat a label.
    Where the shards do not divide evenly by classes, the largest classes get one more.
    """
    number = number_of_clients("shards", clients)
    at_least("shards_per_client", shards_per_client, 1)
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
    labels: Labels,
    owners: Labels | None,
    clients: int | None,
    rng: Rng,
    *,
    variant: str = "random",
    classes_per_client: int = 2,
) -> list[Indices]:
    """Client 0 holds every class, each other client a few classes of its own (NIID-2).

    The unbiased client takes an equal share of the pool: ``random`` draws it uniformly and groups
    the classes at random; ``even`` takes the same share of each class, in class order.
    """
    if variant not in ("random", "even"):
        raise unknown("variant of partition 'biased'", variant, ("random", "even"))
    at_least("classes_per_client", classes_per_client, 1)
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
def one_class(
    labels: Labels, owners: Labels | None, clients: int | None, rng: Rng
) -> list[Indices]:
    """One class per client; with more clients than classes, several share a class evenly."""
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
    labels: Labels,
    owners: Labels | None,
    clients: int | None,
    rng: Rng,
    *,
    groups: list[list[int]] | None = None,
) -> list[Indices]:
    """Groups of clients share groups of labels evenly (default: two halves of the labels).

    Labels in no group are left out. Clients are divided over the groups in order.
    """
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


def _large_enough(
    name: str,
    draw: Callable[[], Indices],
    samples: int,
    clients: int,
    alpha: float,
    min_size: int,
    retries: int,
) -> Indices:
    """Draw tables of counts until every client (column) holds enough, a bounded number of times."""
    if not 0 < alpha <= 1e6:
        raise ConfigError(f"alpha of partition {name!r} must lie in 0 < alpha <= 1e6, not {alpha}.")
    at_least("min_size", min_size, 0)
    at_least("retries", retries, 1)
    if min_size * clients <= samples:
        for _ in range(retries):
            counts = draw()
            if counts.sum(axis=0).min() >= min_size:
                return counts
    raise DataError(
        f"partition {name!r} could not give each of {clients} clients min_size={min_size} of "
        f"{samples} samples with alpha={alpha} in {retries} draws: raise alpha, lower min_size or "
        "ask for fewer clients."
    )


def _group_labels(groups: list[list[int]], labels: Labels) -> Indices:
    """The labels named in groups, in order, once it is certain that each can be shared."""
    wanted = "groups of partition 'label-groups' must be lists of labels like [[0, 1], [2, 3]]"
    if not isinstance(groups, list) or not groups:
        raise ConfigError(f"{wanted}, not {groups!r}.")
    for group in groups:
        if not isinstance(group, list) or not group or any(type(i) is not int for i in group):
            raise ConfigError(f"{wanted}, not {group!r}.")
    named = [label for group in groups for label in group]
    if len(set(named)) < len(named):
        twice = next(label for label in named if named.count(label) > 1)
        raise ConfigError(f"label {twice} stands twice in groups: give it to one group.")
    missing = sorted(set(named) - set(labels.tolist()))
    if missing:
        raise ConfigError(f"label {missing[0]} in groups has no samples in the pool.")
    return np.array(named, dtype=np.int64)
