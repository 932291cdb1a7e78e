"""Epsilon against sums made by hand, and against losses worked out from the densities."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from fedskew.errors import ConfigError
from fedskew.parts.accounting import epsilon

DELTA = 1e-5


def renyi(noise: float, rounds: int, delta: float) -> float:
    """The Rényi bound of the Gaussian mechanism, turned into an epsilon at the best order.

    A sum that moves by 2·C under noise of deviation noise·C has divergence α·(2/noise)²/2 a round;
    ε = divergence + log(1 - 1/α) - log(δ·α)/(α - 1).
    """

    def at(order: float) -> float:
        divergence = rounds * order * (2 / noise) ** 2 / 2
        return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    return float(minimize_scalar(at, bounds=(1.0001, 500.0), method="bounded").fun)


def exact(noise: float, rounds: int, delta: float) -> float:
    """The true epsilon of composed Gaussians, which are one Gaussian of mean μ = 2·√rounds/noise:
    δ(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ)."""
    mu = 2 * math.sqrt(rounds) / noise

    def excess(eps: float) -> float:
        return float(norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu))

    return float(brentq(lambda eps: excess(eps) - delta, 0.0, 300.0))


FULL = [(2.0, 10), (4.0, 100), (8.0, 100), (16.0, 100), (30.0, 1000)]


@pytest.mark.parametrize(("noise", "rounds"), FULL)
def test_with_all_clients_it_is_the_true_epsilon_and_below_the_renyi_bound(
    noise: float, rounds: int
) -> None:
    found = epsilon(noise, rounds, per_round=25, clients=25, delta=DELTA)
    assert found == pytest.approx(exact(noise, rounds, DELTA), rel=1e-7)
    assert found < renyi(noise, rounds, DELTA)


def broken_promise(noise: float, share: float, rounds: int, eps: float) -> float:
    """The δ that two neighbours really need at ε, by summing over all that may be observed.

    One client's clipped update is C in one federation and -C in the other, all others are zero:
    each round shows (1-q)·N(0, s²) + q·N(±C, s²). Losses of rounds add, so their distribution is
    the convolution of one round's, here on a grid that rounds losses down.
    """
    step = 1e-3
    seen = np.linspace(-1 - 12 * noise, 1 + 12 * noise, 400_001)
    ours, theirs = (
        (1 - share) * norm.pdf(seen, 0, noise) + share * norm.pdf(seen, side, noise)
        for side in (1.0, -1.0)
    )
    losses = np.floor(np.log(ours / theirs) / step).astype(int)
    low = int(losses.min())
    mass = np.bincount(losses - low, weights=ours * (seen[1] - seen[0]))
    total = mass
    for _ in range(rounds - 1):
        total = np.convolve(total, mass)
    loss = (np.arange(len(total)) + rounds * low) * step
    beyond = loss > eps
    return float((total[beyond] * -np.expm1(eps - loss[beyond])).sum())


@pytest.mark.parametrize(
    ("noise", "per_round", "rounds"), [(2.0, 10, 1), (2.0, 10, 6), (2.0, 50, 6), (6.0, 30, 6)]
)
def test_a_sample_of_clients_keeps_the_promise_that_is_made(
    noise: float, per_round: int, rounds: int
) -> None:
    found = epsilon(noise, rounds, per_round, clients=100, delta=DELTA)
    assert broken_promise(noise, per_round / 100, rounds, found) <= DELTA
    # And the check has teeth: a fifth of that epsilon would be a lie.
    assert broken_promise(noise, per_round / 100, rounds, found / 5) > DELTA


def test_the_check_of_the_promise_agrees_with_the_true_epsilon_of_all_clients() -> None:
    true = exact(4.0, 6, DELTA)
    assert broken_promise(4.0, 1.0, 6, true) == pytest.approx(DELTA, rel=0.05)


def told_who(noise: float, share: float, rounds: int, eps: float) -> float:
    """The δ that two neighbours need at ε towards somebody who knows the lots.

    A client that was drawn m times is ±C in the sum of m rounds, under noise of √m·noise·C: the
    integral of max(0, p - e^ε·q) over that sum, with the binomial's chance of each m.
    """
    total = 0.0
    for m in range(1, rounds + 1):
        chance = math.comb(rounds, m) * share**m * (1 - share) ** (rounds - m)
        wide = math.sqrt(m) * noise
        seen = np.linspace(-m - 14 * wide, m + 14 * wide, 40_001)
        excess = norm.pdf(seen, m, wide) - math.exp(eps) * norm.pdf(seen, -m, wide)
        total += chance * float(np.maximum(excess, 0.0).sum() * (seen[1] - seen[0]))
    return total


@pytest.mark.parametrize(
    ("noise", "per_round", "rounds"), [(2.0, 10, 6), (2.0, 5, 100), (6.0, 30, 40), (8.0, 100, 20)]
)
def test_clients_that_remember_get_the_epsilon_towards_those_who_know_the_lots(
    noise: float, per_round: int, rounds: int
) -> None:
    found = epsilon(noise, rounds, per_round, clients=100, delta=DELTA, remembers=True)
    assert told_who(noise, per_round / 100, rounds, found) == pytest.approx(DELTA, rel=1e-3)
    assert found >= epsilon(noise, rounds, per_round, clients=100, delta=DELTA)
    assert found <= epsilon(noise, rounds, 100, clients=100, delta=DELTA)


def test_little_noise_has_a_large_epsilon_and_no_overflow() -> None:
    """With σ = 0.001 and ten rounds μ = 2·√10/0.001: ε is near μ²/2 = 2·10⁷."""
    assert epsilon(0.001, 10, 5, 5, DELTA) == pytest.approx(2e7, rel=2e-3)


def test_more_noise_and_fewer_rounds_mean_less_epsilon() -> None:
    for per_round in (20, 200):
        by_noise = [epsilon(n, 50, per_round, 200, DELTA) for n in (1.0, 2.0, 4.0, 8.0)]
        assert by_noise == sorted(by_noise, reverse=True)
        by_rounds = [epsilon(4.0, r, per_round, 200, DELTA) for r in (1, 10, 100, 1000)]
        assert by_rounds == sorted(by_rounds)
        by_delta = [epsilon(4.0, 50, per_round, 200, d) for d in (1e-2, 1e-4, 1e-6)]
        assert by_delta == sorted(by_delta)


def test_a_lot_among_more_clients_hides_each_of_them_better() -> None:
    found = [epsilon(4.0, 100, 20, clients, DELTA) for clients in (20, 40, 200, 2000)]
    assert found == sorted(found, reverse=True)
    assert found[0] / found[-1] > 30


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_drawing_clients_never_costs_privacy_where_the_bound_for_it_is_loose(noise: float) -> None:
    everyone = epsilon(noise, 100, 300, 300, DELTA)
    assert epsilon(noise, 100, 200, 300, DELTA) <= everyone


def test_without_noise_nothing_is_promised() -> None:
    assert epsilon(0.0, 1, 1, 1000, DELTA) == math.inf


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedskew\[privacy\]'"):
        epsilon(1.0, 1, 1, 10, DELTA)
