"""Validation rows that choose no round: by them clients choose at the end what they keep."""

from __future__ import annotations

from dataclasses import replace

from fedskew.data.federation import Client, Federation
from fedskew.errors import ConfigError
from fedskew.rng import keyed_rng

SHARE = 2 / 3
"""Of a client's validation rows, those it keeps by. A round is chosen by the rows of all clients
together, so that a few of each are enough; what a client keeps is chosen by its own alone."""


def with_keeping(federation: Federation, seed: int) -> Federation:
    """The federation in which clients that train have taken rows out of their validation rows.

    Which ones depends on the seed and on the client's name and rows alone. A single row stays where
    it is.
    """
    clients = federation.clients
    if len(clients) < 2:
        raise ConfigError(
            f"evaluate.keep compares models trained alone and together, but {federation.name} has "
            "one client that trains: leave it out."
        )
    if not any(len(client.validation) > 1 for client in clients):
        raise ConfigError(
            "evaluate.keep chooses by validation samples, but no client has two of them: set "
            "federation.validation = 0.2 or more."
        )
    return federation.with_data(
        clients=tuple(_parted(client, seed) for client in clients),
        log_ratio=federation.log_ratio,
        same_law=federation.same_law,
    )


def _parted(client: Client, seed: int) -> Client:
    rows = client.validation
    order = keyed_rng(seed, "keeping", client.name).permutation(len(rows))
    away = order[: min(round(SHARE * len(rows)), len(rows) - 1)] if len(rows) else order
    apart = sorted(away.tolist())
    stays = sorted(set(range(len(rows))) - set(apart))
    return replace(client, validation=rows[stays], keeping=rows[apart])
