"""Whether synthetic samples are copies, and whether one can learn from them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from fedskew.data.federation import Client, Federation
from fedskew.deploy.realism import Copying, Realism, copies, nearest, realism, usefulness


def cloud(rows: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, 1, 4, 4))).float()


@pytest.fixture
def real() -> Federation:
    """Two clients with noise of two classes, told apart by its first pixel."""
    x = cloud(400, 0)
    y = (x[:, 0, 0, 0] > 0).long()
    rows = np.arange(400)
    clients = (
        Client("ann", rows[:120], test=rows[120:200]),
        Client("bob", rows[200:350], test=rows[350:]),
    )
    return Federation("noise", x, y, ("low", "high"), clients, central_test=rows[120:200])


def test_nearest_distances_are_those_of_a_full_table(monkeypatch: pytest.MonkeyPatch) -> None:
    points, samples = cloud(37, 1).flatten(1), cloud(23, 2).flatten(1)
    expected = np.sort(cdist(points.numpy(), samples.numpy()), axis=1)
    for at_once in (2**24, 50):
        monkeypatch.setattr("fedskew.deploy.realism.AT_ONCE", at_once)
        found = nearest(points, samples)
        np.testing.assert_allclose(found.first, expected[:, 0], rtol=1e-6)
        np.testing.assert_allclose(found.second, expected[:, 1], rtol=1e-6)
    np.testing.assert_allclose(nearest(samples, samples).first, 0, atol=1e-6)


def test_distances_to_a_client_are_what_scipy_finds(real: Federation) -> None:
    made, ann = 0.5 * cloud(60, 5), real.clients[0]
    found = copies(made, real, ann)
    flat = real.x.flatten(1).numpy()
    own, held = (
        np.sort(cdist(points, flat[ann.train]), axis=1)
        for points in (made.flatten(1).numpy(), flat[ann.test])
    )
    assert found.synthetic == pytest.approx(np.sort(own[:, 0])[29])
    assert found.held_out == pytest.approx(np.sort(held[:, 0])[39])
    assert found.ratio == pytest.approx(found.synthetic / found.held_out)
    near = (own[:, 0] < np.quantile(held[:, 0], 0.01)).mean()
    assert 0 < near < 1
    assert found.near == pytest.approx(near)
    contrast, usual = own[:, 0] / own[:, 1], held[:, 0] / held[:, 1]
    assert found.alone == pytest.approx((contrast < np.quantile(usual, 0.01)).mean())
    assert found.tested == 80


def test_fresh_samples_are_no_copies_and_copies_are_found(real: Federation) -> None:
    fresh = realism(cloud(200, 9), None, real, seed=0)
    assert "no sign of copies" in fresh.reading
    assert [found.client for found in fresh.copying] == ["ann", "bob"]
    assert [found.ratio for found in fresh.copying] == pytest.approx([1, 1], abs=0.15)
    # One in five is a training sample of bob's, hardly changed.
    copied = cloud(100, 3)
    copied[:20] = real.x[real.clients[1].train[:20]] + 0.05 * copied[:20]
    found = realism(copied, None, real, seed=0)
    ann, bob = found.copying
    assert 0.2 <= bob.near <= 0.3
    assert 0.2 <= bob.alone <= 0.3
    assert not ann.suspicious
    assert f"some may be copies: {bob.near:.1%} are nearer to bob's" in found.reading


def test_samples_near_to_everything_are_not_taken_for_copies(real: Federation) -> None:
    """What a smooth decoder draws, the mean, is near to many samples at once."""
    found = realism(0.1 * cloud(100, 4), None, real, seed=0)
    assert max(copying.near for copying in found.copying) > 0.5
    assert "no sign of copies" in found.reading
    assert "but not to one alone" in found.reading


@pytest.mark.parametrize(("tested", "limit"), [(5, 0.749), (50, 0.129), (1000, 0.05)])
def test_few_test_samples_need_more_copies_to_be_sure(tested: int, limit: float) -> None:
    """By hand: a share s lies below the least of n with probability (1 - s)^n, 0.001 here."""
    for near, alone in ((1.01, 1.01), (1.01, 0.99), (0.99, 1.01)):
        found = Copying("ann", 1.0, 1.0, 1.0, near * limit, alone * limit, tested)
        assert found.suspicious == (min(near, alone) > 1)


def test_test_samples_that_are_copies_leave_no_ratio() -> None:
    x = torch.cat([cloud(10, 0), cloud(10, 0)])
    client = Client("ann", np.arange(10), test=np.arange(10, 20))
    federation = Federation("twins", x, torch.zeros(20, dtype=torch.int64), ("only",), (client,))
    found = copies(cloud(5, 1), federation, client)
    assert found.held_out == pytest.approx(0, abs=1e-6)
    assert found.near == 0.0
    text = json.dumps(Realism(None, (found,)).as_dict())
    assert "Infinity" not in text


def test_who_learns_from_real_samples_is_as_good_and_from_wrong_ones_is_not(
    real: Federation,
) -> None:
    rows = real.pooled().train
    copied = usefulness(real.x[rows], real.y.numpy()[rows], real, seed=0)
    assert copied.cas == copied.real > 0.85
    assert copied.samples == 80
    wrong = usefulness(real.x[rows], 1 - real.y.numpy()[rows], real, seed=0)
    assert wrong.cas < 0.15
    assert wrong.real == copied.real


def test_a_clients_samples_are_tried_on_that_clients_test_samples(real: Federation) -> None:
    rows = real.clients[1].train
    found = usefulness(real.x[rows], real.y.numpy()[rows], real, seed=0, client="bob")
    assert found.cas == found.real
    assert found.tested_on == "50 test samples of bob"


def test_a_client_without_test_samples_is_left_out(real: Federation) -> None:
    bare = real.with_data(clients=(Client("ann", real.clients[0].train),))
    found = realism(cloud(20, 1), None, bare, seed=0)
    assert found.copying == ()
    assert "nobody has test samples" in found.reading
