"""The Wasserstein-1 distance from N(0, 1) against scipy, integrals and hand computations."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm, wasserstein_distance

from fedskew.parts.generative import w1_to_normal


def w1(*values: float) -> float:
    return float(w1_to_normal(torch.tensor(values, dtype=torch.float64)[:, None]))


def w1_by_integral(values: list[float]) -> float:
    """∫|F(x) - Φ(x)| dx, piece by piece between the samples."""
    x = sorted(values)
    edges = [min(x[0], 0.0) - 12.0, *x, max(x[-1], 0.0) + 12.0]
    total = 0.0
    for i in range(len(edges) - 1):
        level = i / len(x)
        crossing = [norm.ppf(level)] if 0 < level < 1 else []
        inner = [c for c in (*crossing, 0.0) if edges[i] < c < edges[i + 1]]
        total += quad(
            lambda t, level=level: abs(level - norm.cdf(t)),
            edges[i], edges[i + 1], points=inner or None, limit=200,
        )[0]  # fmt: skip
    return total


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_w1_is_the_area_between_the_distribution_functions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(0.7 * seed, 0.5 + seed, size=5 + 20 * seed).tolist()
    assert w1(*values) == pytest.approx(w1_by_integral(values), abs=1e-7)


def test_w1_is_what_scipy_finds_on_a_fine_grid_of_quantiles() -> None:
    rng = np.random.default_rng(3)
    grid = norm.ppf((np.arange(400_000) + 0.5) / 400_000)
    columns = np.stack([rng.normal(0, 1, 300), rng.uniform(-1, 3, 300), rng.exponential(2, 300)], 1)
    expected = [wasserstein_distance(column, grid) for column in columns.T]
    found = w1_to_normal(torch.from_numpy(columns))
    assert found.tolist() == pytest.approx(expected, abs=2e-5)
    assert min(expected) < 0.2 < 1.0 < max(expected)


def test_w1_is_what_scipy_finds_on_a_huge_sample() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0.3, 0.8, 2_000)
    expected = wasserstein_distance(values, rng.normal(size=2_000_000))
    assert w1(*values) == pytest.approx(expected, abs=3e-3)


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
@pytest.mark.parametrize("c", [0.0, -0.6, 1.3, 9.0, -40.0])
def test_w1_of_one_point_is_how_far_a_normal_is_from_it_on_average(c: float, n: int) -> None:
    """E|N - c| = 2φ(c) + c·(2Φ(c) - 1), √(2/π) at 0; however often the point is repeated."""
    expected = 2 * norm.pdf(c) + c * (2 * norm.cdf(c) - 1)
    assert w1(*[c] * n) == pytest.approx(float(expected), abs=1e-12)
    assert w1(*[0.0] * n) == pytest.approx(math.sqrt(2 / math.pi))


def test_w1_of_two_points_by_hand() -> None:
    """At ±m with m = E|N| each half of the normal is at its own point: 2·∫₀^∞|t - m|φ(t)dt."""
    m = math.sqrt(2 / math.pi)
    half = quad(lambda t: abs(t - m) * norm.pdf(t), 0, 12, points=[m])[0]
    assert w1(-m, m) == pytest.approx(2 * half, abs=1e-9)


def test_w1_of_the_normals_own_quantiles_is_small_and_shrinks_with_their_number() -> None:
    found = [w1(*norm.ppf((np.arange(n) + 0.5) / n)) for n in (10, 100, 1_000, 10_000)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 1e-3


@given(st.lists(st.floats(-6, 6), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_w1_knows_neither_order_nor_sign_and_is_at_least_the_mean(
    values: list[float], random: Any
) -> None:
    """W1 is at least the difference of the means, and equal to it for a shift beyond all tails."""
    shuffled = list(values)
    random.shuffle(shuffled)
    found = w1(*values)
    assert w1(*shuffled) == pytest.approx(found, abs=1e-12)
    assert w1(*(-v for v in values)) == pytest.approx(found, abs=1e-9)
    assert found >= abs(sum(values)) / len(values) - 1e-9
    for c in (60.0, -60.0):
        mean = sum(values) / len(values)
        assert w1(*(v + c for v in values)) == pytest.approx(abs(mean + c), abs=1e-9)


def test_w1_takes_columns_apart_one_of_them_constant_and_in_single_precision() -> None:
    rng = np.random.default_rng(6)
    columns = np.stack([rng.normal(size=50), np.full(50, 2.0)], axis=1)
    found = w1_to_normal(torch.from_numpy(columns).to(torch.float32))
    assert found.shape == (2,)
    assert found.tolist() == pytest.approx([w1(*columns[:, 0]), w1(2.0)], abs=1e-6)
    one_by_one = [float(w1_to_normal(torch.from_numpy(columns[:, [k]]))) for k in (0, 1)]
    assert found.tolist() == pytest.approx(one_by_one, abs=1e-6)


def test_w1_of_a_hundred_thousand_codes_takes_no_time() -> None:
    codes = torch.randn(100_000, 8, generator=torch.Generator().manual_seed(0))
    start = time.process_time()
    found = w1_to_normal(codes)
    assert time.process_time() - start < 5.0
    assert float(found.max()) < 0.02


@pytest.mark.parametrize("n", [100, 500, 5_000])
def test_even_perfect_codes_are_a_little_off_about_one_over_the_root_of_their_number(
    n: int,
) -> None:
    draws = torch.randn(n, 400, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    assert float(w1_to_normal(draws).mean()) == pytest.approx(1.29 / math.sqrt(n), rel=0.08)
