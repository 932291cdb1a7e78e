"""Fixtures of the tests of data."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def nowhere_else_to_look(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the folder a test names is searched, unless it asks for the real data."""
    if "data_dir" not in request.fixturenames:
        monkeypatch.delenv("FEDSKEW_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-cache"))
        monkeypatch.chdir(tmp_path)
