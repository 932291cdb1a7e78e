"""Layers of settings."""

from __future__ import annotations

from fedskew.papers.entries import merged


def test_a_table_without_a_name_changes_knobs_only() -> None:
    assert merged({"m": {"name": "x", "k": 1}}, {"m": {"k": 2}}) == {"m": {"name": "x", "k": 2}}
