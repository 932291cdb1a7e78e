"""Environments inside each client: what objectives over several of them are told apart by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch

from fedskew.data.federation import (
    SPLITS,
    Client,
    Federation,
    all_rows,
    checked_federation,
)
from fedskew.errors import ConfigError, DataError
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob
from fedskew.rng import keyed_rng
from fedskew.types import Indices

ENVIRONMENTS = Registry("environments", "environments", Entry, leading=2)
"""Functions ``(federation, seed, **knobs)`` that return the federation with environments."""
_named = ENVIRONMENTS.register


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
    made = ENVIRONMENTS.find(kind).make(federation, seed, **knobs)
    return checked_federation(f"environments {kind!r}", made)


@_named("auto")
def auto(federation: Federation, seed: int) -> Federation:
    """Those that the data or a skew made (colours, bins of angles); if there are none, random."""
    return random(federation, seed) if federation.environment is None else federation


@_named("random")
def random(
    federation: Federation,
    seed: int,
    *,
    count: Annotated[int, Knob("environments of each client", ge=1)] = 2,
) -> Federation:
    """Each client's rows dealt at random to a few environments of equal size.

    Training, validation and test rows are dealt apart, each as evenly as their number allows.
    """
    ids = np.zeros(len(federation.y), dtype=np.int64)
    # In the order of names: where two clients share a row, the last one decides.
    for name in sorted(federation.by_name):
        for split in ("train", "validation", "test"):
            rows = np.sort(federation.by_name[name].split(split))
            rng = keyed_rng(seed, "environments", name, split)
            ids[rows] = rng.permutation(len(rows)) % count
    return _told_by("random", federation, ids)


@_named("owner")
def owner(
    federation: Federation,
    seed: int,
    *,
    most: Annotated[int, Knob("most environments of a client", ge=1)] = 8,
) -> Federation:
    """The writers, subjects or sources inside each client, those with most samples first.

    Owners are numbered by their training rows, and by their own number where these are equal.
    Beyond ``most`` of them, the next joins the first again, and so on in turn, as do owners
    without training rows.
    """
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


def without_environment(federation: Federation, which: int | Literal["last"]) -> Federation:
    """The federation whose seen clients hold an environment out of training.

    ``which`` is its number, or "last" for the largest a seen client trains on. What a client has
    of it in training and validation becomes its split "environment"; its test rows of it are in no
    split, so that no image of a published test set helps to choose a model. Environments after it
    move up by one. Unseen clients, who train nothing, hold what they held.
    """
    counts = federation.environment_counts()
    held = np.flatnonzero(counts.sum(axis=0))
    if federation.environment is None or len(held) < 2:
        raise ConfigError(
            "federation.held_out_environment needs clients with two environments or more to train "
            "on: set federation.environments, or a skew that makes some."
        )
    number = int(held[-1]) if which == "last" else which
    if number not in held:
        known = ", ".join(map(str, held))
        raise ConfigError(
            f"federation.held_out_environment must be 'last' or one of {known}, which clients "
            f"train on, not {number}."
        )
    ids = federation.environment.numpy()

    def parted(client: Client) -> Client:
        out = {split: ids[client.split(split)] == number for split in SPLITS[:3]}
        kept = [client.split(split)[~rows] for split, rows in out.items()]
        if not len(kept[0]):
            raise ConfigError(
                f"federation.held_out_environment={which!r} would leave client {client.name!r} "
                "nothing to train on: choose another, or federation.environments of another kind."
            )
        apart = [client.split(split)[out[split]] for split in ("train", "validation")]
        train, validation, test = kept
        return Client(client.name, train, validation, test, np.concatenate(apart))

    # Nobody trains on the environment any more: its id is free for those behind it.
    renumbered = np.where(ids == number, 0, ids - (ids > number))
    return federation.with_data(
        clients=tuple(parted(client) for client in federation.clients),
        environment=torch.from_numpy(renumbered),
        environments_by=federation.environments_by,
        log_ratio=None,
        same_law=federation.same_law,
    )


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
