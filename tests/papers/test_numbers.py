"""How numbers are printed."""

from __future__ import annotations

import math

import pytest

from fedskew.comparisons.statistics import Interval, interval
from fedskew.papers.numbers import cell, span
from fedskew.papers.scores import ScoreName


@pytest.mark.parametrize(
    ("mean", "half", "score", "share", "text"),
    [
        (0.0031, 0.0002, "legacy", False, "0.003100 ± 0.000200"),
        (517.352, 2.252, "central", False, "517.35 ± 2.25"),
        (3.14159, 0.5, "own-central", False, "3.142 ± 0.500"),
        (4.2e9, 1e8, "central", False, "4.200e+09 ± 1.000e+08"),
        (0.7512, 0.01, "cas", False, "75.12 ± 1.00"),
        (0.7512, 0.01, "central", True, "75.12 ± 1.00"),
        (0.0031, 0.0002, "legacy", True, "0.003100 ± 0.000200"),
        (0.5, 0.25, "weight-entropy", False, "0.50 ± 0.25"),
        (3.0, 0.0, "kept", False, "3.0 ± 0.0"),
        (math.inf, math.nan, "central", False, "inf"),
        (math.nan, math.nan, "central", False, "–"),
    ],
)
def test_losses_of_any_size_are_readable(
    mean: float, half: float, score: ScoreName, share: bool, text: str
) -> None:
    assert cell(Interval(mean, mean - half, mean + half, 3), score, share) == text


def test_small_differences_of_losses_keep_their_digits() -> None:
    found = Interval(0.00012, -0.00003, 0.00027, 3)
    text = "+0.0001200 [-0.0000300, +0.0002700]"
    assert span(found, "central", False, signed=True) == text


def test_an_exploded_loss_has_a_mean_but_no_interval() -> None:
    found = interval([1.0, math.inf])
    assert found.mean == math.inf
    assert math.isnan(found.low)
