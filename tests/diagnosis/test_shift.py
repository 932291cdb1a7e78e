"""The sums give what all pairs of rows would, and chance is as large as it is said to be."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from fedskew.diagnosis.basis import agreed, opening
from fedskew.diagnosis.shift import nearest_mixtures, shift_of
from fedskew.diagnosis.summary import summarise
from fedskew.diagnosis.together import Together, together


def of(federation) -> tuple[Together, list[np.ndarray], list[np.ndarray]]:
    """Its summaries, and each client's features and labels, for those who work by rows."""
    basis = agreed([opening(federation, c.name) for c in federation.clients])
    made = together(summarise(federation, basis), basis)
    phi = [basis.describe(federation.x.numpy()[c.train]) for c in federation.clients]
    return made, phi, [federation.y.numpy()[c.train] for c in federation.clients]


def pairs(a: np.ndarray) -> float:
    """The mean product of two different rows."""
    return float(np.mean([a[i] @ a[j] for i, j in permutations(range(len(a)), 2)]))


def test_distances_are_means_over_pairs_of_different_rows(deal) -> None:
    made, phi, labels = of(deal(clients=3, size=45))
    shift = shift_of(made)
    by_hand = 0.0
    for c in range(3):
        own = phi[0][labels[0] == c]
        others = np.concatenate([phi[k][labels[k] == c] for k in (1, 2)])
        cross = float((own @ others.T).mean())
        by_hand += len(own) / 45 * (pairs(own) + pairs(others) - 2 * cross)
    assert shift.apart[0] * made.traces[0] == pytest.approx(by_hand, abs=1e-5)


def test_the_covariance_within_classes_is_that_of_the_rows(deal) -> None:
    made, phi, labels = of(deal(clients=3, size=45))
    rows, classes = np.concatenate(phi), np.concatenate(labels)
    rest = rows - np.stack([rows[classes == c].mean(axis=0) for c in range(3)])[classes]
    np.testing.assert_allclose(made.within, rest.T @ rest / (len(rows) - 3), atol=1e-6)


def test_without_a_difference_scores_vary_as_much_as_they_say(deal) -> None:
    beyond, chances = [], []
    for seed in range(60):
        made, _, _ = of(deal(clients=6, size=60, seed=seed))
        shift = shift_of(made)
        beyond.append(shift.total.beyond)
        chances.append(min(shift.total_chance, shift.whole_total_chance))
    assert abs(np.mean(beyond)) < 0.4
    assert 0.7 < np.std(beyond) < 1.3
    assert np.mean(np.array(chances) < 0.005) <= 0.05


def test_mixtures_are_those_that_nnls_finds() -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(0)
    means, target = rng.standard_normal((5, 4, 9)), rng.standard_normal((5, 9))
    found = nearest_mixtures(means, target, np.ones((5, 4), bool))
    for k in range(5):
        # A heavy row of ones makes non-negative least squares keep the sum at 1.
        stacked = np.vstack([means[k].T, 1e4 * np.ones(4)])
        np.testing.assert_allclose(found[k], nnls(stacked, [*target[k], 1e4])[0], atol=1e-3)
