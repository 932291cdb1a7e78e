"""A finished run, and samples of somebody who was never in it."""

from __future__ import annotations

import numpy as np
import pytest
from quick_digits import SETTINGS, Stored

from fedskew.api import run
from fedskew.data.datasets import load
from fedskew.runs.experiment import Run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Quick, and adapting in one batch: the order of samples then means nothing."""
    return run(SETTINGS, out=tmp_path_factory.mktemp("runs"), draw=False)


@pytest.fixture(scope="session")
def stored() -> Stored:
    """The digits as stored; a run's rows are theirs."""
    digits = load("digits", normalise="unit")
    return digits.x.numpy(), digits.y.numpy()


@pytest.fixture(scope="session")
def few(stored: Stored) -> Stored:
    """Five samples of every class."""
    x, y = stored
    rows = np.concatenate([np.flatnonzero(y == label)[:5] for label in range(10)])
    return x[rows], y[rows]
