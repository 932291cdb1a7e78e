"""Clients that hold several owners each: whose rows they get, and who is tested on what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_data import owned_dataset

from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import load
from fedskew.data.federation import Federation, all_rows
from fedskew.data.partition import PARTITIONS, partition
from fedskew.errors import ConfigError, DataError

SIZES = (12, 30, 8, 20, 25, 15, 10)


def dataset(test: int = 0, **fields: Any) -> Dataset:
    """Seven owners whose rows take turns at random; the last rows are for testing."""
    return owned_dataset(SIZES, test, **fields)


def grouped(data: Dataset, clients: int | None = None, seed: int = 3, **others: Any) -> Federation:
    return build(data, partition="owner-groups", clients=clients, seed=seed, **others)


def owners_of(federation: Federation, rows: Any) -> set[int]:
    assert federation.owner is not None
    return set(federation.owner[rows].tolist())


def test_every_owner_goes_whole_to_one_client_if_their_number_is_open() -> None:
    data = dataset()
    federation = grouped(data)
    # Seven owners make two clients of three; one of them has the seventh.
    assert [client.name for client in federation.clients] == ["group-000", "group-001"]
    held = [owners_of(federation, all_rows(client)) for client in federation.clients]
    assert sorted(len(owners) for owners in held) == [3, 4]
    assert held[0].isdisjoint(held[1])
    for client, owners in zip(federation.clients, held, strict=True):
        assert len(all_rows(client)) == sum(SIZES[i] for i in owners)


@pytest.mark.parametrize(("clients", "each"), [(1, 3), (2, 3), (3, 2), (7, 1), (1, 7)])
def test_a_number_of_clients_is_a_choice_of_owners_so_many_each(clients: int, each: int) -> None:
    federation = grouped(dataset(), clients, knobs={"owners_per_client": each})
    held = [owners_of(federation, all_rows(client)) for client in federation.clients]
    assert [len(owners) for owners in held] == [each] * clients
    assert len(set.union(*held)) == each * clients


def test_the_seed_decides_who_is_together() -> None:
    made = [grouped(dataset(), seed=seed) for seed in (0, 0, 1)]
    held = [[owners_of(f, all_rows(c)) for c in f.clients] for f in made]
    assert held[0] == held[1]
    assert held[0] != held[2]


def test_owners_with_few_samples_are_left_out() -> None:
    knobs = {"owners_per_client": 2, "min_samples": 12}
    federation = grouped(dataset(), knobs=knobs)
    held = [owners_of(federation, all_rows(client)) for client in federation.clients]
    # 30, 20, 25, 15 and 12 rows are enough; 8 and 10 are not.
    assert set.union(*held) == {0, 1, 3, 4, 5}


def test_each_client_is_tested_on_the_published_rows_of_its_own_owners() -> None:
    data = dataset(test=60)
    assert data.owner is not None
    federation = grouped(data, validation=0.0)
    assert np.array_equal(federation.central_test, data.official_test)
    for client in federation.clients:
        owners = list(owners_of(federation, client.train))
        wanted = data.official_test[np.isin(data.owner[data.official_test], owners)]
        assert client.test.tolist() == wanted.tolist()


def test_owners_that_are_published_for_training_or_testing_only_are_split_anew() -> None:
    owner = np.repeat(np.arange(4), 20)
    data = dataset(
        x=torch.zeros(80, 1), y=torch.arange(80) % 2, owner=owner, official_test=np.arange(60, 80)
    )
    federation = grouped(data, knobs={"owners_per_client": 2}, test=0.25)
    held = [owners_of(federation, all_rows(client)) for client in federation.clients]
    assert set.union(*held) == {0, 1, 2, 3}
    assert [len(client.test) for client in federation.clients] == [10, 10]
    tests = np.sort(np.concatenate([client.test for client in federation.clients]))
    assert np.array_equal(federation.central_test, tests)
    with pytest.raises(ConfigError, match=r"test_from='matched' .* no test rows for every owner"):
        grouped(data, test_from="matched")


def test_owners_inside_a_client_can_be_its_environments() -> None:
    federation = grouped(dataset(), 2, environments={"kind": "owner"})
    assert (federation.environments, federation.environments_by) == (3, "owner")
    counts = federation.environment_counts()
    assert (np.diff(counts, axis=1) <= 0).all()
    assert (counts > 0).all()


@pytest.mark.parametrize(
    ("clients", "knobs", "error", "message"),
    [
        (3, {}, DataError, "3 clients of owners_per_client=3 cannot be made from 7 owners"),
        (None, {"owners_per_client": 8}, DataError, "^clients of owners_per_client=8 cannot"),
        (None, {"min_samples": 99}, DataError, "from 0 owners with at least min_samples=99"),
        (
            2,
            {"owners_per_client": 0},
            ConfigError,
            r"owners_per_client of partition 'owner-groups' must be a whole number "
            r"of at least 1, not 0\.",
        ),
    ],
)
def test_too_few_owners_are_refused(
    clients: int | None, knobs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        grouped(dataset(), clients, knobs=knobs)


def test_rows_without_owners_cannot_be_grouped() -> None:
    with pytest.raises(DataError, match="'owner-groups' needs a dataset that records the owner"):
        partition("owner-groups", np.arange(9), clients=2, rng=np.random.default_rng(0))
    assert PARTITIONS["owner-groups"].defaults == {"owners_per_client": 3, "min_samples": 0}


@pytest.mark.real_data
def test_phone_users_go_in_threes(data_dir: Path) -> None:
    federation = grouped(load("har", data_dir), environments={"kind": "owner"}, unseen=2)
    assert len(federation.clients) == 8
    assert (federation.environment_counts() > 0).all()
    assert federation.environments == 3
    assert federation.owner is not None
    assert len(np.unique(federation.owner)) == 30


@pytest.mark.real_data
def test_writers_go_in_fives(data_dir: Path) -> None:
    data = load("femnist", data_dir, digits_only=True)
    knobs = {"owners_per_client": 5, "min_samples": 20}
    federation = grouped(data, 6, knobs=knobs, environments={"kind": "owner"})
    assert federation.environments == 5
    for client in federation.clients:
        assert len(owners_of(federation, client.train)) == 5
        assert owners_of(federation, client.test) <= owners_of(federation, client.train)
