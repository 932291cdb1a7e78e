"""Where a page's numbers were made."""

from __future__ import annotations

from pathlib import Path

from fedskew.papers.machine import UNKNOWN, commit


def test_code_outside_version_control_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    assert commit(tmp_path) == UNKNOWN
