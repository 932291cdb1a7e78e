"""The tiny suite as a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_claims import TOY


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return path
