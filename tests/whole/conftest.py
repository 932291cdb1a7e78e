"""The recorded digests, for those who hold runs to them."""

from __future__ import annotations

import json

import digests
import pytest


@pytest.fixture(scope="module")
def recorded() -> dict[str, digests.Digests]:
    known: dict[str, dict[str, digests.Digests]] = json.loads(digests.RECORDED.read_text())
    if digests.machine() not in known:
        pytest.skip(f"no digests were recorded on {digests.machine()}, only on {', '.join(known)}")
    return known[digests.machine()]
