"""Environments inside each client: what objectives over several of them are told apart by."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from fedskew.data.choice import Choice, at_least, register
from fedskew.data.federation import Federation
from fedskew.data.keyed import keyed_rng
from fedskew.data.parties import all_rows
from fedskew.errors import ConfigError, DataError, unknown
from fedskew.types import Indices

ENVIRONMENTS: dict[str, Choice] = {}
_named = partial(register, "environments", ENVIRONMENTS)


def with_environments(
    federation: Federation, settings: Mapping[str, Any] | None, seed: int
) -> Federation:
    """The federation with environments of a kind: ``{"kind": "random", "count": 3}``, or auto.

    No sample changes, and nobody's rows.
    """
    knobs = dict(settings or {"kind": "auto"})
    kind = knobs.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(
            f"environments need their kind, one of {', '.join(sorted(ENVIRONMENTS))}."
        )
    if kind not in ENVIRONMENTS:
        raise unknown("environments", kind, ENVIRONMENTS)
    ENVIRONMENTS[kind].check(knobs)
    made: Federation = ENVIRONMENTS[kind].function(federation, seed, **knobs)
    return made


@_named("auto")
def auto(federation: Federation, seed: int) -> Federation:
    """Those that the data or a skew made (colours, bins of angles); if there are none, random."""
    return random(federation, seed) if federation.environment is None else federation


@_named("random")
def random(federation: Federation, seed: int, *, count: int = 2) -> Federation:
    """Each client's rows dealt at random to a few environments of equal size.

    Training, validation and test rows are dealt apart, each as evenly as their number allows.
    """
    at_least("count of environments 'random'", count, 1)
    ids = np.zeros(len(federation.y), dtype=np.int64)
    # In the order of names: where two clients share a row, the last one decides.
    for name in sorted(federation.by_name):
        for split in ("train", "validation", "test"):
            rows = np.sort(federation.by_name[name].split(split))
            rng = keyed_rng(seed, "environments", name, split)
            ids[rows] = rng.permutation(len(rows)) % count
    return _told_by("random", federation, ids)


@_named("owner")
def owner(federation: Federation, seed: int, *, most: int = 8) -> Federation:
    """The writers, subjects or sources inside each client, those with most samples first.

    Owners are numbered by their training rows, and by their own number where these are equal.
    Beyond ``most`` of them, the next joins the first again, and so on in turn, as do owners
    without training rows.
    """
    at_least("most of environments 'owner'", most, 1)
    if federation.owner is None:
        raise DataError(
            f"environments 'owner' need samples with owners, which {federation.name} has not: "
            "choose another kind or another dataset."
        )
    owners = federation.owner.numpy()
    ids = np.zeros(len(owners), dtype=np.int64)
    for name in sorted(federation.by_name):
        client = federation.by_name[name]
        rows = all_rows(client)
        known, index = np.unique(owners[rows], return_inverse=True)
        sizes = (owners[client.train][:, None] == known).sum(axis=0)
        rank = np.empty(len(known), dtype=np.int64)
        rank[np.argsort(-sizes, kind="stable")] = np.arange(len(known))
        ids[rows] = rank[index] % max(1, min(most, int((sizes > 0).sum())))
    return _told_by("owner", federation, ids)


@_named("none")
def none(federation: Federation, seed: int) -> Federation:
    """Every client is one environment."""
    return federation.with_data(environment=None)


def whole_where_small(federation: Federation, batch_size: int) -> Federation:
    """Leave whole what clients are too small to draw a batch from each random environment.

    Environments of other kinds mean something, so nothing is done about them.
    """
    if federation.environments_by != "random" or federation.environment is None:
        return federation
    counts = federation.environment_counts()
    small = np.flatnonzero(((counts > 0) & (counts < batch_size)).any(axis=1))
    if not len(small):
        return federation
    ids = federation.environment.clone()
    for place in small:
        ids[all_rows(federation.clients[place])] = 0
    return federation.with_data(environment=ids, environments_by="random")


def _told_by(kind: str, federation: Federation, ids: Indices) -> Federation:
    return federation.with_data(environment=torch.from_numpy(ids), environments_by=kind)
