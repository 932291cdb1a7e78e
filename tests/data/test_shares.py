"""Test rows are shared in proportion to the labels that clients train on."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_data import Labels, counts, pools, seeds, split

from fedskew.data.shares import matched_test


@given(labels=pools, clients=st.integers(1, 6), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_matched_tests_are_disjoint_and_in_proportion(
    labels: Labels, clients: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    test_labels = rng.integers(0, labels.max() + 2, 100)
    parts = split("iid", labels, clients, seed)
    tests = matched_test(parts, labels, test_labels, rng)
    everything = np.concatenate(tests)
    assert len(np.unique(everything)) == len(everything)
    assert len(everything) == (test_labels <= labels.max()).sum()
    held, total = counts(parts, labels), np.bincount(labels)
    for label, size in enumerate(total):
        given_ = np.array([(test_labels[t] == label).sum() for t in tests])
        exact = (test_labels == label).sum() * held[:, label] / size
        assert np.abs(given_ - exact).max() < 1


def test_matched_test_by_hand() -> None:
    # Client 0 holds 3 of 4 zeros; client 1 one zero and both ones; nobody trains on class 2.
    train = np.array([0, 0, 0, 0, 1, 1])
    parts = [np.array([0, 1, 2]), np.array([3, 4, 5])]
    test = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2])
    tests = matched_test(parts, train, test, np.random.default_rng(0))
    assert [np.bincount(test[t], minlength=3).tolist() for t in tests] == [[6, 0, 0], [2, 3, 0]]
