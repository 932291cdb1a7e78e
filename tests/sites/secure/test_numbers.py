"""Changes as whole numbers: by hand, and the bound on what rounding costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from summing import error_bound

from fedskew.config import SecureSection
from fedskew.errors import ConfigError, RunError
from fedskew.sites.secure.numbers import check_room, coded, decoded, moved, needed

SMALL = SecureSection(clip=1.0, bits=8)


def test_a_change_by_hand() -> None:
    """A step is 2/256; half of 0.5 is 0.25, 32 steps above the middle, which is 128."""
    assert coded(np.array([0.5, -1.0, 0.0]), 10, 20, SMALL).tolist() == [160, 64, 128]


def test_a_mean_by_hand() -> None:
    """Weights 10 and 30 of 30 at most: changes 0.6 and 0.2 have the mean 0.3."""
    section = SecureSection(clip=1.0, bits=16)
    total = coded(np.array([0.6]), 10, 30, section) + coded(np.array([0.2]), 30, 30, section)
    (mean,) = decoded(total, 40, 2, 30, section)
    assert mean == pytest.approx(0.3, abs=2 * 2**-16 * 30 / 40)


@pytest.mark.parametrize("bits", [8, 16, 24])
@pytest.mark.parametrize("weights", [[1, 1, 1], [1, 1000], [5, 80, 35, 60, 20]])
def test_the_mean_is_within_the_bound_and_the_bound_is_tight(bits: int, weights: list[int]) -> None:
    section, most = SecureSection(clip=2.0, bits=bits), max(weights)
    rng = np.random.default_rng(bits)
    changes = [rng.uniform(-2, 2, 20_000) for _ in weights]
    total = sum(coded(c, w, most, section) for c, w in zip(changes, weights, strict=True))
    mean = decoded(np.asarray(total), sum(weights), len(weights), most, section)
    exact = np.average(changes, axis=0, weights=weights)
    bound = error_bound(weights, most, clip=2.0, bits=bits)
    worst = np.abs(mean - exact).max()
    assert 0.5 * bound < worst <= bound * (1 + 1e-6)


def test_a_change_beyond_the_clip_is_refused_and_not_cut_off() -> None:
    with pytest.raises(
        RunError, match=r"changed by 1\.5, beyond secure\.clip = 1: choose a larger"
    ):
        coded(np.array([0.1, -1.5]), 5, 5, SMALL)
    with pytest.raises(RunError, match=r"beyond secure\.clip"):
        coded(np.array([np.nan]), 5, 5, SMALL)
    assert coded(np.array([-1.5]), 1, 2, SMALL).tolist() == [32]


def test_a_weight_above_the_largest_is_refused() -> None:
    with pytest.raises(RunError, match="counts 6 of 5 at most"):
        coded(np.array([0.1]), 6, 5, SMALL)


@pytest.mark.parametrize(("numbers", "weight"), [([900, 1], 2), ([1, 2], 2**31), ([1, 2], 0)])
def test_a_mask_that_is_left_on_the_sum_is_noticed(numbers: list[int], weight: int) -> None:
    with pytest.raises(RunError, match="masks do not cancel"):
        decoded(np.array(numbers), weight, 2, 5, SMALL)


def test_more_clients_than_there_is_room_for_are_refused() -> None:
    check_room(255, SecureSection())
    with pytest.raises(ConfigError, match=r"room for 255 clients .* there are 256: take 23 bits"):
        check_room(256, SecureSection())
    check_room(256, SecureSection(bits=23))


def test_more_than_half_of_the_sites_are_always_needed() -> None:
    assert [needed(n, SecureSection()) for n in range(2, 11)] == [2, 2, 3, 4, 4, 5, 6, 6, 7]
    low = SecureSection(threshold=0.51)
    assert [needed(n, low) for n in range(2, 11)] == [2, 2, 3, 3, 4, 4, 5, 5, 6]


def test_counters_stay_as_they_were_sent() -> None:
    sent = {"w": torch.tensor([[1.0, 2.0]]), "n": torch.tensor(7), "b": torch.tensor([0.5])}
    found = moved(sent, np.array([0.25, 1.0, -1.0]))
    assert found["b"].tolist() == [0.75]
    assert found["w"].tolist() == [[2.0, 1.0]]
    assert found["n"] is sent["n"]
    assert [t.dtype for t in found.values()] == [t.dtype for t in sent.values()]
