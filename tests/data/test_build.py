"""Building a federation: splits that do not leak, seeds that do not interfere, clear refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_data import toy_dataset

from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.errors import ConfigError, DataError

properties = settings(max_examples=30, deadline=None)


def dataset(rows=600, test=200, classes=5, seed=0, **fields):
    """Labels at random."""
    y = np.random.default_rng(seed).integers(0, classes, rows + test)
    return toy_dataset(y, test, **{"class_names": tuple("abcdefghij"[:classes]), **fields})


def made(data=None, partition="dirichlet", clients=6, seed=0, **settings_):
    data = data or dataset()
    return build(data, partition=partition, clients=clients, seed=seed, **settings_)


def owned(owners, segment=None, test=0):
    """A dataset without published test rows unless asked, each row with its owner."""
    return dataset(
        len(owners) - test,
        test,
        owner=np.asarray(owners),
        owner_names=tuple(f"writer {i}" for i in range(max(owners) + 1)),
        segment=segment,
    )


def everyone(federation):
    return (*federation.clients, *federation.unseen)


def rows_of(client):
    return np.concatenate([client.train, client.validation, client.test])


def same(one, other, *splits):
    return all(
        np.array_equal(a.split(s), b.split(s))
        for a, b in zip(everyone(one), everyone(other), strict=True)
        for s in splits
    )


@given(
    seed=st.integers(0, 2**32),
    partition=st.sampled_from(["iid", "dirichlet", "quantity", "shards", "one-class"]),
    test_from=st.sampled_from(["matched", "holdout"]),
    unseen=st.integers(0, 4),
)
@properties
def test_no_row_is_in_two_places_and_every_training_row_in_one(seed, partition, test_from, unseen):
    clients = 5
    federation = made(
        partition=partition, clients=clients, seed=seed, test_from=test_from, unseen=unseen
    )
    rows = np.concatenate([rows_of(client) for client in everyone(federation)])
    assert len(np.unique(rows)) == len(rows)
    assert set(range(600)) <= set(rows)
    assert len(federation.unseen) == unseen
    assert len(federation.clients) == clients - unseen
    # The 200 published test rows are dealt to clients when matched, and left alone otherwise.
    assert (rows >= 600).sum() == (200 if test_from == "matched" else 0)
    assert federation.central_test.tolist() == list(range(600, 800))


@given(seed=st.integers(0, 2**32), test_from=st.sampled_from(["matched", "holdout"]))
@properties
def test_nobody_is_tested_or_validated_on_a_label_it_does_not_train_on(seed, test_from):
    federation = made(partition="shards", seed=seed, test_from=test_from)
    train = federation.class_counts("train") > 0
    for split in ("validation", "test"):
        assert not ((federation.class_counts(split) > 0) & ~train).any()


def test_shares_are_kept_class_by_class():
    data = dataset(1000, 0, y=torch.arange(1000) % 5)
    federation = made(data, "iid", 1, test=0.2, validation=0.1)
    # 200 rows a class: a fifth for testing, then a tenth of the 160 left for validation.
    assert federation.class_counts("test").tolist() == [[40] * 5]
    assert federation.class_counts("validation").tolist() == [[16] * 5]
    assert federation.class_counts("train").tolist() == [[144] * 5]


def test_small_classes_make_up_for_each_other_so_that_the_share_is_met():
    data = dataset(90, 0, classes=10, y=torch.arange(90) % 10)
    federation = made(data, "iid", 1, test=0.05, validation=0.0)
    # 9 rows a class times 0.05 is less than a half each, but 90 * 0.05 = 4.5 in all.
    assert len(federation.clients[0].test) in (4, 5)
    assert federation.class_counts("test").max() == 1


def test_a_client_with_one_sample_keeps_it_for_training():
    federation = made(owned([0] * 9 + [1], test=0), "owner", None, test=0.9, validation=0.9)
    assert len(federation.by_name["writer 1"].train) == 1


def test_a_client_whose_labels_all_differ_is_still_tested():
    data = dataset(10, 0, classes=10, y=torch.arange(10))
    client = made(data, "iid", 1, test=0.3, validation=0.0).clients[0]
    assert (len(client.train), len(client.test)) == (7, 3)


def test_clients_are_named_by_number_or_by_owner():
    assert [c.name for c in made(clients=2).clients] == ["client-000", "client-001"]
    many = made(dataset(2000, 0), "iid", 1001)
    assert many.clients[7].name == "client-0007"
    assert [c.name for c in made(owned([0, 1, 2] * 9), "owner", None).clients] == [
        "writer 0", "writer 1", "writer 2",
    ]  # fmt: skip


def test_owners_of_one_half_of_the_published_split_all_become_clients():
    # Writers 0 and 1 are in the published training half, writer 2 in the test half.
    federation = made(owned([0, 1] * 20 + [2] * 20, test=20), "owner", None)
    assert [c.name for c in federation.clients] == ["writer 0", "writer 1", "writer 2"]
    assert all(len(c.train) and len(c.test) for c in federation.clients)
    # Writer 2 trains on published test rows, so they cannot be the central test set.
    tests = np.concatenate([c.test for c in federation.clients])
    assert federation.central_test.tolist() == sorted(tests.tolist())
    trained = np.concatenate([c.train for c in federation.clients])
    assert not set(federation.central_test) & set(trained)


def test_owners_of_both_halves_of_the_published_split_are_tested_on_their_own_half():
    federation = made(owned([0, 1] * 20 + [0, 1] * 5, test=10), "owner", None)
    assert federation.by_name["writer 1"].test.tolist() == [41, 43, 45, 47, 49]
    assert federation.central_test.tolist() == list(range(40, 50))


@given(seed=st.integers(0, 2**32))
@properties
def test_no_segment_is_torn_between_splits(seed):
    rng = np.random.default_rng(seed)
    segment = np.repeat(np.arange(80), rng.integers(1, 9, 80))
    data = owned((segment % 4).tolist(), segment)
    labels = torch.from_numpy((segment // 4) % 5)
    data = dataset(len(segment), 0, owner=data.owner, segment=segment, y=labels)
    federation = made(data, "owner", None, seed=seed, validation=0.2)
    for client in federation.clients:
        parts = [set(segment[client.split(s)]) for s in ("train", "validation", "test")]
        assert sum(map(len, parts)) == len(set().union(*parts))
        assert parts[0]
        assert parts[2]


@pytest.mark.real_data
def test_har_subjects_keep_windows_that_overlap_on_one_side(data_dir):
    with np.load(data_dir / "har.npz", allow_pickle=False) as har:
        y, owner, segment = (har[k].astype(np.int64) for k in ("y", "owner", "segment"))
        official = np.flatnonzero(har["split"] == 1)
    data = Dataset(
        "har", torch.zeros(len(y), 1), torch.from_numpy(y), tuple("abcdef"), official, owner,
        segment=segment,
    )  # fmt: skip
    federation = made(data, "owner", None, unseen=9)
    assert (len(federation.clients), len(federation.unseen)) == (21, 9)
    for client in everyone(federation):
        assert not set(segment[client.train]) & set(segment[client.test])
        assert not set(segment[client.train]) & set(segment[client.validation])
        assert len(np.unique(y[client.train])) == 6
        size = len(rows_of(client))
        # The last segment taken may stick out by half its length.
        half = np.bincount(segment).max() / 2
        assert abs(len(client.test) - 0.2 * size) <= half
        assert abs(len(client.validation) - 0.1 * (size - len(client.test))) <= half


def test_the_same_seed_gives_the_same_federation_and_another_seed_another():
    splits = ("train", "validation", "test")
    assert same(made(seed=3, unseen=2), made(seed=3, unseen=2), *splits)
    assert not same(made(seed=3), made(seed=4), "train")


def test_each_choice_has_a_seed_of_its_own():
    base = made()
    assert same(base, made(validation=0.3), "test")
    thirds = made(test_from="holdout", test=0.3)
    for a, b in zip(base.clients, thirds.clients, strict=True):
        everything = np.concatenate([b.train, b.validation, b.test])
        assert set(a.train) | set(a.validation) == set(everything)
    apart = made(unseen=2)
    for client in everyone(apart):
        assert client.train.tolist() == base.by_name[client.name].train.tolist()
    data = dataset(x=torch.rand(800, 4))
    noisy = made(data, skew=[{"kind": "noise"}])
    assert same(made(data), noisy, "train", "validation")


def test_unseen_clients_are_a_number_a_share_or_names():
    assert len(made(unseen=0.5).unseen) == 3
    assert [c.name for c in made(unseen=["client-004", "client-001"]).unseen] == [
        "client-001", "client-004",
    ]  # fmt: skip
    picks = {
        tuple(c.name for c in made(seed=s, unseen=2, partition="iid").unseen) for s in range(9)
    }
    assert len(picks) > 1


def test_unseen_clients_rows_appear_in_no_seen_client_even_under_skew():
    data = dataset(x=torch.rand(800, 1, 6, 6))
    federation = made(data, unseen=2, skew=[{"kind": "rotation"}, {"kind": "noise"}])
    seen = set(np.concatenate([rows_of(c) for c in federation.clients]))
    assert not seen & set(np.concatenate([rows_of(c) for c in federation.unseen]))
    assert not seen & set(federation.central_test)


def test_thinning_keeps_small_classes_whole_and_makes_the_others_equal():
    sizes = [5, 100, 200, 300]
    data = dataset(605, 0, classes=4, y=torch.from_numpy(np.repeat(np.arange(4), sizes)))
    federation = made(data, "iid", 1, samples=95, test=0.0, validation=0.0)
    assert federation.class_counts().tolist() == [[5, 30, 30, 30]]


def test_thinning_leaves_the_published_test_split_alone():
    federation = made(samples=100)
    rows = np.concatenate([rows_of(client) for client in federation.clients])
    assert (rows < 600).sum() == 100
    assert len(federation.central_test) == 200


def test_the_published_test_split_can_be_thinned_and_nothing_else_moves():
    thin, whole = made(test_samples=40), made()
    tested = np.concatenate([client.test for client in thin.clients])
    assert sorted(tested) == sorted(thin.central_test)
    assert len(thin.central_test) == 40
    labels = dataset().y.numpy()[thin.central_test]
    assert np.ptp(np.bincount(labels)) <= 1
    assert same(thin, whole, "train", "validation")


def test_two_skews_of_one_kind_draw_apart():
    data = dataset(x=torch.zeros(800, 1, 6, 6))
    kind = {"kind": "noise", "clip": False, "level": 1.0}
    once, twice = made(data, skew=[kind]), made(data, skew=[kind, kind])
    rows = once.by_name["client-005"].train
    # Independent noise adds variances, the same noise twice would quadruple it.
    ratio = twice.x[twice.by_name["client-005"].train].var() / once.x[rows].var()
    assert 1.8 < ratio < 2.2


@pytest.mark.parametrize(
    ("settings_", "error", "message"),
    [
        ({"validation": 1.0}, ConfigError, "validation must be a share"),
        ({"test": -0.1}, ConfigError, r"test must be a share .* not -0\.1"),
        ({"test_from": "match"}, ConfigError, "did you mean 'matched'"),
        ({"samples": 0}, ConfigError, "samples must be at least 1"),
        ({"samples": 601}, ConfigError, "samples=601 is more than the 600"),
        ({"test_samples": 201}, ConfigError, "test_samples=201 is more than the 200 published"),
        ({"unseen": 6}, ConfigError, "unseen=6 would leave none of the 6 clients"),
        ({"unseen": 1.0}, ConfigError, r"unseen=1\.0 would leave none"),
        ({"unseen": -1}, ConfigError, "unseen must be a number of clients or a share, not -1"),
        ({"unseen": ["client-01"]}, ConfigError, "unknown unseen client .* did you mean"),
        ({"seed": -1}, ConfigError, "seed must be at least 0"),
        ({"partition": "owner"}, DataError, "records the owner"),
        ({"clients": 601}, DataError, "601 clients cannot share 600 samples"),
        ({"skew": [{"kind": "blur"}]}, ConfigError, "unknown skew 'blur'"),
        ({"knobs": {"alpha": 0.001}, "clients": 60}, DataError, "min_size=10"),
        (
            {"knobs": {"alpha": 0.001, "min_size": 0}, "clients": 60},
            DataError,
            r"left 'client-0\d\d' without samples",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(settings_, error, message):
    with pytest.raises(error, match=message):
        made(**settings_)


def test_matched_needs_a_published_test_split():
    with pytest.raises(ConfigError, match="toy has no published test split"):
        made(dataset(100, 0), test_from="matched")
    with pytest.raises(ConfigError, match="toy has no test rows for every owner"):
        made(owned([0, 1] * 9 + [2], test=1), "owner", None, test_from="matched")
