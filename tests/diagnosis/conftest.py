"""Small federations whose differences are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedskew.data.federation import Client, Federation

Deal = Callable[..., Federation]


@pytest.fixture
def deal() -> Deal:
    """Clients with rows around three class means in ten dimensions, changed by a function."""

    def made(
        clients: int = 8,
        size: int = 90,
        seed: int = 0,
        change: Callable[[int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
        | None = None,
    ) -> Federation:
        rng = np.random.default_rng(seed)
        means = 2.0 * rng.standard_normal((3, 10))
        x, y = [], []
        for k in range(clients):
            labels = rng.integers(0, 3, size)
            rows = means[labels] + rng.standard_normal((size, 10))
            rows, labels = (rows, labels) if change is None else change(k, rows, labels)
            x.append(rows)
            y.append(labels)
        parts = [np.arange(k * size, (k + 1) * size) for k in range(clients)]
        return Federation(
            "made",
            torch.from_numpy(np.concatenate(x).astype(np.float32)),
            torch.from_numpy(np.concatenate(y).astype(np.int64)),
            ("a", "b", "c"),
            tuple(Client(f"c{k}", part) for k, part in enumerate(parts)),
        )

    return made
