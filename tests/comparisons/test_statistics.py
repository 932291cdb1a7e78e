"""Intervals over seeds, paired differences, evenness and rank correlation, against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedskew.comparisons.statistics import evenness, interval, mean, paired, rank_correlation

SEEDS = [0.71, 0.68, 0.74, 0.70, 0.66]
OTHERS = [0.70, 0.65, 0.75, 0.66, 0.64]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_an_interval_is_that_of_the_one_sample_t_test(n: int) -> None:
    values = SEEDS[:n]
    known = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = interval(values)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), rel=1e-12)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-15)
    assert found.std == pytest.approx(np.std(values, ddof=1), rel=1e-12)
    assert found.half == pytest.approx((known.high - known.low) / 2, rel=1e-12)
    assert found.n == n


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_paired_interval_is_that_of_the_paired_t_test(n: int) -> None:
    a, b = SEEDS[:n], OTHERS[:n]
    known = stats.ttest_rel(a, b).confidence_interval(0.95)
    found = paired(a, b)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), rel=1e-12)
    assert paired(b, a).mean == -found.mean


def test_pairing_takes_out_what_seeds_do_to_both() -> None:
    lucky = [0.5, 0.9, 0.1, 0.7]
    assert interval(lucky).half > 0.5
    better = paired([value + 0.25 for value in lucky], lucky)
    assert better.mean == pytest.approx(0.25)
    assert better.half < 1e-12


def test_seeds_that_do_not_pair_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired([0.1, 0.2], [0.1])


def test_one_seed_has_a_mean_and_no_interval_and_none_has_neither() -> None:
    one, none = interval([0.5]), interval([])
    assert (one.mean, one.n) == (0.5, 1)
    assert all(map(math.isnan, (one.low, one.high, one.half, one.std)))
    assert none.n == 0
    assert math.isnan(none.mean)


@pytest.mark.parametrize("values", [[0.5, math.nan], [0.5, math.inf], [math.inf, -math.inf]])
def test_numbers_that_are_not_finite_have_no_interval(values: list[float]) -> None:
    found = interval(values)
    assert not math.isfinite(found.mean)
    assert math.isnan(found.half)
    assert found.n == 2


def test_the_mean_of_nothing_is_no_number() -> None:
    assert math.isnan(mean([]))
    assert mean(iter([1.0, 2.0, 6.0])) == 3.0


def test_rank_correlation_is_spearmans_over_finite_pairs() -> None:
    x, y = [1.0, 4.0, 2.0, 3.0, 2.5], [-4.0, 1.0, -3.0, 0.5, -0.1]
    pairs = [*zip(x, y, strict=True), (math.nan, 1.0), (2.0, math.inf)]
    # Ranks 1 5 2 4 3 and 1 5 2 4 3: the same order.
    assert rank_correlation(pairs) == pytest.approx(1.0)
    tied = [1.0, 1.0, 2.0, 3.0, 5.0]
    expected = stats.spearmanr(tied, y).statistic
    assert rank_correlation(list(zip(tied, y, strict=True))) == pytest.approx(expected)


def test_fewer_than_three_pairs_or_a_constant_side_have_no_rank_correlation() -> None:
    assert math.isnan(rank_correlation([(1.0, 2.0), (2.0, 3.0)]))
    assert math.isnan(rank_correlation([(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]))


def test_evenness_is_entropy_over_that_of_equal_weights() -> None:
    weights = [0.5, 0.3, 0.2]
    assert evenness(weights) == pytest.approx(stats.entropy(weights) / math.log(3))
    assert evenness([2.0, 2.0]) == pytest.approx(1.0)
    assert math.isnan(evenness([1.0]))
