"""From a dataset to a federation: partition, splits, unseen clients, skews, environments.

What the settings of :func:`build` do, in the order in which they act:

- ``by_segment=False`` lets rows of one segment (windows that overlap) lie on both sides of a
  split. That flatters every score; it is for comparison with work that did so.
- ``public`` rows leave the training pool first, classes as equal as they can be: a class with too
  few rows for an equal share leaves whole. Nobody trains or is tested on them and no skew changes
  them, except that ``colour`` makes them grey in three channels. A public row may share its
  segment with rows of a client.
- ``samples`` thins the training pool to this number of rows, classes as equal as they can be;
  ``test_samples`` does the same to the published test split.
- ``partition`` and its ``knobs`` divide the pool over clients: see :mod:`fedskew.data.partition`.
- ``test_from="matched"`` deals the published test split by each client's training labels (by owner
  under partitions ``owner`` and ``owner-groups``); ``"holdout"`` sets the share ``test`` of each
  client's own rows aside; ``"auto"`` is matched where the dataset has a split that fits, else
  holdout. ``validation`` is a share of what is left for training.
- Where a sample has no class, partitions deal by what :mod:`fedskew.data.strata` puts in its place,
  and splits are random. A target that is a number is scaled like features are.
- ``unseen`` clients take no part in training: a number of them, a share, or their names. What is
  standardised by its own figures is so by those of the other clients' training rows.
- ``skew`` lists the skews to apply in turn: see :mod:`fedskew.data.skew`.
- ``features`` are settings of :class:`~fedskew.data.features.Features`: what clients do with their
  samples after all skews.
- ``environments`` is a kind and its knobs: see :mod:`fedskew.data.environments`. By default the
  environments are those of the data or of a skew, else random.

The central test set is the published one. Where its rows went to clients (owners that appear in
one half of the published split only), it is the union of the clients' test rows instead.

Where the dataset knows the laws of its owners, partition ``owner`` gives the federation the true
density ratio of every row (``log_ratio``), which is forgotten when samples change. ``samples`` and
``public`` leave it as it is, which is exact where classes are equally large in the pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.data.dataset import Dataset
from fedskew.data.environments import with_environments
from fedskew.data.features import Features, with_features
from fedskew.data.federation import Client, Federation, true_log_ratio
from fedskew.data.owners import client_names, group_rows, own_rows, owners_of
from fedskew.data.partition import partition
from fedskew.data.pools import pools_of
from fedskew.data.profile import Profile, profile_of_table
from fedskew.data.scaling import scaled_by_clients, standardised, with_units
from fedskew.data.shares import hold_out, matched_test
from fedskew.data.skew import apply_skew
from fedskew.data.strata import kinds, strata
from fedskew.errors import ConfigError, DataError, unknown
from fedskew.rng import keyed_rng
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
    """Divide a dataset over clients, as the module says; equal arguments give equal federations."""
    check_shares(validation=validation, test=test)
    wanted = Features.of(features)
    dataset = dataset if by_segment else replace(dataset, segment=None)
    by_owner = partition in BY_OWNER
    matched = _is_matched(dataset, by_owner, test_from)
    pools = pools_of(dataset, by_owner and not matched, public, samples, test_samples, seed)
    parts = _partition(dataset, pools.train, partition, clients, seed, knobs)
    owners = owners_of(dataset, parts) if partition == "owner" else None
    names = client_names(dataset, parts, owners, partition, bool((knobs or {}).get("size")))
    _refuse_empty(partition, names, parts)
    if matched:
        tests = _matched(dataset, pools.test, parts, owners, by_owner, seed)
    else:
        parts, tests = split_off("test", test, dataset, names, parts, seed)
    parts, validations = split_off("validation", validation, dataset, names, parts, seed)
    members = list(map(Client, names, parts, validations, tests))
    seen, apart = _without_unseen(members, unseen, keyed_rng(seed, "unseen"))
    dataset, profile = on_one_scale(dataset, seen)
    published = len(dataset.official_test) > 0 and (matched or not by_owner)
    federation = Federation(
        dataset.name,
        dataset.x,
        dataset.y,
        dataset.class_names,
        seen,
        apart,
        pools.test if published else np.sort(np.concatenate([c.test for c in seen])),
        dataset.environment,
        pools.public,
        log_ratio=_log_ratio(dataset, seen, names, owners),
        same_law=partition in SAME_LAW,
        owner=None if dataset.owner is None else torch.from_numpy(dataset.owner),
        problem=dataset.problem,
        encoder=dataset.encoder,
        stored=dataset.stored,
        profile=profile,
        remarks=dataset.remarks,
        vocabulary=dataset.vocabulary,
        text=dataset.text,
    )
    federation = _skewed(federation, skew, seed)
    # Skews give the central test rows of its own; only here is it known whose they were.
    collected = () if published else seen
    if dataset.by_client:
        federation = scaled_by_clients(federation, collected)
    federation = with_features(federation, wanted, collected)
    return with_environments(federation, environments, seed)


def on_one_scale(dataset: Dataset, seen: Sequence[Client]) -> tuple[Dataset, Profile | None]:
    """The samples, and targets that are numbers, scaled by the training rows of those who train.

    Of a table also what those rows look like.
    """
    in_order = sorted(seen, key=lambda client: client.name)
    holders = [client.train for client in in_order]
    dataset = standardised(dataset, holders, [client.name for client in in_order])
    stored = dataset.stored and dataset.stored.spanning(dataset.x, holders)
    profile = None if dataset.table is None else profile_of_table(dataset.table, holders)
    return with_units(replace(dataset, stored=stored), holders), profile


def check_shares(**shares: float) -> None:
    """Refuse shares that leave nothing."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ConfigError(
                f"{name} must be a share from 0 up to, not including, 1: not {share}."
            )


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
        strata(dataset.y[torch.from_numpy(pool)]),
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
    labels = strata(dataset.y)
    shares = matched_test(parts, labels, labels[rows], keyed_rng(seed, "test"))
    return [rows[share] for share in shares]


def split_off(
    split: str, share: float, dataset: Dataset, names: list[str], parts: list[Indices], seed: int
) -> tuple[list[Indices], list[Indices]]:
    """What each client keeps, and the share of its rows that it sets aside as a split."""
    labels, kept, away = kinds(dataset.y), [], []
    for name, rows in zip(names, parts, strict=True):
        segments = rows if dataset.segment is None else dataset.segment[rows]
        held = hold_out(labels[rows], segments, share, keyed_rng(seed, split, name))
        kept.append(rows[~held])
        away.append(rows[held])
    return kept, away


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


def _without_unseen(
    clients: Sequence[Client], unseen: int | float | Sequence[str], rng: np.random.Generator
) -> tuple[tuple[Client, ...], tuple[Client, ...]]:
    """The clients that train, at least one, and those that take no part."""
    apart = chosen_unseen([client.name for client in clients], unseen, rng)
    seen = tuple(client for client in clients if client.name not in apart)
    return seen, tuple(client for client in clients if client.name in apart)


def chosen_unseen(
    names: Sequence[str], unseen: int | float | Sequence[str], rng: np.random.Generator
) -> set[str]:
    """Which of these clients take no part in training; at least one does."""
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


def _skewed(federation: Federation, skews: Sequence[Mapping[str, Any]], seed: int) -> Federation:
    for position, settings in enumerate(skews):
        own_seed = int(keyed_rng(seed, "skew", str(position)).integers(2**63))
        federation = apply_skew(federation, settings, own_seed)
    return federation
