"""Environments inside clients: who made them, how they are dealt, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.environments import (
    ENVIRONMENTS,
    whole_where_small,
    with_environments,
    without_environment,
)
from fedskew.data.federation import Client, Federation, all_rows
from fedskew.errors import ConfigError, DataError

# Owners by row. ann trains on 3 rows of owner 5, 2 of owner 1, 2 of owner 4 and tests on owner 9.
OWNERS = [5, 5, 5, 1, 1, 4, 4, 9, 7, 7, 7]


def owned(**changes: Any) -> Federation:
    rows = np.arange(11)
    fields: dict[str, Any] = {
        "name": "toy",
        "x": torch.zeros(11, 2),
        "y": torch.zeros(11, dtype=torch.int64),
        "class_names": ("only",),
        "clients": (Client("ann", rows[:7], test=rows[7:8]), Client("bob", rows[8:])),
        "owner": torch.tensor(OWNERS),
    }
    return Federation(**{**fields, **changes})


def dataset(rows: int = 203, **fields: Any) -> Dataset:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {
        "name": "toy",
        "x": torch.from_numpy(rng.uniform(0.1, 1, (rows, 1, 3, 3))).float(),
        "y": torch.from_numpy(np.arange(rows) % 3),
        "class_names": ("a", "b", "c"),
        "owner": np.arange(rows) % 7,
    }
    return Dataset(**{**made, **fields})


def made(data: Dataset | None = None, **settings: Any) -> Federation:
    fixed = {"partition": "iid", "clients": 3, "seed": 4, "unseen": 1}
    return build(data or dataset(), **{**fixed, **settings})


def ids(federation: Federation, rows: Any) -> list[int]:
    assert federation.environment is not None
    found: list[int] = federation.environment[rows].tolist()
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_random_environments_are_of_equal_size_in_every_split(count: int) -> None:
    federation = made(environments={"kind": "random", "count": count})
    assert (federation.environments, federation.environments_by) == (count, "random")
    for client in federation.by_name.values():
        for split in ("train", "validation", "test"):
            sizes = np.bincount(ids(federation, client.split(split)), minlength=count)
            assert sizes.max() - sizes.min() <= 1


def test_random_environments_follow_the_seed_and_the_clients_name() -> None:
    one, again = made(), made()
    other = made(seed=5)
    assert one.environment is not None
    assert again.environment is not None
    assert other.environment is not None
    assert torch.equal(one.environment, again.environment)
    client = one.clients[0]
    shuffled = with_environments(
        one.with_data(clients=one.clients[::-1]), {"kind": "random"}, seed=4
    )
    assert ids(shuffled, slice(None)) == ids(one, slice(None))
    renamed = Client("somebody else", client.train, client.validation, client.test)
    moved = with_environments(
        one.with_data(clients=(renamed, *one.clients[1:])), {"kind": "random"}, seed=4
    )
    assert ids(moved, client.train) != ids(one, client.train)
    assert ids(moved, one.clients[1].train) == ids(one, one.clients[1].train)
    assert ids(other, slice(None)) != ids(one, slice(None))


def test_owners_are_numbered_by_training_rows_and_then_by_their_own_number() -> None:
    federation = with_environments(owned(), {"kind": "owner"}, seed=0)
    # ann: owner 5 has 3 rows, 1 and 4 two each; 9 has none to train on and joins the first.
    # bob holds one owner.
    assert ids(federation, slice(None)) == [0, 0, 0, 1, 1, 2, 2, 0, 0, 0, 0]
    assert (federation.environments, federation.environments_by) == (3, "owner")
    assert federation.environment_counts().tolist() == [[3, 2, 2], [3, 0, 0]]


def test_beyond_the_most_owners_join_in_turn() -> None:
    two = with_environments(owned(), {"kind": "owner", "most": 2}, seed=0)
    # Third in size, owner 4 joins the first again; owner 9, fourth, the second.
    assert ids(two, slice(None)) == [0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0]
    one = with_environments(owned(), {"kind": "owner", "most": 1}, seed=0)
    assert one.environments == 1


def test_left_alone_only_a_federation_without_environments_gets_random_ones() -> None:
    rotation = {"kind": "rotation", "environments": 4}
    assert made().environments_by == "random"
    assert made().environments == 2
    assert made(skew=[rotation]).environments_by == "rotation"
    assert made(skew=[rotation]).environments == 4
    assert made(skew=[rotation, {"kind": "colour"}]).environments_by == "colour"
    assert made(skew=[{"kind": "colour", "mode": "class"}]).environments_by == "random"
    from_data = made(dataset(environment=torch.arange(203) % 5))
    assert (from_data.environments, from_data.environments_by) == (5, "data")


@pytest.mark.parametrize(
    ("kind", "by", "count"), [("random", "random", 2), ("owner", "owner", 7), ("none", "", 1)]
)
def test_a_kind_that_is_named_replaces_what_skews_made(kind: str, by: str, count: int) -> None:
    federation = made(skew=[{"kind": "colour"}], environments={"kind": kind})
    assert (federation.environments, federation.environments_by) == (count, by)
    assert (federation.environment is None) == (kind == "none")


@pytest.mark.parametrize("kind", ["random", "owner", "none"])
def test_environments_change_neither_samples_nor_clients(kind: str) -> None:
    one, other = made(), made(environments={"kind": kind})
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    for name, client in one.by_name.items():
        for split in ("train", "validation", "test"):
            assert np.array_equal(client.split(split), other.by_name[name].split(split))


@pytest.mark.parametrize("skew", [[], [{"kind": "colour"}], [{"kind": "selection"}]])
def test_owners_go_with_their_rows_through_skews(skew: list[dict[str, Any]]) -> None:
    data = dataset()
    federation = made(data, skew=skew, test_from="holdout")
    plain = made(data, test_from="holdout")
    assert federation.owner is not None
    assert plain.owner is not None
    # A row's label and owner are both a function of its place in the data.
    for name, client in federation.by_name.items():
        assert set(federation.owner[all_rows(client)].tolist()) <= set(range(7))
        if skew != [{"kind": "selection"}]:
            before = plain.by_name[name]
            assert torch.equal(federation.owner[client.test], plain.owner[before.test])
            assert plain.owner[before.test].tolist() == (before.test % 7).tolist()


def test_owners_go_with_their_rows_where_clients_scale_features() -> None:
    data = dataset(x=torch.rand(203, 4))
    federation = made(data, features={"scale": "client"})
    plain = made(data)
    assert federation.owner is not None
    assert len(federation.y) > len(plain.y)
    for name, client in federation.by_name.items():
        rows = plain.by_name[name].test
        assert federation.owner[client.test].tolist() == (rows % 7).tolist()


def test_only_rows_that_clients_hold_count_as_environments() -> None:
    ids_ = torch.tensor([0] * 10 + [6])
    rows = np.arange(10)
    federation = owned(environment=ids_, clients=(Client("ann", rows),))
    assert federation.environments == 1
    assert owned(environment=ids_).environments == 7


def test_a_copy_forgets_what_its_changes_made_untrue() -> None:
    federation = with_environments(owned(), {"kind": "owner"}, seed=0)
    ids_ = torch.zeros(11, dtype=torch.int64)
    assert federation.with_data(x=federation.x + 1).environments_by == "owner"
    assert federation.with_data(environment=ids_).environments_by == "data"
    assert federation.with_data(environment=None).environments_by == ""
    assert federation.with_data(y=federation.y.clone()).owner is None
    assert federation.with_data(x=federation.x + 1).owner is federation.owner


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"kind": "rnadom"}, ConfigError, "unknown environments 'rnadom': did you mean 'random'"),
        ({"count": 2}, ConfigError, "environments need their kind, one of auto, none, owner, ran"),
        ({"kind": "random", "count": 0}, ConfigError, "count .* at least 1, not 0"),
        (
            {"kind": "random", "count": 2.5},
            ConfigError,
            r"count of environments 'random' must be a whole number of at least 1, not 2\.5\.",
        ),
        (
            {"kind": "random", "most": 2},
            ConfigError,
            r"unknown knob 'most' of environments 'random': choose from count\.",
        ),
        ({"kind": "owner", "most": 0}, ConfigError, "most .* at least 1, not 0"),
        (
            {"kind": "none", "count": 2},
            ConfigError,
            r"unknown knob 'count' of environments 'none', which has none: remove it\.",
        ),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        with_environments(owned(), settings, seed=0)


def test_owners_are_needed_where_they_are_asked_for() -> None:
    with pytest.raises(DataError, match="'owner' need samples with owners, which toy has not"):
        with_environments(owned(owner=None), {"kind": "owner"}, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owner": torch.zeros(3, dtype=torch.int64)}, "3 owner ids for 11 samples"),
        ({"owner": torch.zeros(11)}, "owner ids must be whole numbers"),
        ({"environment": torch.full((11,), -1)}, "environment ids must be whole numbers"),
    ],
)
def test_ids_that_are_none_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        owned(**changes)


def test_clients_too_small_for_a_batch_of_each_random_environment_stay_whole() -> None:
    """Ann trains on seven rows and bob on three: for batches of two, only bob is too small."""
    before = with_environments(owned(), {"kind": "random"}, 0)
    assert whole_where_small(before, 1) is before
    after = whole_where_small(before, 2)
    assert after.environments_by == "random"
    assert before.environment is not None
    assert after.environment is not None
    ann, bob = (all_rows(client) for client in before.clients)
    assert torch.equal(after.environment[ann], before.environment[ann])
    assert after.environment[bob].tolist() == [0, 0, 0]
    by_owner = with_environments(owned(), {"kind": "owner"}, 0)
    assert whole_where_small(by_owner, 50) is by_owner


def test_every_kind_says_what_it_does() -> None:
    assert list(ENVIRONMENTS) == ["auto", "random", "owner", "none"]
    assert all(choice.summary.endswith(".") for choice in ENVIRONMENTS.values())
    assert ENVIRONMENTS["random"].defaults == {"count": 2}
    assert ENVIRONMENTS["owner"].defaults == {"most": 8}


def coloured(**changes: Any) -> Federation:
    """ann has environments 0 1 2 in turn, bob 0 and 2 alone; zoe, unseen, has them all."""
    rows = np.arange(20)
    fields: dict[str, Any] = {
        "x": torch.zeros(20, 2),
        "y": torch.zeros(20, dtype=torch.int64),
        "clients": (
            Client("ann", rows[:6], rows[6:9], rows[9:12]),
            Client("bob", rows[12:15], rows[15:16], rows[16:17]),
        ),
        "unseen": (Client("zoe", rows[17:20]),),
        "environment": torch.tensor([0, 1, 2] * 4 + [0, 2, 2, 2, 0] + [0, 1, 2]),
        "environments_by": "colour",
        "owner": None,
    }
    return owned(**{**fields, **changes})


def test_nobody_trains_on_a_held_out_environment() -> None:
    before = coloured()
    after = without_environment(before, "last")
    ann, bob = after.clients
    assert (ann.train.tolist(), ann.validation.tolist()) == ([0, 1, 3, 4], [6, 7])
    assert ann.environment.tolist() == [2, 5, 8], "of training and validation"
    assert ann.test.tolist() == [9, 10], "its test row of it helps nobody"
    assert (bob.train.tolist(), bob.validation.tolist()) == ([12], [])
    assert (bob.environment.tolist(), bob.test.tolist()) == ([13, 14, 15], [16])
    assert after.unseen == before.unseen, "who trains nothing holds what it held"
    assert (after.environments, after.environments_by) == (2, "colour")


def test_environments_behind_the_held_out_one_move_up() -> None:
    after = without_environment(coloured(), 1)
    assert [client.train.tolist() for client in after.clients] == [[0, 2, 3, 5], [12, 13, 14]]
    assert after.environment_counts().tolist() == [[2, 2], [1, 2]]
    assert after.clients[1].environment.tolist() == [], "bob never had it"


@pytest.mark.parametrize(
    ("changes", "which", "sentence"),
    [
        ({"environment": None}, "last", "needs clients with two environments or more"),
        ({"environment": torch.zeros(20, dtype=torch.int64)}, 0, "two environments or more"),
        ({}, 3, r"must be 'last' or one of 0, 1, 2, which clients train on, not 3\."),
        (
            {"clients": (Client("ann", np.arange(6)), Client("bob", np.array([2, 5])))},
            "last",
            "'last' would leave client 'bob' nothing to train on",
        ),
    ],
)
def test_an_environment_that_cannot_be_held_out_is_refused(
    changes: dict[str, Any], which: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^federation\.held_out_environment.*{sentence}"):
        without_environment(coloured(**changes), which)
