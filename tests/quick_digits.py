"""A quick run on the digits that newcomers adapt, and what their samples are."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Stored = tuple[Array, Array]
"""Samples and labels as they are stored."""
EPOCHS = 12
SETTINGS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [12]},
    "method": "fedavg",
    "federation": {"clients": 4, "unseen": 1, "samples": 600, "partition": "iid"},
    "train": {"rounds": 3, "lr": 0.2},
    "evaluate": {"fine_tune_epochs": EPOCHS, "fine_tune_batch": "all", "shots": [2, "all"]},
}
