"""Corrections for several comparisons, and p-values."""

from __future__ import annotations

import math

import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp, ttest_rel

from fedskew.comparisons.statistics import holm, interval, p_value, paired


def test_the_interval_is_students() -> None:
    values = [0.1, 0.4, 0.2, 0.5]
    found = interval(values)
    # mean 0.3; squares 0.04+0.01+0.01+0.04 = 0.1 over 3, so the error is sqrt(0.1/3/4).
    half = student.ppf(0.975, df=3) * math.sqrt(0.1 / 3 / 4)
    assert found.n == 4
    assert [found.mean, found.low, found.high] == pytest.approx([0.3, 0.3 - half, 0.3 + half])
    assert half == pytest.approx(3.182446 * 0.0912871, rel=1e-5)


def test_one_seed_has_no_interval() -> None:
    found = interval([0.5])
    assert found.mean == 0.5
    assert math.isnan(found.low)


def test_holm_multiplies_by_how_many_are_left_and_never_falls() -> None:
    # Sorted .01 .02 .03 .04: times 4, 3, 2, 1 is .04 .06 .06 .04, and the last may not fall.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_p_value_is_that_of_the_paired_t_test() -> None:
    ours, theirs = [0.71, 0.92, 0.83, 0.88], [0.66, 0.93, 0.70, 0.79]
    assert p_value(paired(ours, theirs)) == pytest.approx(ttest_rel(ours, theirs).pvalue)
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    expected = ttest_1samp(differences, 0.02).pvalue
    assert p_value(paired(ours, theirs), bar=0.02) == pytest.approx(expected)
