"""Fixtures every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real datasets; a run that must not skip sets FEDSKEW_REQUIRE_DATA=1."""
    folder = os.environ.get("FEDSKEW_DATA", "")
    if folder and Path(folder).is_dir():
        return Path(folder).resolve()
    if os.environ.get("FEDSKEW_REQUIRE_DATA") == "1":
        pytest.fail("FEDSKEW_REQUIRE_DATA=1 but FEDSKEW_DATA names no folder")
    pytest.skip("set FEDSKEW_DATA to the folder of real datasets to run this")
