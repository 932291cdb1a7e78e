"""The rule by which clients keep: against independent computations, and for what it promises."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from fedskew.diagnosis.keep_rule import (
    BORROWED,
    CAUTION,
    Evidence,
    Prior,
    below_zero,
    choose,
    posterior,
    prior_of,
)

Floats = NDArray[np.float64]


def told(d: list[float], s: list[float], rows: int = 10) -> Evidence:
    return Evidence(np.array(d), np.square(s), np.full(len(d), rows))


def spread_out(clients: int = 9, seed: int = 0) -> Evidence:
    rng = np.random.default_rng(seed)
    s = rng.uniform(0.02, 0.2, clients)
    return told((0.05 + 0.1 * rng.standard_normal(clients) + s).tolist(), s.tolist())


def test_a_client_borrows_four_samples_of_all_for_its_variance() -> None:
    mine, theirs = np.array([1.0, 0.0, -1.0]), np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    found = Evidence.of([mine, theirs, np.empty(0)])
    pooled = (2 + 1 + 0) / 8
    assert BORROWED == 4
    assert found.difference.tolist() == [0.0, 0.2, 0.0]
    assert found.variance[:2] == pytest.approx([(2 + 4 * pooled) / 21, (1 + 4 * pooled) / 45])
    assert np.isinf(found.variance[2])
    assert found.rows.tolist() == [3, 5, 0]


def test_the_spread_over_clients_is_the_root_that_scipy_finds() -> None:
    evidence = spread_out()
    d, v = evidence.difference, evidence.variance

    def excess(spread: float) -> float:
        middle = np.average(d, weights=1 / (v + spread))
        return float((np.square(d - middle) / (v + spread)).sum() - (len(d) - 1))

    root = brentq(excess, 0, 10, xtol=1e-14)
    found = prior_of(evidence)
    assert found.spread**2 == pytest.approx(root, rel=1e-9)
    assert found.mean == pytest.approx(np.average(d, weights=1 / (v + root)))
    assert found.error == pytest.approx(((1 / (v + root)).sum()) ** -0.5)


def test_clients_that_differ_less_than_their_noise_have_no_spread() -> None:
    found = prior_of(told([0.10, 0.12, 0.08], [0.1, 0.1, 0.1]))
    assert found.spread == 0
    assert found.mean == pytest.approx(0.1)
    assert found.error == pytest.approx(0.1 / 3**0.5)


def test_the_posterior_is_that_of_the_whole_normal_model_at_once() -> None:
    """Mean and covariance of (μ, δ_1, …, δ_K) by linear algebra, with a flat prior of μ."""
    evidence = spread_out()
    prior = prior_of(evidence)
    clients, tau = len(evidence.difference), prior.spread**2
    precision = np.zeros((clients + 1, clients + 1))
    precision[0, 0] = clients / tau
    precision[0, 1:] = precision[1:, 0] = -1 / tau
    precision[1:, 1:] = np.diag(1 / tau + 1 / evidence.variance)
    covariance = np.linalg.inv(precision)
    middle = covariance @ np.concatenate([[0], evidence.difference / evidence.variance])
    mean, deviation = posterior(evidence, prior)
    np.testing.assert_allclose(mean, middle[1:], rtol=1e-8)
    np.testing.assert_allclose(deviation, np.sqrt(np.diag(covariance)[1:]), rtol=1e-8)
    assert prior.mean == pytest.approx(middle[0])


def test_a_client_keeps_the_best_candidate_less_three_quarters_of_a_deviation() -> None:
    """By hand: without spread all clients share the mean 0.06, which is 0.1/√4 = 0.05 sure."""
    good = told([0.06] * 4, [0.1] * 4)
    better = told([0.07] * 4, [0.2] * 4)
    assert CAUTION == 0.75
    assert 0.06 - 0.75 * 0.05 > 0 > 0.07 - 0.75 * 0.1
    found = choose({"good": good, "better": better})
    assert [each.kept for each in found] == ["good"] * 4
    assert found[0].gain == pytest.approx(0.06)
    assert found[0].worse == pytest.approx(norm.cdf(-0.06 / 0.05))


def test_nothing_is_kept_that_is_not_worth_its_risk() -> None:
    found = choose({"little": told([0.03] * 4, [0.1] * 4)})
    assert [(each.kept, each.gain, each.worse) for each in found] == [(None, 0.0, 0.0)] * 4
    assert choose({}) == []


def test_a_client_whose_own_samples_speak_against_it_keeps_its_model_whatever_others_saw() -> None:
    d = [0.2] * 9 + [-0.11, -0.09]
    found = choose({"common": told(d, [0.1] * 11)})
    mean, _ = posterior(told(d, [0.1] * 11), prior_of(told(d, [0.1] * 11)))
    assert mean[9] > 0, "the others would convince it"
    assert [each.kept for each in found] == ["common"] * 9 + [None, "common"]


def test_a_client_without_samples_keeps_its_model() -> None:
    evidence = Evidence.of([np.ones(20), np.ones(20), np.empty(0)])
    assert [each.kept for each in choose({"good": evidence})] == ["good", "good", None]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_candidates_that_are_the_same_for_every_sample_are_no_accident(value: float) -> None:
    found = choose({"same": Evidence.of([np.full(5, value), np.full(7, value)])})
    assert [each.kept for each in found] == [None if value == 0 else "same"] * 2
    assert all(0 <= each.worse <= 1 for each in found)


def test_a_difference_without_doubt_is_below_zero_or_is_not() -> None:
    assert (below_zero(-1.0, 0.0), below_zero(1.0, 0.0)) == (1.0, 0.0)
    assert below_zero(0.3, 0.2) == pytest.approx(norm.cdf(-1.5))


def test_a_prior_of_nobody_knows_nothing() -> None:
    assert prior_of(Evidence.of([np.empty(0)])) == Prior(0.0, 0.0, np.inf)


def simulated(rng: np.random.Generator, clients: int, rows: int) -> tuple[list[Floats], Floats]:
    """Samples' differences in -1, 0, 1 of clients whose true differences are drawn around 0.04."""
    true = rng.normal(0.04, 0.12, clients).clip(-0.5, 0.5)
    samples = []
    for delta in true:
        differ = abs(delta) + 0.1
        chances = [(differ - delta) / 2, 1 - differ, (differ + delta) / 2]
        samples.append(rng.choice([-1.0, 0.0, 1.0], rows, p=chances))
    return samples, true


@pytest.mark.parametrize("rows", [13, 60])
def test_its_promise_holds_in_simulation(rows: int) -> None:
    """True differences are known here, which no test set can tell so exactly."""
    rng = np.random.default_rng(7)
    won, lost, clear, expected, all_lost, best, clients = 0.0, 0, 0, 0.0, 0, 0.0, 0
    for _ in range(60):
        samples, true = simulated(rng, 25, rows)
        for choice, delta in zip(choose({"common": Evidence.of(samples)}), true, strict=True):
            kept = choice.kept is not None
            won += delta * kept
            lost += kept and delta < 0
            clear += kept and delta < -0.1
            expected += choice.worse
            all_lost += delta < 0
            best += max(0.0, delta)
            clients += 1
    assert all_lost / clients > 0.3
    assert lost / clients < 0.08
    assert clear / clients < 0.01
    assert won / best > (0.6 if rows == 13 else 0.85)
    # Of those it said might be worse off, about as many are.
    assert 0.5 < lost / expected < 1.5
