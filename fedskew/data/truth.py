"""The true ratio of densities, where the laws of the clients' samples are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.federation import Client
from fedskew.data.parties import all_rows
from fedskew.types import Indices

Floats = NDArray[np.float64]


def true_log_ratio(
    clients: Sequence[Client], log_laws: Callable[[Indices], Floats], rows: int
) -> Tensor:
    """log p(x)/q_k(x) of each row that a client k holds, NaN for the others of so many rows.

    p = sum_j c_j q_j is the mean of the clients' laws by their training rows. ``log_laws`` gives
    log q_j(x) for some rows [rows, clients], up to a term that all clients share.

    >>> two = [Client("ann", np.array([0, 1, 2])), Client("bob", np.array([3]))]
    >>> laws = np.log(np.tile([0.2, 0.4], (5, 1)))  # p is 3/4 * .2 + 1/4 * .4 = .25
    >>> true_log_ratio(two, lambda held: laws[held], 5).exp().round(decimals=3).tolist()
    [1.25, 1.25, 1.25, 0.625, nan]
    """
    sizes = np.array([len(client.train) for client in clients])
    ratio = np.full(rows, np.nan)
    for k, client in enumerate(clients):
        held = all_rows(client)
        logs = log_laws(held)
        # Counts stay whole and differences come first, so that equal laws give exactly 0.
        apart = logs - logs[:, [k]]
        most = apart.max(axis=1)
        mean = (np.exp(apart - most[:, None]) * sizes).sum(axis=1) / sizes.sum()
        ratio[held] = np.log(mean) + most
    return torch.from_numpy(ratio).float()
