"""Schedules: who is seen when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.engine.batches import Schedule, schedule

KEY = (0, "main", "train", 0, "ann", 1)


def seen(plan: Schedule) -> list[int]:
    return [int(p) for p in plan.positions[plan.mask > 0]]


@given(count=st.integers(1, 60), batch=st.integers(1, 20), epochs=st.integers(1, 3))
def test_padded_batches_show_every_sample_once_an_epoch(
    count: int, batch: int, epochs: int
) -> None:
    plan = schedule(np.arange(count), KEY, batch, epochs, pads=True)
    per_epoch = -(-count // batch)
    assert plan.positions.shape == (epochs * per_epoch, batch)
    for epoch in range(epochs):
        here = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        shown = plan.positions[here][plan.mask[here] > 0]
        assert sorted(shown.tolist()) == list(range(count))


@given(count=st.integers(2, 60), batch=st.integers(2, 20), epochs=st.integers(1, 3))
def test_ragged_batches_never_hold_a_single_sample_and_leave_at_most_one_out(
    count: int, batch: int, epochs: int
) -> None:
    plan = schedule(np.arange(count), KEY, batch, epochs, pads=False)
    sizes = plan.mask.sum(axis=1)
    assert sizes.min() >= 2
    left_out = 1 if count > batch and count % batch == 1 else 0
    assert sizes.sum() == epochs * (count - left_out)
    per_epoch = plan.steps // epochs
    for epoch in range(epochs):
        here = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        shown = plan.positions[here][plan.mask[here] > 0].tolist()
        assert len(set(shown)) == len(shown)


def test_padding_comes_last_in_a_batch() -> None:
    plan = schedule(np.arange(7), KEY, 4, 1, pads=True)
    assert plan.mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_the_sample_left_out_changes_from_epoch_to_epoch() -> None:
    plan = schedule(np.arange(9), KEY, 4, 12, pads=False)
    per_epoch = plan.positions.reshape(12, 8)
    missing = {(set(range(9)) - set(epoch.tolist())).pop() for epoch in per_epoch}
    assert len(missing) > 3


def test_epochs_are_shuffled_apart_and_the_key_fixes_the_order() -> None:
    plan = schedule(np.arange(20), KEY, 20, 2, pads=True)
    assert plan.positions[0].tolist() != plan.positions[1].tolist()
    again = schedule(np.arange(20), KEY, 20, 2, pads=True)
    assert again.positions.tolist() == plan.positions.tolist()
    next_round = schedule(np.arange(20), (*KEY[:-1], 2), 20, 2, pads=True)
    assert next_round.positions.tolist() != plan.positions.tolist()


def test_the_order_does_not_depend_on_which_rows_a_client_holds() -> None:
    here = schedule(np.arange(20), KEY, 5, 1, pads=True)
    there = schedule(np.arange(100, 120), KEY, 5, 1, pads=True)
    assert here.positions.tolist() == there.positions.tolist()


@pytest.mark.parametrize("pads", [True, False])
def test_steps_by_environment_hold_one_batch_of_each_side_by_side(pads: bool) -> None:
    """Five, two and eight samples in batches of three: the largest needs three steps an epoch,
    and the smaller ones start over, each sample as often as the others but one."""
    environment = np.repeat([0, 1, 2], [5, 2, 8])
    plan = schedule(np.arange(15), KEY, 3, 2, pads, environment, environments=3)
    assert plan.positions.shape == (6, 9)
    assert plan.mask.min() == 1
    for e in range(3):
        shown = plan.positions[:, 3 * e : 3 * e + 3]
        assert set(environment[shown].ravel()) == {e}
        counts = np.bincount(shown.ravel(), minlength=15)[environment == e]
        assert counts.max() - counts.min() <= 1


def test_one_environment_alone_has_the_batches_of_plain_training_in_its_places() -> None:
    plain = schedule(np.arange(7), KEY, 3, 2, True)
    plan = schedule(np.arange(7), KEY, 3, 2, True, np.full(7, 1), environments=3)
    assert plan.positions[:, 3:6].tolist() == plain.positions.tolist()
    assert plan.mask[:, 3:6].tolist() == plain.mask.tolist()
    assert plan.mask[:, :3].max() == plan.mask[:, 6:].max() == 0


def test_an_environment_without_samples_is_all_padding() -> None:
    environment = np.array([0, 0, 2, 2])
    plan = schedule(np.arange(4), KEY, 2, 1, True, environment, environments=3)
    assert plan.mask.tolist() == [[1, 1, 0, 0, 1, 1]]
