"""Gradient-masked averaging, worked by hand and by plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedskew.errors import ConfigError
from fedskew.methods import find
from fedskew.parts.aggregate import Mean, ServerState, Update
from fedskew.parts.masked import MaskedMean


def updates(changes: list[list[float]], sizes: list[int], start: torch.Tensor) -> list[Update]:
    return [
        Update(f"c{i}", {"w": start + torch.tensor(change)}, size, steps=1)
        for i, (change, size) in enumerate(zip(changes, sizes, strict=True))
    ]


def test_agreement_is_measured_by_weight_and_takes_the_mean_whole_from_tau_on() -> None:
    """Weights 1/2, 1/4, 1/4. First entry: all up, A = 1. Second: 1/2 + 1/4 - 1/4 = 1/2. Third:
    1/2 - 1/4 - 1/4 = 0. Fourth: up, still, still, so A = 1/2."""
    start = torch.tensor([10.0, 10.0, 10.0, 10.0])
    changes = [[4.0, 4.0, 4.0, 4.0], [4.0, 4.0, -4.0, 0.0], [8.0, -8.0, -8.0, 0.0]]
    found = {}
    for tau in (0.5, 0.6):
        state = ServerState({"w": start})
        given = updates(changes, [2, 1, 1], start)
        found[tau] = MaskedMean(tau).aggregate(state, given, 3).shared["w"].tolist()
    # The means of the changes are 5, 1, -1 and 2.
    assert found[0.5] == [15.0, 11.0, 10.0, 12.0]
    assert found[0.6] == [15.0, 10.5, 10.0, 11.0]


def test_ten_equal_clients_that_agree_reach_tau_one_in_spite_of_rounding() -> None:
    start = torch.zeros(1)
    given = updates([[float(k + 1)] for k in range(10)], [7] * 10, start)
    moved = MaskedMean(1.0).aggregate(ServerState({"w": start}), given, 10)
    assert moved.shared["w"].item() == pytest.approx(5.5)


def test_random_updates_move_as_numpy_says_and_buffers_as_the_mean() -> None:
    rng = np.random.default_rng(3)
    start = rng.normal(size=20).astype(np.float32)
    ends = rng.normal(size=(5, 20)).astype(np.float32)
    sizes = [3, 1, 4, 1, 5]
    given = [
        Update(f"c{i}", {"w": torch.from_numpy(end), "seen": torch.from_numpy(end)}, size, 1)
        for i, (end, size) in enumerate(zip(ends, sizes, strict=True))
    ]
    both = {"w": torch.from_numpy(start), "seen": torch.from_numpy(start)}
    state = ServerState(both, buffers=frozenset({"seen"}))
    moved = MaskedMean(0.3).aggregate(state, given, 5).shared
    p = np.array(sizes) / 14
    agreement = np.abs(p @ np.sign(ends - start))
    mask = np.where(agreement >= 0.3, 1.0, agreement)
    expected = start + mask * (p @ (ends - start))
    assert 0 < (mask < 1).sum() < 20
    np.testing.assert_allclose(moved["w"].numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(moved["seen"].numpy(), p @ ends, atol=1e-6)


def test_without_a_threshold_it_is_the_mean_to_the_last_bit() -> None:
    rng = np.random.default_rng(5)
    start = torch.from_numpy(rng.normal(size=50).astype(np.float32))
    given = updates(rng.normal(size=(4, 50)).astype(np.float32).tolist(), [1, 2, 3, 4], start)
    state = ServerState({"w": start})
    masked, plain = (a.aggregate(state, given, 4).shared["w"] for a in (MaskedMean(0.0), Mean()))
    assert torch.equal(masked, plain)


@pytest.mark.parametrize("tau", [-0.1, 1.5])
def test_a_threshold_outside_0_to_1_is_refused(tau: float) -> None:
    with pytest.raises(
        ConfigError, match="tau of method 'fedgma' must be a number from 0 to 1, not "
    ):
        find("fedgma").recipe(tau=tau)
