"""Fixtures every test may use."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fedskew.federate.holdings import _shared_graphs
from fedskew.trust.consent import forget

# Small tensors on several threads are slow, and more so where the cores are shared.
torch.set_num_threads(1)
# Deadlines measure the machine: the first example of a test may have to wait for an import.
settings.register_profile("fedskew", deadline=None)
settings.load_profile("fedskew")


def pytest_collection_finish() -> None:
    """The tests themselves stay until the end: collecting garbage need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_consent_of_earlier_tests() -> None:
    """Which code files may name is known to a process; every test begins as a new one."""
    forget()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real datasets; a run that must not skip sets FEDSKEW_REQUIRE_DATA=1."""
    folder = os.environ.get("FEDSKEW_DATA", "")
    if folder and Path(folder).is_dir():
        return Path(folder).resolve()
    if os.environ.get("FEDSKEW_REQUIRE_DATA") == "1":
        pytest.fail("FEDSKEW_REQUIRE_DATA=1 but FEDSKEW_DATA names no folder")
    pytest.skip("set FEDSKEW_DATA to the folder of real datasets to run this")


@pytest.fixture(scope="module", autouse=True)
def _give_memory_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let go of traced steps and kept runs after each module: a worker runs thousands of tests."""
    yield
    _shared_graphs.cache_clear()
    for kept in vars(request.module).values():
        if hasattr(kept, "cache_clear") and kept.__module__ == request.module.__name__:
            kept.cache_clear()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
