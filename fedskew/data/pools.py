"""The rows there are to divide: what is public leaves them, and what is too many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedskew.data.dataset import Dataset
from fedskew.data.shares import balanced
from fedskew.data.strata import strata
from fedskew.errors import ConfigError, at_least
from fedskew.rng import keyed_rng
from fedskew.types import Indices


@dataclass(frozen=True)
class Pools:
    """Rows that no client holds yet: to train on, of the published test split, and public."""

    train: Indices
    test: Indices
    public: Indices


def pools_of(
    dataset: Dataset,
    with_test: bool,
    public: int,
    samples: int | None,
    test_samples: int | None,
    seed: int,
) -> Pools:
    """The rows to divide; ``with_test`` adds the published test split to those to train on."""
    pool = np.arange(len(dataset.y)) if with_test else dataset.train_rows
    test = dataset.official_test
    if test_samples is not None:
        rng = keyed_rng(seed, "test-samples")
        test = _thin(test, dataset, "test_samples", test_samples, 0, rng)
    shared = _public(pool, dataset, public, keyed_rng(seed, "public"))
    pool = pool[~np.isin(pool, shared)]
    if samples is not None:
        pool = _thin(pool, dataset, "samples", samples, public, keyed_rng(seed, "samples"))
    return Pools(pool, test, shared)


def _public(pool: Indices, dataset: Dataset, public: int, rng: np.random.Generator) -> Indices:
    at_least("public", public, 0)
    if public >= len(pool):
        raise ConfigError(
            f"public={public} would leave no training samples: {dataset.name} has {len(pool)}, "
            "ask for fewer."
        )
    return balanced(pool, strata(dataset.y), public, rng)


def _thin(
    pool: Indices, dataset: Dataset, name: str, samples: int, public: int, rng: np.random.Generator
) -> Indices:
    at_least(name, samples, 1)
    if samples > len(pool):
        kind = "training samples" if name == "samples" else "published test samples"
        beside = f" beside {public} public ones" if public else ""
        raise ConfigError(
            f"{name}={samples} is more than the {len(pool)} {kind} of {dataset.name}{beside}."
        )
    return balanced(pool, strata(dataset.y), samples, rng)
