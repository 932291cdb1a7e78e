"""Partitions keep their promises for any labels: who holds what, how much, and from which seed."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_data import MNIST_SIZES, counts, mnist_like, pools, seeds, split

from fedskew.data.partition import PARTITIONS
from fedskew.data.shares import matched_test
from fedskew.errors import ConfigError, DataError

properties = settings(max_examples=30, deadline=None)


def assert_each_sample_once(parts, labels):
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(labels)))


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 0.3, "min_size": 0}),
        ("dirichlet", {"alpha": 0.3, "min_size": 0, "cap": True}),
        ("quantity", {"alpha": 0.5, "min_size": 0}),
        ("shards", {"shards_per_client": 3}),
    ],
)
@given(labels=pools, clients=st.integers(2, 8), seed=seeds)
@properties
def test_every_sample_goes_to_exactly_one_client(name, knobs, labels, clients, seed):
    assert_each_sample_once(split(name, labels, clients, seed, **knobs), labels)


@given(labels=pools, seed=seeds, variant=st.sampled_from(["random", "even"]))
@properties
def test_biased_uses_every_sample_once_with_one_class_each(labels, seed, variant):
    parts = split("biased", labels, seed=seed, variant=variant, classes_per_client=1)
    assert len(parts) == len(np.unique(labels)) + 1
    assert_each_sample_once(parts, labels)
    assert len(parts[0]) == len(labels) // len(parts)


@given(labels=pools, times=st.integers(1, 3), seed=seeds)
@properties
def test_one_class_gives_each_client_one_label_shared_evenly(labels, times, seed):
    classes = len(np.unique(labels))
    parts = split("one-class", labels, classes * times, seed)
    assert_each_sample_once(parts, labels)
    table = counts(parts, labels)
    assert ((table > 0).sum(axis=1) == 1).all()
    held = table.max(axis=1).reshape(times, classes)
    assert (held.max(axis=0) - held.min(axis=0) <= 1).all()


@given(labels=pools, owners=st.integers(1, 9), seed=seeds)
@properties
def test_owner_gives_each_owner_all_its_samples_and_no_others(labels, owners, seed):
    who = np.random.default_rng(seed).integers(0, owners, len(labels))
    parts = split("owner", labels, owners=who)
    assert_each_sample_once(parts, labels)
    assert [np.unique(who[part]).tolist() for part in parts] == [[i] for i in np.unique(who)]


def test_owner_leaves_out_small_owners_and_picks_fewer_by_seed():
    who = np.repeat(np.arange(10), np.arange(1, 11))
    labels = np.zeros(55, dtype=int)
    assert [len(p) for p in split("owner", labels, owners=who, min_samples=8)] == [8, 9, 10]
    picks = {tuple(len(p) for p in split("owner", labels, 3, s, owners=who)) for s in range(8)}
    assert len(picks) > 1
    assert all(len(pick) == 3 for pick in picks)
    with pytest.raises(DataError, match=r"4 clients cannot be made from 3 owners .*min_samples=8"):
        split("owner", labels, 4, owners=who, min_samples=8)


@given(labels=pools, clients=st.integers(2, 5), min_size=st.integers(0, 4), seed=seeds)
@properties
def test_minimum_sizes_hold(labels, clients, min_size, seed):
    for name in ("dirichlet", "quantity"):
        parts = split(name, labels, clients, seed, alpha=2.0, min_size=min_size)
        assert min(map(len, parts)) >= min_size


@given(labels=pools, clients=st.integers(2, 8), per_client=st.integers(1, 4), seed=seeds)
@properties
def test_shards_give_few_labels_and_tests_of_the_same_labels(labels, clients, per_client, seed):
    classes = len(np.unique(labels))
    if clients * per_client < classes:
        with pytest.raises(DataError, match=f"at least {classes} shards"):
            split("shards", labels, clients, seed, shards_per_client=per_client)
        return
    parts = split("shards", labels, clients, seed, shards_per_client=per_client)
    held = counts(parts, labels)
    assert (held > 0).sum(axis=1).max() <= per_client
    tested = counts(matched_test(parts, labels, labels, np.random.default_rng(seed)), labels)
    assert not ((tested > 0) & (held == 0)).any()


def test_shards_of_mnist_are_equal_cuts_of_a_class_as_in_fedbabu():
    parts = split("shards", mnist_like, 100, shards_per_client=2)
    # 2 * 100 / 10 = 20 shards a class; the largest class makes shards of 337 or 338.
    held = counts(parts, mnist_like)
    for label, size in enumerate(MNIST_SIZES):
        shards_held = np.rint(held[:, label] / (size / 20))
        assert shards_held.sum() == 20
        assert shards_held.max() <= 2
        assert np.abs(held[:, label] - shards_held * (size // 20)).max() <= 2


@pytest.mark.parametrize("name", ["iid", "dirichlet", "quantity", "shards", "biased"])
def test_the_seed_decides_the_split(name):
    clients = None if name == "biased" else 8
    first, again, other = (split(name, mnist_like[:4000], clients, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_random_niid2_has_one_unbiased_client_and_five_with_all_that_is_left_of_two_classes():
    parts = split("biased", mnist_like)
    table = counts(parts, mnist_like)
    assert len(parts[0]) == 10_000
    # A uniform draw of a sixth: within five standard deviations (~28) of a sixth of each class.
    assert np.abs(table[0] - np.array(MNIST_SIZES) / 6).max() < 140
    assert ((table[1:] > 0).sum(axis=1) == 2).all()
    assert (table[1:].sum(axis=0) == np.array(MNIST_SIZES) - table[0]).all()
    pairs = {tuple(np.flatnonzero(row)) for row in table[1:]}
    assert pairs != {(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)}


def test_even_niid2_takes_a_sixth_of_each_class_in_class_order():
    table = counts(split("biased", mnist_like, 6, variant="even"), mnist_like)
    assert table[0].sum() == 10_000
    assert np.abs(table[0] - np.array(MNIST_SIZES) / 6).max() < 1
    assert [np.flatnonzero(row).tolist() for row in table[1:]] == [
        [0, 1], [2, 3], [4, 5], [6, 7], [8, 9],
    ]  # fmt: skip


def test_even_niid2_of_equal_classes_makes_equal_clients_as_in_feddisco():
    parts = split("biased", np.repeat(np.arange(10), 6000), variant="even")
    assert [len(part) for part in parts] == [10_000] * 6


def test_label_groups_cut_each_label_into_equal_chunks_over_their_clients():
    labels = np.repeat(np.arange(10), 50)
    table = counts(split("label-groups", labels, 10), labels)
    assert (table[:5, :5] == 10).all()
    assert (table[5:, 5:] == 10).all()
    assert table.sum() == 500


def test_label_groups_leave_out_labels_nobody_asked_for():
    labels = np.repeat(np.arange(4), [4, 6, 8, 10])
    table = counts(split("label-groups", labels, 4, groups=[[3], [1, 2]]), labels)
    assert table.tolist() == [[0, 0, 0, 5], [0, 0, 0, 5], [0, 3, 4, 0], [0, 3, 4, 0]]


def test_the_cap_makes_dirichlet_sizes_more_equal():
    def spread(cap, seed):
        sizes = [len(p) for p in split("dirichlet", mnist_like, 10, seed, cap=cap)]
        return np.std(sizes) / np.mean(sizes)

    ratios = [spread(True, seed) / spread(False, seed) for seed in range(20)]
    assert np.mean(ratios) < 0.8


def test_smaller_alpha_gives_fewer_labels_to_a_client():
    def top_share(alpha):
        table = counts(split("dirichlet", mnist_like, 20, alpha=alpha, min_size=1), mnist_like)
        return (table.max(axis=1) / table.sum(axis=1)).mean()

    # 0.1 for equal classes: a tenth each; towards 1 where one class fills a client.
    assert top_share(1000.0) < 0.13 < 0.3 < top_share(0.5) < 0.55 < top_share(0.05)


@pytest.mark.parametrize("cap", [False, True])
@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e6])
def test_extreme_alphas_still_use_every_sample(alpha, cap):
    parts = split("dirichlet", mnist_like, 10, alpha=alpha, cap=cap, min_size=0)
    assert_each_sample_once(parts, mnist_like)


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
@pytest.mark.parametrize("min_size", [500, 7000])
def test_an_impossible_minimum_is_refused_within_a_second(name, min_size):
    begin = time.process_time()
    with pytest.raises(
        DataError,
        match=rf"{name}.* 100 clients min_size={min_size} of 60000 samples with alpha=0.05.*raise",
    ):
        split(name, mnist_like, 100, alpha=0.05, min_size=min_size)
    assert time.process_time() - begin < 1


def test_every_partition_says_what_it_does_and_which_knobs_it_has():
    assert set(PARTITIONS) == {
        "iid", "dirichlet", "shards", "biased", "one-class", "label-groups", "quantity", "owner",
        "graded", "owner-groups",
    }  # fmt: skip
    assert all(choice.summary.endswith(".") for choice in PARTITIONS.values())
    assert PARTITIONS["dirichlet"].defaults == {
        "alpha": 0.5, "cap": False, "min_size": 10, "retries": 100,
    }  # fmt: skip
    assert PARTITIONS["iid"].defaults == {}


@pytest.mark.parametrize(
    ("name", "clients", "knobs", "error", "message"),
    [
        ("dirichle", 5, {}, ConfigError, "did you mean 'dirichlet'"),
        ("dirichlet", 5, {"alhpa": 1.0}, ConfigError, "did you mean 'alpha'"),
        (
            "dirichlet",
            5,
            {"alpha": "small"},
            ConfigError,
            r"alpha of partition 'dirichlet' must be a number above 0 and of at "
            r"most 1e\+06, not 'small'\.",
        ),
        (
            "dirichlet",
            5,
            {"cap": 1},
            ConfigError,
            r"cap of partition 'dirichlet' must be true or false, not 1\.",
        ),
        (
            "dirichlet",
            5,
            {"alpha": 0},
            ConfigError,
            r"alpha of partition 'dirichlet' must be a number above 0 and of at "
            r"most 1e\+06, not 0\.",
        ),
        ("dirichlet", 5, {"alpha": -1.0}, ConfigError, "alpha .* not -1"),
        ("dirichlet", 5, {"alpha": float("nan")}, ConfigError, "alpha .* not nan"),
        (
            "dirichlet",
            5,
            {"retries": 0},
            ConfigError,
            r"retries of partition 'dirichlet' must be a whole number of at least 1, not 0\.",
        ),
        (
            "quantity",
            5,
            {"min_size": -1},
            ConfigError,
            r"min_size of partition 'quantity' must be a whole number of at least 0, not -1\.",
        ),
        (
            "iid",
            5,
            {"alpha": 1.0},
            ConfigError,
            r"unknown knob 'alpha' of partition 'iid', which has none: remove it\.",
        ),
        ("iid", None, {}, ConfigError, "'iid' needs the number of clients"),
        ("iid", 0, {}, ConfigError, "clients must be at least 1, not 0"),
        ("iid", -3, {}, ConfigError, "clients must be at least 1, not -3"),
        ("iid", 41, {}, DataError, "41 clients cannot share 40 samples"),
        (
            "shards",
            5,
            {"shards_per_client": 0},
            ConfigError,
            r"shards_per_client of partition 'shards' must be a whole number of at "
            r"least 1, not 0\.",
        ),
        ("shards", 40, {}, DataError, "80 shards .* 4 classes of 10 to 10 samples"),
        (
            "biased",
            None,
            {"variant": "odd"},
            ConfigError,
            r"variant of partition 'biased' must be 'random' or 'even', not 'odd'\.",
        ),
        ("biased", None, {"classes_per_client": 3}, ConfigError, "3 does not divide the 4 classes"),
        ("biased", 4, {}, ConfigError, "makes 3 clients .* set clients=3"),
        ("one-class", 6, {}, ConfigError, "multiple of the 4 classes, not 6"),
        ("label-groups", 3, {}, ConfigError, "3 clients evenly over 2 groups"),
        ("label-groups", 2, {"groups": [[0], [0, 1]]}, ConfigError, "label 0 is in groups twice"),
        ("label-groups", 2, {"groups": [[0], [7]]}, ConfigError, "label 7 .* no samples"),
        (
            "label-groups",
            2,
            {"groups": [0, 1]},
            ConfigError,
            r"groups of partition 'label-groups' must be a list of lists or none, not \[0, 1\]\.",
        ),
        ("owner", 2, {}, DataError, "records the owner of each sample"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_sentence(name, clients, knobs, error, message):
    with pytest.raises(error, match=message) as caught:
        split(name, np.repeat(np.arange(4), 10), clients, **knobs)
    assert "\n" not in str(caught.value)
