"""The net: small runs of every family end with the very bits that were recorded.

``python tests/whole/digests.py`` tells what differs, with ``--record`` it records anew; a change
of numbers is recorded together with the reason for it.
"""

from __future__ import annotations

from pathlib import Path

import digests
import pytest


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digested")


@pytest.mark.parametrize("name", digests.works(Path()))
def test_a_run_ends_with_the_recorded_bits(
    name: str, out: Path, recorded: dict[str, digests.Digests]
) -> None:
    found = digests.works(out)[name]()
    assert found == {key: recorded.get(key) for key in found}


@pytest.mark.parametrize("name", digests.RESUMED)
def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(
    name: str, recorded: dict[str, digests.Digests]
) -> None:
    assert recorded[f"{name}, resumed"] == recorded[name]
