"""Public samples: they belong to nobody, stay clean, and asking for none changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_data import toy_dataset

from fedskew.config import make_config
from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.federation import Client, Federation
from fedskew.data.fingerprint import fingerprint, sampled_fingerprint
from fedskew.errors import ConfigError, DataError
from fedskew.runs.experiment import make_federation

SPLITS = ("train", "validation", "test")
properties = settings(max_examples=30, deadline=None)


def dataset(rows: int = 90, test: int = 30, **fields: Any) -> Dataset:
    """Four classes in turn and five owners of four rows in turn."""
    row = np.arange(rows + test)
    return toy_dataset(row % 4, test, **{"owner": row // 4 % 5, **fields})


def made(data: Dataset | None = None, partition: str = "iid", **others: Any) -> Federation:
    clients = None if partition == "owner" else 5
    return build(data or dataset(), partition=partition, clients=clients, **{"seed": 3, **others})


def held(federation: Federation) -> set[int]:
    """The rows of all clients, seen and unseen."""
    return {int(row) for c in federation.by_name.values() for s in SPLITS for row in c.split(s)}


# Taken from the code as it was before there were public samples.
@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, "41b3194b553f9dd7"),
        ({"partition": "iid", "clients": 4, "samples": 500, "unseen": 1}, "f9ec58c2ced3e79c"),
        (
            {"partition": "shards", "test": 0.3, "validation": 0.2, "seed": 7},
            "138076f93507b8cd",
        ),
        ({"partition": "quantity", "skew": ["colour"]}, "c07fe4d6a92d5d5e"),
    ],
)
def test_without_public_samples_digits_are_split_as_ever(
    section: Mapping[str, Any], expected: str
) -> None:
    config = make_config({"federation": {"normalise": "unit", **section}})
    assert sampled_fingerprint(make_federation(config)) == expected


@pytest.mark.parametrize(
    ("test", "others", "expected"),
    [
        (0, {}, "002e122dacbabc04"),
        (0, {"samples": 60}, "1f2d0d3eefd163b1"),
        (30, {}, "5fc9a387d257ad45"),
        (30, {"samples": 60}, "f92271763e646e03"),
    ],
)
def test_without_public_samples_owners_are_split_as_ever(
    test: int, others: Mapping[str, Any], expected: str
) -> None:
    assert sampled_fingerprint(made(dataset(120 - test, test), "owner", **others)) == expected


@given(
    seed=st.integers(0, 2**32),
    partition=st.sampled_from(["iid", "dirichlet", "quantity", "owner"]),
    test_from=st.sampled_from(["matched", "holdout"]),
    public=st.integers(0, 200),
    unseen=st.integers(0, 3),
)
@properties
def test_public_rows_belong_to_nobody_and_every_other_training_row_to_somebody(
    seed: int, partition: str, test_from: str, public: int, unseen: int
) -> None:
    federation = made(
        dataset(600, 200), partition, seed=seed, test_from=test_from, public=public, unseen=unseen
    )
    shared = set(federation.public.tolist())
    assert len(shared) == len(federation.public) == public
    assert not shared & held(federation)
    assert not shared & set(federation.central_test.tolist())
    pool = 800 if partition == "owner" and test_from == "holdout" else 600
    assert held(federation) | shared >= set(range(pool))


def test_public_rows_are_spread_evenly_over_the_classes() -> None:
    sizes = [5, 100, 200, 300]
    data = dataset(605, 0, y=torch.from_numpy(np.repeat(np.arange(4), sizes)), owner=None)
    federation = made(data, public=29)
    counts = np.bincount(data.y.numpy()[federation.public], minlength=4)
    # 5 of the smallest class are all it has; 24 are left for the other three.
    assert counts.tolist() == [5, 8, 8, 8]


def test_samples_are_counted_after_the_public_ones_have_left() -> None:
    federation = made(dataset(90, 0), public=30, samples=60)
    assert len(federation.public) == 30
    assert len(held(federation)) == 60
    with pytest.raises(ConfigError, match=r"samples=61 .* the 60 .* of toy beside 30 public ones"):
        made(dataset(90, 0), public=30, samples=61)


def test_the_choice_follows_the_seed_alone() -> None:
    chosen = made(public=20).public.tolist()
    assert chosen == made(public=20, partition="owner", samples=40, unseen=1).public.tolist()
    assert chosen != made(public=20, seed=4).public.tolist()
    assert set(chosen) > set(made(public=12).public.tolist())


def test_an_owner_whose_rows_are_all_public_is_no_client() -> None:
    # Owner 4 has one row, the only one of class 3, which an equal share takes whole.
    y, owner = torch.tensor([0, 1, 2] * 8 + [3]), np.array([0, 1, 2, 3] * 6 + [4])
    federation = made(dataset(25, 0, y=y, owner=owner), "owner", public=4)
    assert 24 in federation.public
    assert sorted(federation.by_name) == ["owner-0", "owner-1", "owner-2", "owner-3"]


@pytest.mark.parametrize("kind", ["rotation", "noise", "colour"])
def test_skews_leave_public_samples_as_they_are(kind: str) -> None:
    images = torch.rand(120, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    data = dataset(x=images)
    plain = made(data, public=20)
    skewed = made(data, public=20, skew=[{"kind": kind}])
    rows = plain.public
    assert skewed.public.tolist() == rows.tolist()
    # Under colour all samples get three channels, which for public ones are alike.
    assert torch.equal(skewed.x[rows], images[rows].expand(-1, skewed.x.shape[1], -1, -1))
    client = skewed.by_name["client-004"]
    assert not torch.equal(skewed.x[client.train, :1], images[client.train])


def test_the_fingerprint_tells_public_rows() -> None:
    federation = made(public=20)
    none = replace(federation, public=federation.public[:0])
    fewer = replace(federation, public=federation.public[1:])
    assert len({fingerprint(f) for f in (federation, none, fewer)}) == 3


def test_a_config_asks_for_public_samples() -> None:
    config = make_config({"federation": {"public": 25, "clients": 4}})
    assert len(make_federation(config).public) == 25
    assert len(make_federation(make_config({})).public) == 0


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (90, "public=90 would leave no training samples: toy has 90, ask for fewer"),
        (91, "public=91 would leave no training samples"),
        (-1, "public must be at least 0, not -1"),
    ],
)
def test_more_than_can_be_given_away_is_refused(public: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(public=public)


def test_a_negative_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"federation\.public: .* greater than or equal to 0"):
        make_config({"federation": {"public": -1}})


def test_a_federation_refuses_public_rows_that_do_not_exist_or_belong_to_a_client() -> None:
    rows = np.arange(6)
    fields: dict[str, Any] = {
        "name": "toy",
        "x": torch.zeros(6, 2),
        "y": torch.zeros(6, dtype=torch.int64),
        "class_names": ("a",),
    }
    ann, eve = Client("ann", rows[:2]), Client("eve", rows[2:3], test=rows[3:4])
    with pytest.raises(DataError, match=r"the public set holds row 8, but toy has rows 0\.\.5"):
        Federation(**fields, clients=(ann,), public=rows + 3)
    with pytest.raises(DataError, match="client 'eve' holds row 3, which is public"):
        Federation(**fields, clients=(ann,), unseen=(eve,), public=rows[3:])
