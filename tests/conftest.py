"""Fixtures every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Small tensors on several threads are slow, and more so where the cores are shared.
torch.set_num_threads(1)
# Deadlines measure the machine: the first example of a test may have to wait for an import.
settings.register_profile("fedskew", deadline=None)
settings.load_profile("fedskew")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real datasets; a run that must not skip sets FEDSKEW_REQUIRE_DATA=1."""
    folder = os.environ.get("FEDSKEW_DATA", "")
    if folder and Path(folder).is_dir():
        return Path(folder).resolve()
    if os.environ.get("FEDSKEW_REQUIRE_DATA") == "1":
        pytest.fail("FEDSKEW_REQUIRE_DATA=1 but FEDSKEW_DATA names no folder")
    pytest.skip("set FEDSKEW_DATA to the folder of real datasets to run this")
