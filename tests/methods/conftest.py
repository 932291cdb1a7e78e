"""Real clients for plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation


@pytest.fixture(scope="session")
def mnist(data_dir: Path) -> Federation:
    """Four clients of different sizes, each with mostly its own digits; 95 leaves a short batch."""
    data = load("mnist", data_dir)
    labels = data.y[:4000].numpy()
    rng = np.random.default_rng(0)
    clients = []
    for k, size in enumerate((200, 95, 240, 160)):
        favourite = np.isin(labels, (k, k + 4))
        chance = np.where(favourite, 5.0, 1.0)
        rows = rng.choice(4000, size, replace=False, p=chance / chance.sum())
        clients.append(Client(f"client-{k}", np.sort(rows)))
    x = data.x[:4000].clone()
    return Federation("mnist", x, data.y[:4000].clone(), data.class_names, tuple(clients))
