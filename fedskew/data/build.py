"""From a dataset to a federation: partition, splits, unseen clients, skews, environments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.data.choice import at_least
from fedskew.data.dataset import Dataset
from fedskew.data.deal import occurrence
from fedskew.data.environments import with_environments
from fedskew.data.features import Features, with_features
from fedskew.data.federation import Client, Federation
from fedskew.data.keyed import keyed_rng
from fedskew.data.owners import group_rows, own_rows, owner_names
from fedskew.data.partition import matched_test, partition
from fedskew.data.skew import apply_skew
from fedskew.data.truth import true_log_ratio
from fedskew.errors import ConfigError, DataError, unknown
from fedskew.types import Indices

TEST_FROM = ("auto", "matched", "holdout")
SAME_LAW = ("iid", "quantity")
"""Partitions that deal random shares of the pool, whatever is in it."""
BY_OWNER = ("owner", "owner-groups")
"""Partitions that keep what an owner has together."""


def build(
    dataset: Dataset,
    *,
    partition: str,
    clients: int | None,
    seed: int,
    knobs: Mapping[str, Any] | None = None,
    unseen: int | float | Sequence[str] = 0,
    validation: float = 0.1,
    test: float = 0.2,
    test_from: str = "auto",
    samples: int | None = None,
    skew: Sequence[Mapping[str, Any]] = (),
    public: int = 0,
    test_samples: int | None = None,
    by_segment: bool = True,
    features: Mapping[str, Any] | None = None,
    environments: Mapping[str, Any] | None = None,
) -> Federation:
    """Divide a dataset over clients; the same arguments give the same federation.

    ``unseen`` clients take no part in training: a number of them, a share, or their names.
    ``test_from="matched"`` deals the published test split by each client's training labels (by
    owner under partitions ``owner`` and ``owner-groups``); ``"holdout"`` sets the share ``test``
    of each client's own rows aside; ``"auto"`` is matched where the dataset has a split that fits,
    else holdout. ``validation`` is a share of what is left for training. ``samples`` first thins
    the training pool to so many rows, classes as equal as they can be; ``test_samples`` does the
    same to the published test split. ``by_segment=False`` lets rows of one segment (windows that
    overlap) lie on both sides of a split, which flatters every score: for comparison with work
    that did so.

    ``features`` are settings of :class:`~fedskew.data.features.Features`: what clients do with
    their samples once skews have made them what they are. ``environments`` says what tells the
    environments inside a client apart, as a kind and its knobs: see
    :mod:`fedskew.data.environments`. Unless it is given, that is what the data or a skew made, or
    else chance.

    ``public`` rows leave the training pool before anything else, chosen as ``samples`` chooses:
    a class with too few rows for an equal share leaves whole. Nobody trains or is tested on them
    and no skew is drawn for them: they stay clean, and grey in three channels under ``colour``.
    They may be of a segment whose other rows a client holds.

    The central test set is the published one; where its rows went to clients (owners that appear
    in one half of the published split only), it is the union of the clients' test rows instead.

    Where the dataset knows the laws of its owners, partition ``owner`` gives the federation the
    true density ratio of every row (``log_ratio``); whatever changes samples takes it away. Fewer
    rows (``samples``, ``public``) leave it as it is, which is exact where classes are equally large
    in the pool.
    """
    for name, share in (("validation", validation), ("test", test)):
        if not 0 <= share < 1:
            raise ConfigError(
                f"{name} must be a share from 0 up to, not including, 1: not {share}."
            )
    wanted = Features.of(features)
    dataset = dataset if by_segment else replace(dataset, segment=None)
    by_owner = partition in BY_OWNER
    matched = _is_matched(dataset, by_owner, test_from)
    pool = dataset.train_rows if matched or not by_owner else np.arange(len(dataset.y))
    published_test = dataset.official_test
    if test_samples is not None:
        rng = keyed_rng(seed, "test-samples")
        published_test = _thin(published_test, dataset, "test_samples", test_samples, 0, rng)
    shared = _public(pool, dataset, public, keyed_rng(seed, "public"))
    pool = pool[~np.isin(pool, shared)]
    if samples is not None:
        pool = _thin(pool, dataset, "samples", samples, public, keyed_rng(seed, "samples"))
    parts = _partition(dataset, pool, partition, clients, seed, knobs)
    owners = _owners(dataset, parts) if partition == "owner" else None
    names = _names(dataset, parts, owners, partition, in_pieces=bool((knobs or {}).get("size")))
    _refuse_empty(partition, names, parts)
    tests = _matched(dataset, published_test, parts, owners, by_owner, seed) if matched else None
    if tests is None:
        rngs = [keyed_rng(seed, "test", name) for name in names]
        held = [_hold_out(dataset, p, test, rng) for p, rng in zip(parts, rngs, strict=True)]
        parts, tests = [kept for kept, _ in held], [away for _, away in held]
    made = [
        Client(name, *_hold_out(dataset, part, validation, keyed_rng(seed, "validation", name)), t)
        for name, part, t in zip(names, parts, tests, strict=True)
    ]
    apart = _unseen(names, unseen, keyed_rng(seed, "unseen"))
    seen = tuple(client for client in made if client.name not in apart)
    published = len(dataset.official_test) > 0 and (matched or not by_owner)
    federation = Federation(
        dataset.name,
        dataset.x,
        dataset.y,
        dataset.class_names,
        seen,
        tuple(client for client in made if client.name in apart),
        published_test if published else np.sort(np.concatenate([c.test for c in seen])),
        dataset.environment,
        shared,
        log_ratio=_log_ratio(dataset, seen, names, owners),
        same_law=partition in SAME_LAW,
        owner=None if dataset.owner is None else torch.from_numpy(dataset.owner),
    )
    for position, settings in enumerate(skew):
        own_seed = int(keyed_rng(seed, "skew", str(position)).integers(2**63))
        federation = apply_skew(federation, settings, own_seed)
    # Skews give the central test rows of its own; only here is it known whose they were.
    federation = with_features(federation, wanted, () if published else seen)
    return with_environments(federation, environments, seed)


def _is_matched(dataset: Dataset, by_owner: bool, test_from: str) -> bool:
    """Whether clients are tested on the published test split."""
    if test_from not in TEST_FROM:
        raise unknown("test_from", test_from, TEST_FROM)
    fits = len(dataset.official_test) > 0
    if by_owner and dataset.owner is not None:
        owners = dataset.owner
        fits = set(owners[dataset.train_rows]) <= set(owners[dataset.official_test])
    if test_from == "matched" and not fits:
        lacks = "test rows for every owner" if by_owner else "published test split"
        raise ConfigError(f"test_from='matched' needs more: {dataset.name} has no {lacks}.")
    return fits and test_from != "holdout"


def _partition(
    dataset: Dataset,
    pool: Indices,
    name: str,
    clients: int | None,
    seed: int,
    knobs: Mapping[str, Any] | None,
) -> list[Indices]:
    """The rows of each client."""
    parts = partition(
        name,
        dataset.y.numpy()[pool],
        clients=clients,
        rng=keyed_rng(seed, "partition"),
        owners=None if dataset.owner is None else dataset.owner[pool],
        segments=None if dataset.segment is None else dataset.segment[pool],
        knobs=knobs,
    )
    return [pool[part] for part in parts]


def _matched(
    dataset: Dataset,
    rows: Indices,
    parts: list[Indices],
    owners: Indices | None,
    by_owner: bool,
    seed: int,
) -> list[Indices]:
    """Each client's share of these rows of the published test split."""
    if by_owner and dataset.owner is not None:
        if owners is None:
            return group_rows(dataset.owner, rows, parts)
        return own_rows(dataset.owner, rows, owners)
    labels = dataset.y.numpy()
    shares = matched_test(parts, labels, labels[rows], keyed_rng(seed, "test"))
    return [rows[share] for share in shares]


def _owners(dataset: Dataset, parts: list[Indices]) -> Indices | None:
    """Whose samples each client holds."""
    return None if dataset.owner is None else dataset.owner[[part[0] for part in parts]]


def _names(
    dataset: Dataset,
    parts: list[Indices],
    owners: Indices | None,
    partition: str,
    in_pieces: bool,
) -> list[str]:
    if owners is not None:
        return owner_names(dataset, owners, in_pieces)
    stem = "group" if partition == "owner-groups" else "client"
    width = max(3, len(str(len(parts) - 1)))
    return [f"{stem}-{i:0{width}d}" for i in range(len(parts))]


def _log_ratio(
    dataset: Dataset, seen: Sequence[Client], names: list[str], owners: Indices | None
) -> Tensor | None:
    """The true ratio, if clients are owners whose laws are known."""
    if dataset.log_densities is None or owners is None:
        return None
    columns = owners[[names.index(client.name) for client in seen]]
    laws = dataset.log_densities.double().numpy()[:, columns]
    return true_log_ratio(seen, lambda rows: laws[rows], len(laws))


def _refuse_empty(partition: str, names: list[str], parts: list[Indices]) -> None:
    for name, part in zip(names, parts, strict=True):
        if len(part) == 0:
            raise DataError(
                f"partition {partition!r} left {name!r} without samples: ask for fewer clients, "
                "or raise min_size where the partition has it."
            )


def _public(pool: Indices, dataset: Dataset, public: int, rng: np.random.Generator) -> Indices:
    at_least("public", public, 0)
    if public >= len(pool):
        raise ConfigError(
            f"public={public} would leave no training samples: {dataset.name} has {len(pool)}, "
            "ask for fewer."
        )
    return _balanced(pool, dataset, public, rng)


def _thin(
    pool: Indices, dataset: Dataset, name: str, samples: int, public: int, rng: np.random.Generator
) -> Indices:
    at_least(name, samples, 1)
    if samples > len(pool):
        kind = "training samples" if name == "samples" else "published test samples"
        beside = f" beside {public} public ones" if public else ""
        raise ConfigError(
            f"{name}={samples} is more than the {len(pool)} {kind} of {dataset.name}{beside}."
        )
    return _balanced(pool, dataset, samples, rng)


def _balanced(pool: Indices, dataset: Dataset, samples: int, rng: np.random.Generator) -> Indices:
    """A random subset in which small classes stay whole and the others are equally large."""
    shuffled = rng.permutation(pool)
    # The n-th member of each class comes before any class's n+1-st: cut anywhere, it is balanced.
    turn = occurrence(dataset.y.numpy()[shuffled])
    return np.sort(shuffled[np.argsort(turn, kind="stable")[:samples]])


def _hold_out(
    dataset: Dataset, rows: Indices, share: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Rows to keep and a share to set aside, class by class and never part of a segment.

    A class keeps at least one row (or segment), so nobody is tested on a label it cannot learn,
    unless every class has only one and nobody would be tested at all. What one class rounds off,
    the next makes up for, so that the whole comes near to the share.
    """
    labels = dataset.y.numpy()[rows]
    segments = rows if dataset.segment is None else dataset.segment[rows]
    _, first, segment, sizes = np.unique(
        segments, return_index=True, return_inverse=True, return_counts=True
    )
    held = np.zeros(len(sizes), dtype=bool)
    owed = 0.0
    for label in rng.permutation(np.unique(labels[first])):
        members = rng.permutation(np.flatnonzero(labels[first] == label))
        owed += share * float(sizes[members].sum())
        taken = _first_worth(owed, members, sizes)
        held[taken] = True
        owed -= float(sizes[taken].sum())
    if not held.any():
        held[_first_worth(owed, rng.permutation(len(sizes)), sizes)] = True
    away = held[segment]
    return rows[~away], rows[away]


def _first_worth(rows: float, members: Indices, sizes: Indices) -> Indices:
    """The first members whose sizes add up to about so many rows, but never all members."""
    middles = np.cumsum(sizes[members]) - sizes[members] / 2
    return members[: min(int((middles <= rows).sum()), len(members) - 1)]


def _unseen(
    names: list[str], unseen: int | float | Sequence[str], rng: np.random.Generator
) -> set[str]:
    """Who takes no part in training; somebody must."""
    if isinstance(unseen, int | float):
        if isinstance(unseen, bool) or not math.isfinite(unseen) or unseen < 0:
            raise ConfigError(f"unseen must be a number of clients or a share, not {unseen}.")
        count = unseen if isinstance(unseen, int) else round(unseen * len(names))
        apart = set(rng.permutation(names)[:count].tolist())
    else:
        apart = {unseen} if isinstance(unseen, str) else set(unseen)
        strangers = sorted(apart - set(names))
        if strangers:
            raise unknown("unseen client", strangers[0], names)
        count = len(apart)
    if count >= len(names):
        raise ConfigError(
            f"unseen={unseen} would leave none of the {len(names)} clients to train: choose fewer."
        )
    return apart
