"""Clients agree on features by sums alone, and each scales what it holds by its own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import MinMaxScaler
from torch import Tensor
from toy_data import HAR_UNSEEN

from fedskew import make_config, make_federation
from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.features import Features, choose, client_sums, with_features
from fedskew.data.federation import Client, Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.errors import ConfigError, DataError

ROWS = np.arange(12)


def toy(x: Tensor | None = None, **changes: Any) -> Federation:
    """Ann and bob of four training rows each, eve unseen; row 10 is central, row 11 nobody's."""
    drawn = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    fields: dict[str, Any] = {
        "name": "toy",
        "x": torch.from_numpy(drawn) if x is None else x,
        "y": torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]),
        "class_names": ("a", "b", "c"),
        "clients": (Client("ann", ROWS[:3], ROWS[3:4]), Client("bob", ROWS[4:7], test=ROWS[7:8])),
        "unseen": (Client("eve", ROWS[8:9], test=ROWS[9:10]),),
        "central_test": ROWS[10:11],
    }
    return Federation(**{**fields, **changes})


def by_hand(x: NDArray[Any], y: NDArray[Any], top: int) -> list[int]:
    """The features of pooled rows whose class means vary most."""
    means = np.stack([x[y == label].astype(np.float64).mean(axis=0) for label in np.unique(y)])
    ranked = sorted(range(x.shape[1]), key=lambda i: (-means[:, i].var(), i))
    return sorted(ranked[:top])


@pytest.mark.parametrize("top", [1, 2, 4, 5])
def test_the_sums_of_clients_choose_what_their_pooled_rows_would(top: int) -> None:
    before = toy()
    after = with_features(before, Features(top=top))
    rows = before.pooled().train
    assert list(after.features) == by_hand(before.x[rows].numpy(), before.y[rows].numpy(), top)
    assert torch.equal(after.x, before.x[:, list(after.features)])
    assert after.clients is before.clients


def test_a_client_sends_a_sum_and_a_size_for_each_class() -> None:
    sent = client_sums(
        torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]), torch.tensor([2, 0, 2]), 3
    )
    assert sent.sums.tolist() == [[2.0, 20.0], [0.0, 0.0], [5.0, 50.0]]
    assert sent.counts.tolist() == [1, 0, 2]


def test_only_training_rows_of_seen_clients_decide_what_is_kept() -> None:
    x = toy().x.clone()
    seen_train = toy().pooled().train
    others = np.setdiff1d(ROWS, seen_train)
    x[others] = 100 * torch.randn(len(others), 5, generator=torch.Generator().manual_seed(1))
    kept = with_features(toy(), Features(top=2)).features
    assert with_features(toy(x), Features(top=2)).features == kept
    x[seen_train[0]] += torch.tensor([0.0, 0.0, 50.0, 0.0, 90.0])
    assert with_features(toy(x), Features(top=2)).features == (2, 4)


def test_a_class_nobody_holds_has_no_mean() -> None:
    # Means are 0 and 1 of the first feature, 5 and 5.5 of the second: taken for a mean of 0, the
    # third class would make the second feature vary most.
    sent = client_sums(torch.tensor([[0.0, 5.0], [1.0, 5.5]]), torch.tensor([0, 1]), 3)
    assert choose([sent], 1).tolist() == [0]


def test_large_clients_weigh_more_than_small_ones() -> None:
    # Class 0 has mean 0 at the large client and 8 at the small one: 2 pooled, 4 if clients were
    # averaged. Class 1 lies at 2 in the first feature, so that pooling makes the two classes equal.
    large = client_sums(torch.tensor([[0.0, 0.0]] * 3), torch.zeros(3, dtype=torch.int64), 2)
    small = client_sums(torch.tensor([[8.0, 0.0], [2.0, 1.0]]), torch.tensor([0, 1]), 2)
    assert choose([large, small], 1).tolist() == [1]


def test_of_equal_features_the_first_are_kept_in_their_own_order() -> None:
    column = torch.tensor([0.0, 1.0])
    x = torch.stack([column, 3 * column, column, -3 * column, 3 * column], dim=1)
    sent = [client_sums(x, torch.tensor([0, 1]), 2)]
    assert choose(sent, 2).tolist() == [1, 3]
    assert choose(sent, 4).tolist() == [0, 1, 3, 4]


def test_the_order_of_clients_changes_nothing() -> None:
    one = with_features(toy(), Features(3, "feature"))
    other = with_features(toy(clients=toy().clients[::-1]), Features(3, "feature"))
    assert one.features == other.features
    assert torch.equal(one.x, other.x)


SCALED = torch.tensor([
    [0.0, 10.0], [4.0, 2.0], [2.0, 6.0], [8.0, 0.0],  # ann: three to train, one to validate
    [1.0, 1.0], [5.0, 1.0], [3.0, 1.0], [7.0, 4.0],  # bob: three to train, one to test
    [6.0, 6.0], [9.0, 6.0], [2.0, 8.0], [10.0, 1.0],  # eve: one and one; central; nobody's
])  # fmt: skip


def test_a_client_scales_all_its_rows_by_the_range_of_its_training_matrix() -> None:
    x = with_features(toy(SCALED), Features(scale="client")).x
    # Ann trains on 0..10 and bob on 1..5; eve knows nothing but 6, which becomes 0.
    assert torch.allclose(x[:4], SCALED[:4] / 10)
    assert torch.allclose(x[4:8], (SCALED[4:8] - 1) / 4)
    assert x[8:10].tolist() == [[0.0, 0.0], [3.0, 0.0]]
    # The seen clients together train on 0..10.
    assert torch.allclose(x[10:], SCALED[10:] / 10)


def test_a_client_scales_each_feature_by_its_range_among_its_training_rows() -> None:
    x = with_features(toy(SCALED), Features(scale="feature")).x
    wanted = [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [2.0, -0.25]]
    # Bob's second feature is always 1: it becomes 0, and 4 is three units more.
    wanted += [[0.0, 0.0], [1.0, 0.0], [0.5, 0.0], [1.5, 3.0], [0.0, 0.0], [3.0, 0.0]]
    # Together the seen clients train on 0..5 and 1..10.
    wanted += [[0.4, 7 / 9], [2.0, 0.0]]
    assert torch.allclose(x, torch.tensor(wanted))


@pytest.mark.parametrize("scale", ["client", "feature"])
def test_rounding_noise_around_a_constant_is_not_blown_up(scale: str) -> None:
    x = torch.full((12, 2), 1000.0)
    x[1] += 1e-4
    assert with_features(toy(x), Features(scale=scale)).x.abs().max() < 1e-3


def test_an_unseen_client_without_training_rows_scales_as_the_seen_ones_together() -> None:
    unseen = (Client("eve", ROWS[:0], test=ROWS[8:10]),)
    after = with_features(toy(SCALED, unseen=unseen), Features(scale="client"))
    assert torch.allclose(after.x[8:10], SCALED[8:10] / 10)


def test_a_row_of_two_clients_is_scaled_for_each() -> None:
    clients = (Client("ann", ROWS[:3]), Client("bob", ROWS[4:7], test=ROWS[[0, 7]]))
    after = with_features(toy(SCALED, clients=clients), Features(scale="client"))
    ann, bob = after.clients
    assert after.x[ann.train[0]].tolist() == [0.0, 1.0]
    assert after.x[bob.test].tolist() == [[-0.25, 2.25], [1.5, 0.75]]
    assert after.y[bob.test].tolist() == [0, 1]
    assert len(after.y) == 13


@pytest.mark.parametrize("collected", [False, True])
def test_a_central_row_of_a_client_is_scaled_by_the_client_only_if_collected_from_it(
    collected: bool,
) -> None:
    before = toy(SCALED, central_test=ROWS[[7, 10]])
    after = with_features(before, Features(scale="client"), before.clients if collected else ())
    assert after.x[after.by_name["bob"].test].tolist() == [[1.5, 0.75]]
    # By bob's range of 1..5 or by that of all seen clients, 0..10.
    wanted = [[1.5, 0.75] if collected else [0.7, 0.4], [0.2, 0.8]]
    assert torch.allclose(after.x[after.central_test], torch.tensor(wanted))
    assert after.y[after.central_test].tolist() == before.y[before.central_test].tolist()


def owned(official: bool) -> Dataset:
    """Four owners whose rows lie ever further from 0."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(4), 30)
    x = rng.uniform(0.0, 0.2, (120, 3)) + 0.2 * owner[:, None]
    return Dataset(
        "own", torch.from_numpy(x).float(), torch.from_numpy(np.arange(120) % 3),
        ("a", "b", "c"), np.flatnonzero(np.arange(120) % 30 > 20) if official else ROWS[:0], owner,
        tuple("wxyz"),
    )  # fmt: skip


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("skew", [[], [{"kind": "noise", "level": 0.1}]])
def test_a_central_test_collected_from_clients_is_scaled_as_they_do_under_any_skew(
    official: bool, skew: list[dict[str, Any]]
) -> None:
    data = owned(official)
    plain, scaled = (
        build(
            data, partition="owner", clients=None, seed=0, unseen=["y"], skew=skew,
            features=features,
        )
        for features in (None, {"scale": "client"})
    )  # fmt: skip
    ranges = {name: plain.x[client.train].aminmax() for name, client in plain.by_name.items()}
    for name, (low, high) in ranges.items():
        for split in ("train", "validation", "test"):
            before = plain.x[plain.by_name[name].split(split)]
            after = scaled.x[scaled.by_name[name].split(split)]
            assert torch.allclose(after, (before - low) / (high - low), atol=1e-5)
    seen = [ranges[name] for name in "wxz"]
    low, high = min(r.min for r in seen), max(r.max for r in seen)
    assert data.owner is not None
    for old, new in zip(plain.central_test, scaled.central_test, strict=True):
        owner = "wxyz"[data.owner[old]]
        if not official:
            low, high = ranges[owner]
        wanted = (plain.x[old] - low) / (high - low)
        assert torch.allclose(scaled.x[new], wanted, atol=1e-5)


def test_no_setting_leaves_the_samples_as_they_are() -> None:
    before = toy()
    assert with_features(before, Features.of({})) is before
    assert with_features(before, Features.of(None)) is before


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"tpo": 3}, ConfigError, "unknown setting of features 'tpo': did you mean 'top'"),
        ({"top": 0}, ConfigError, "top of features must be at least 1, not 0"),
        ({"top": True}, ConfigError, "top of features must be a whole number, not True"),
        ({"top": 2.5}, ConfigError, r"top of features must be a whole number, not 2\.5"),
        ({"top": 6}, ConfigError, "top of features is 6, but toy has only 5 features"),
        ({"scale": "clients"}, ConfigError, "unknown scale of features .* did you mean 'client'"),
        ({"scale": ["client"]}, ConfigError, "unknown scale of features"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        with_features(toy(), Features.of(settings))


def test_images_have_no_features_to_choose_from() -> None:
    with pytest.raises(DataError, match=r"lists of features, but .* shape \(1, 2, 2\): leave it"):
        with_features(toy(torch.zeros(12, 1, 2, 2)), Features(top=1))


def har(data_dir: Path, **settings: Any) -> Federation:
    """21 subjects who train and 9 unseen ones, as the published split of HAR has them."""
    fixed = {
        "dataset": "har", "normalise": "unit", "partition": "owner", "clients": "all",
        "unseen": HAR_UNSEEN, "test": 0.4, "validation": 0.1,
    }  # fmt: skip
    return make_federation(make_config({"federation": {**fixed, **settings}}), data_dir)


@pytest.mark.real_data
def test_the_features_of_har_are_those_of_its_pooled_training_rows(data_dir: Path) -> None:
    plain, after = har(data_dir), har(data_dir, features={"top": 144})
    rows = plain.pooled().train
    assert list(after.features) == by_hand(plain.x[rows].numpy(), plain.y[rows].numpy(), 144)
    assert after.sample_shape == (144,)
    assert torch.equal(after.x, plain.x[:, list(after.features)])
    # Another split means other sums: who trains on what decides.
    other = har(data_dir, features={"top": 144}, unseen=["subject_01"])
    assert other.features != after.features


@pytest.mark.real_data
@pytest.mark.parametrize("scale", ["client", "feature"])
def test_every_subject_of_har_scales_as_scikit_learn_would(data_dir: Path, scale: str) -> None:
    plain = har(data_dir, features={"top": 144})
    after = har(data_dir, features={"top": 144, "scale": scale})
    assert len(after.by_name) == 30
    # One column for all features, or one for each.
    shape = (-1, 144) if scale == "feature" else (-1, 1)
    for name, client in plain.by_name.items():
        scaler = MinMaxScaler().fit(plain.x[client.train].numpy().reshape(shape))
        for split in ("train", "validation", "test"):
            rows = plain.x[client.split(split)].numpy()
            wanted = scaler.transform(rows.reshape(shape)).reshape(rows.shape)
            found = after.x[after.by_name[name].split(split)].numpy()
            np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=1e-4)
    tested = np.concatenate([after.x[client.test].numpy() for client in after.clients])
    central = after.x[after.central_test].numpy()
    assert sorted(map(bytes, central)) == sorted(map(bytes, tested))


@pytest.mark.real_data
def test_the_same_settings_give_the_same_samples_and_others_others(data_dir: Path) -> None:
    prints = [
        fingerprint(har(data_dir, features=features))
        for features in (
            {"top": 144, "scale": "client"},
            {"top": 144, "scale": "client"},
            {"top": 144, "scale": "feature"},
            {"top": 143, "scale": "client"},
            None,
        )
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4
