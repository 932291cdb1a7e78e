"""Graded clients: each holds more classes than the one before, and none holds much more data."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_data import MNIST_SIZES, counts, mnist_like, split

from fedskew.data.graded import held_classes
from fedskew.errors import ConfigError, DataError

graded = partial(split, "graded")


@given(
    sizes=st.lists(st.integers(12, 40), min_size=1, max_size=6),
    clients=st.integers(1, 12),
    fewest=st.integers(1, 6),
    share=st.sampled_from(["balanced", "even"]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_every_sample_goes_to_one_client_and_classes_grow_to_all(
    sizes: list[int], clients: int, fewest: int, share: str, seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    fewest = min(fewest, len(sizes))
    parts = graded(labels, clients, seed, fewest=fewest, share=share)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(labels)))
    held = (counts(parts, labels) > 0).sum(axis=1)
    assert held[-1] == len(sizes)
    assert held[0] == (fewest if clients > 1 else len(sizes))
    steps = np.diff(held)
    assert (steps >= 0).all()
    assert clients == 1 or steps.max() - steps.min() <= 1, "evenly"


@pytest.mark.parametrize(
    ("clients", "fewest", "expected"),
    [
        (9, 2, [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (4, 1, [1, 4, 7, 10]),
        (1, 2, [10]),
        (3, 10, [10, 10, 10]),
        (17, 2, [2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10]),
    ],
)
def test_the_number_of_classes_by_hand(clients: int, fewest: int, expected: list[int]) -> None:
    assert held_classes(10, clients, fewest).tolist() == expected


def test_even_shares_of_a_class_differ_by_one_sample_at_most() -> None:
    table = counts(graded(mnist_like, 10, share="even"), mnist_like)
    for column, size in zip(table.T, MNIST_SIZES, strict=True):
        parts = column[column > 0]
        assert (parts.sum(), set(parts) <= {size // len(parts), size // len(parts) + 1}) == (
            size,
            True,
        )


@pytest.mark.parametrize(
    ("clients", "low", "high"), [(5, 0.7, 1.3), (10, 0.85, 1.15), (20, 0.95, 1.05)]
)
def test_balanced_sizes_stay_comparable(clients: int, low: float, high: float) -> None:
    for seed in range(10):
        sizes = np.array([len(part) for part in graded(mnist_like, clients, seed)])
        assert low <= sizes.min() / sizes.mean() <= sizes.max() / sizes.mean() <= high


def test_even_sizes_grow_with_the_classes_held() -> None:
    sizes = np.array([len(part) for part in graded(mnist_like, 10, share="even")])
    assert sizes[-1] == sizes.max() > 4 * sizes[0]


def test_two_balanced_clients_by_hand() -> None:
    """Classes of 100, one client with one class and one with both.

    Shares of the first class, as weights (first : second client), the second class being the
    second client's alone. Start 1 : 1. A pass scales classes to 100 each (50 : 50 and 100), then
    clients to 1 each (1 : 1/3 and 2/3). Again: (75 : 25 and 100), (1 : .2 and .8). Again:
    (83.3 : 16.7 and 100), (1 : 1/7 and 6/7). So 98 samples go 7 to 1, one each is certain.
    """
    labels = np.repeat([0, 1], 100)
    table = counts(graded(labels, 2, fewest=1), labels)
    shared = int(table[0].argmax())
    assert table[0].sum() == table[0, shared] == 1 + round(98 * 7 / 8)
    assert table[1].tolist()[1 - shared] == 100


def test_holders_are_drawn_by_the_seed_and_overlap() -> None:
    parts = graded(mnist_like, 10)
    assert all(np.array_equal(a, b) for a, b in zip(parts, graded(mnist_like, 10), strict=True))
    firsts = {
        tuple(np.flatnonzero(counts(graded(mnist_like, 10, seed), mnist_like)[0]))
        for seed in range(20)
    }
    assert len(firsts) > 10
    assert ((counts(parts, mnist_like) > 0).sum(axis=0) > 1).all()


@pytest.mark.parametrize(
    ("clients", "knobs", "error", "sentence"),
    [
        (None, {}, ConfigError, r"partition 'graded' needs the number of clients: set clients\."),
        (
            3,
            {"fewest": 0},
            ConfigError,
            r"fewest of partition 'graded' must be a whole number of at least 1, not 0\.",
        ),
        (3, {"fewest": 5}, ConfigError, r"fewest of partition 'graded' .*, not 5\."),
        (
            3,
            {"fewest": 2.5},
            ConfigError,
            r"fewest of partition 'graded' must be a whole number of at least 1, not 2\.5\.",
        ),
        (
            3,
            {"share": "evn"},
            ConfigError,
            r"share of partition 'graded' must be 'balanced' or 'even', not 'evn'\.",
        ),
        (
            3,
            {"most": 3},
            ConfigError,
            r"unknown knob 'most' of partition 'graded': choose from fewest, share\.",
        ),
        (
            9,
            {"fewest": 4},
            DataError,
            r"partition 'graded' cannot share the 5 samples of class 3 over 9 clients: ask for "
            r"fewer clients\.",
        ),
    ],
)
def test_what_cannot_be_graded_is_refused_in_one_sentence(
    clients: int | None, knobs: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    labels = np.repeat(np.arange(4), [20, 20, 20, 5])
    with pytest.raises(error, match=f"^{sentence}$"):
        graded(labels, clients, **knobs)
