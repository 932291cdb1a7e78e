"""Toy datasets and pools of labels, shared by the tests of data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.federation import Federation
from fedskew.data.partition import partition
from fedskew.types import Indices

Labels = NDArray[np.int64]

HAR_UNSEEN = [f"subject_{number:02d}" for number in (2, 4, 9, 10, 12, 13, 18, 20, 24)]
"""The subjects of the published test split of HAR."""
MNIST_SIZES = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
mnist_like = np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST_SIZES))
"""As many labels of each class as MNIST has."""

seeds = st.integers(0, 2**32)
pools = st.lists(st.integers(20, 40), min_size=2, max_size=6).map(
    lambda sizes: np.repeat(np.arange(len(sizes)), sizes)
)
"""Any mix of up to six classes, some rare: 40 to 240 labels."""


def toy_dataset(labels: Labels, test: int = 0, /, **fields: Any) -> Dataset:
    """Each sample's only feature is its row, so that rows can be recognised; the last are tests."""
    made: dict[str, Any] = {
        "name": "toy",
        "x": torch.arange(len(labels), dtype=torch.float32)[:, None],
        "y": torch.from_numpy(labels),
        "class_names": tuple("abcdefghij"[: int(labels.max()) + 1]),
        "official_test": np.arange(len(labels) - test, len(labels)),
    }
    return Dataset(**{**made, **fields})


def owned_dataset(sizes: Sequence[int], test: int = 0, **fields: Any) -> Dataset:
    """Two classes; the rows of owners of these sizes take turns at random."""
    owner = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return toy_dataset(np.arange(len(owner)) % 2, test, **{"owner": owner, **fields})


def held_by_one(dataset: Dataset) -> Federation:
    """All training rows with one client, none of them held back."""
    return build(dataset, partition="iid", clients=1, seed=0, validation=0, test=0)


def split(
    name: str,
    labels: Labels,
    clients: int | None = None,
    seed: int = 0,
    owners: Labels | None = None,
    **knobs: Any,
) -> list[Indices]:
    """The rows that a partition gives each client."""
    rng = np.random.default_rng(seed)
    return partition(name, labels, clients=clients, rng=rng, owners=owners, knobs=knobs)


def counts(parts: Sequence[Indices], labels: Labels) -> Labels:
    """How many samples of each class (columns) each client (rows) holds."""
    classes = int(labels.max()) + 1
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def samples(federation: Federation, name: str) -> Tensor:
    """The samples of a client in all splits."""
    client = federation.by_name[name]
    return federation.x[np.concatenate([client.train, client.validation, client.test])]
