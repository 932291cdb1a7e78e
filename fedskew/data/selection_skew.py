"""The skew that changes which samples clients hold, without changing any sample."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit, log_expit

from fedskew.data.federation import Client, Federation, Floats, all_rows, true_log_ratio
from fedskew.data.prepare import ROWS_AT_ONCE
from fedskew.data.skew_tools import need_numbers
from fedskew.errors import DataError
from fedskew.registry.knobs import Knob
from fedskew.rng import keyed_rng
from fedskew.types import Indices


def selection(
    federation: Federation,
    seed: int,
    *,
    strength: Annotated[float, Knob("how sharply clients choose; 0: not at all", ge=0)] = 3.0,
) -> Federation:
    """Each client keeps rows by where they lie: a covariate shift with p(y|x) untouched.

    A client keeps a row with probability sigmoid(strength * <d, z>), about every second row. z are
    the first two principal components of all clients' samples, scaled to deviation 1; d is the
    client's own direction: the directions of all clients (unseen ones too) are spaced around a
    circle in the order of their names. No sample changes, and the central test set stays as it is.

    If the clients had random shares of the same data (partitions ``iid`` and ``quantity``), the
    true density ratio of every row they keep is known: see ``Federation.log_ratio``.
    """
    rows = np.unique(np.concatenate([all_rows(c) for c in federation.by_name.values()]))
    place = np.full(len(federation.y), -1)
    place[rows] = np.arange(len(rows))
    need_numbers("skew 'selection'", federation)
    z = strength * _components(federation, rows)
    names = sorted(federation.by_name)
    angles = 2 * np.pi * np.arange(len(names)) / len(names)
    directions = dict(zip(names, np.stack([np.cos(angles), np.sin(angles)], axis=1), strict=True))
    kept = {}
    for name, client in federation.by_name.items():
        held = all_rows(client)
        drawn = keyed_rng(seed, "selection", name).random(len(held))
        left = held[drawn < expit(z[place[held]] @ directions[name])]
        kept[name] = Client(
            name, *(s[np.isin(s, left)] for s in (client.train, client.validation, client.test))
        )
        if len(kept[name].train) == 0:
            raise DataError(
                f"skew 'selection' left client {name!r} without training samples: lower strength, "
                "or ask for fewer clients."
            )
    seen = tuple(kept[client.name] for client in federation.clients)
    toward = np.stack([directions[client.name] for client in seen], axis=1)
    # One direction at a time: all rows times all clients may not fit into memory.
    shares = np.log([expit(z @ direction).mean() for direction in toward.T])

    def log_laws(held: Indices) -> Floats:
        """log s_j(x)/Z_j: how selection changed the distribution that all clients shared."""
        laws: Floats = log_expit(z[place[held]] @ toward) - shares
        return laws

    known = federation.same_law
    return federation.with_data(
        clients=seen,
        unseen=tuple(kept[client.name] for client in federation.unseen),
        log_ratio=true_log_ratio(seen, log_laws, len(federation.y)) if known else None,
    )


def _components(federation: Federation, rows: Indices) -> Floats:
    """The first two principal components of these rows, each with mean 0 and deviation 1.

    The axes come from a few thousand rows spread evenly over all; the sign of an axis is chosen so
    that its largest entry is positive.
    """
    x = federation.x.reshape(len(federation.x), -1)
    sample = x[rows[:: -(-len(rows) // ROWS_AT_ONCE)]].double().numpy()
    centred = sample - sample.mean(axis=0)
    covariance = centred.T @ centred / len(sample)
    last = len(covariance) - 1
    values, axes = eigh(covariance, subset_by_index=(max(last - 1, 0), last))
    # If all rows are equal in a direction, its spread is only rounding.
    if last == 0 or values[0] <= 1e-12 * max(values[1], np.square(sample).mean()):
        raise DataError(
            "skew 'selection' needs samples that differ in two directions or more, but those of "
            f"{federation.name} do not: leave it out."
        )
    axes = axes[:, ::-1] * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])[::-1]
    parts = [rows[i : i + ROWS_AT_ONCE] for i in range(0, len(rows), ROWS_AT_ONCE)]
    z = np.concatenate([x[part].double().numpy() @ axes for part in parts])
    return np.asarray((z - z.mean(axis=0)) / z.std(axis=0))
