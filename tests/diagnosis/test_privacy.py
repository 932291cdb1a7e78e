"""The epsilon is that of everything released together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedskew.diagnosis.basis import public_basis
from fedskew.diagnosis.privacy import NONE, noise_for
from fedskew.diagnosis.summary import UPPER, summarise
from fedskew.errors import DataError


def test_the_noise_on_all_three_is_one_gaussian_mechanism_of_that_epsilon() -> None:
    noise = noise_for(2.0)
    mean = math.sqrt(sum(1 / s**2 for s in (noise.counts, noise.sums, noise.products)))
    # Balle and Wang 2018, theorem 8: the exact δ of a Gaussian mechanism with sensitivity/σ = mean.
    needed = norm.cdf(mean / 2 - 2 / mean) - math.exp(2) * norm.cdf(-mean / 2 - 2 / mean)
    assert needed == pytest.approx(noise.delta, rel=0.05)


def test_one_row_changes_each_thing_that_is_sent_by_a_length_of_one_at_most(deal) -> None:
    federation = deal(clients=2, size=60)
    basis = public_basis(federation, cell=2)
    client = federation.clients[0]
    fewer = federation.with_data(
        clients=(type(client)(client.name, client.train[1:]), federation.clients[1])
    )
    whole, less = (summarise(each, basis)[0] for each in (federation, fewer))
    assert np.linalg.norm(whole.counts - less.counts) == 1.0
    assert np.linalg.norm(whole.sums - less.sums) == pytest.approx(1.0, abs=1e-4)
    assert np.linalg.norm(whole.gram - less.gram) == pytest.approx(1.0, abs=1e-4)


def test_noise_is_as_large_as_declared_and_small_counts_stay_hidden(deal) -> None:
    federation, noise = deal(clients=2, size=60), noise_for(2.0)
    basis = public_basis(federation, cell=2)
    clear = summarise(federation, basis)[0]
    made = [summarise(federation, basis, noise, secret=s)[0] for s in range(40)]
    sums = np.stack([each.sums - clear.sums for each in made])
    products = np.stack([each.products - clear.products for each in made])
    on_it = UPPER[0] == UPPER[1]
    assert sums.std() == pytest.approx(noise.sums, rel=0.05)
    assert products[:, on_it].std() == pytest.approx(noise.products, rel=0.05)
    assert products[:, ~on_it].std() == pytest.approx(noise.products / math.sqrt(2), rel=0.05)
    assert all(len(each.hashes) == 0 for each in made)
    assert all(each.rows == max(0, each.counts.sum()) or each.hidden for each in made)


def test_noise_that_is_not_asked_to_repeat_does_not(deal) -> None:
    federation = deal(clients=2, size=60)
    basis = public_basis(federation)
    first, again = (summarise(federation, basis, noise_for(2.0))[0] for _ in range(2))
    assert (first.products != again.products).all()


def test_a_basis_made_from_rows_does_not_go_with_epsilon(deal) -> None:
    from fedskew.diagnosis.basis import agreed, opening

    federation = deal(clients=2, size=60)
    basis = agreed([opening(federation, c.name) for c in federation.clients])
    with pytest.raises(DataError, match="made from rows"):
        summarise(federation, basis, noise_for(2.0))
    assert noise_for(None) is NONE
