"""Cells of the leaderboard."""

from __future__ import annotations

from fedskew.comparisons.statistics import interval
from fedskew.views.leaderboard import shown


def test_one_seed_is_shown_without_an_interval_and_no_seed_as_a_dash() -> None:
    assert shown(interval([0.4, 0.6]), "accuracy") == "0.500 ± 1.271"
    assert shown(interval([]), "accuracy") == "–"
    assert shown(None, "accuracy") == "–"
    assert shown(interval([1234.5678]), "loss") == "1235"
