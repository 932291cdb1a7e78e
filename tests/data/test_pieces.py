"""Owners cut into clients of about one size, by the order of their rows, never inside a segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_data import owned_dataset

from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import load
from fedskew.data.federation import Federation, all_rows
from fedskew.data.partition import partition
from fedskew.errors import ConfigError, DataError
from fedskew.types import Indices


def dataset(sizes: tuple[int, ...] = (95, 20, 53), test: int = 0, **fields: Any) -> Dataset:
    """Owners ann, bob and cy, whose rows take turns at random; the last rows are for testing."""
    return owned_dataset(sizes, test, owner_names=("ann", "bob", "cy"), **fields)


def cut(data: Dataset, clients: int | None = None, **others: Any) -> Federation:
    knobs = {"size": 10, **others.pop("knobs", {})}
    return build(data, partition="owner", clients=clients, seed=3, knobs=knobs, **others)


def test_each_owner_becomes_clients_of_about_the_size_in_the_order_of_its_rows() -> None:
    data = dataset()
    assert data.owner is not None
    federation = cut(data)
    # 95 / 10 rounds to 10 (half to even), 20 / 10 = 2, 53 / 10 to 5.
    names = [*(f"ann-{i:02d}" for i in range(10)), "bob-00", "bob-01"]
    assert [c.name for c in federation.clients] == [*names, *(f"cy-{i:02d}" for i in range(5))]
    for number, (name, count) in enumerate((("ann", 10), ("bob", 2), ("cy", 5))):
        held = [all_rows(federation.by_name[f"{name}-{i:02d}"]) for i in range(count)]
        assert np.concatenate(held).tolist() == np.flatnonzero(data.owner == number).tolist()
        assert {len(rows) for rows in held} <= {9, 10, 11}


def test_without_a_size_nothing_is_cut() -> None:
    federation = build(dataset(), partition="owner", clients=None, seed=3)
    assert [c.name for c in federation.clients] == ["ann", "bob", "cy"]


def in_parts(parts: list[Indices], segments: Indices) -> list[set[int]]:
    return [set(segments[part].tolist()) for part in parts]


@given(seed=st.integers(0, 2**32), size=st.integers(1, 40), shuffled=st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_segment_is_torn_between_clients(seed: int, size: int, shuffled: bool) -> None:
    rng = np.random.default_rng(seed)
    segments = np.repeat(rng.permutation(50), rng.integers(1, 9, 50))
    owners = segments % 3
    parts = partition(
        "owner", np.zeros(len(segments), int), clients=None, rng=rng, owners=owners,
        segments=segments, knobs={"size": size, "shuffled": shuffled},
    )  # fmt: skip
    held = in_parts(parts, segments)
    assert sum(map(len, held)) == 50
    assert all(held)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(segments)))
    assert all(len(np.unique(owners[part])) == 1 for part in parts)
    for owner in range(3):
        mine = [part for part in parts if owners[part[0]] == owner]
        total = int((owners == owner).sum())
        count = max(1, round(total / size))
        assert len(mine) <= count
        # Both ends of a piece may be off by half a segment of at most eight rows.
        assert all(abs(len(part) - total / count) <= 8 for part in mine) or len(mine) < count
        if not shuffled:
            assert np.concatenate(mine).tolist() == np.flatnonzero(owners == owner).tolist()


def test_segments_hold_together_through_a_whole_federation_unless_told_not_to() -> None:
    segment = np.repeat(np.arange(24), 7)
    data = dataset(owner=np.repeat(np.arange(3), 56), segment=segment)
    held = in_parts([all_rows(c) for c in cut(data).clients], segment)
    assert sum(map(len, held)) == 24
    torn = in_parts([all_rows(c) for c in cut(data, by_segment=False).clients], segment)
    assert sum(map(len, torn)) > 24


def test_shuffled_pieces_mix_what_is_stored_by_label() -> None:
    y = torch.from_numpy(np.sort(np.arange(168) % 2))
    data = dataset((168,), y=y)
    in_order = cut(data).class_counts()
    mixed = cut(data, knobs={"shuffled": True}).class_counts()
    assert (in_order > 0).all(axis=1).sum() <= 1
    assert (mixed > 0).all(axis=1).sum() >= len(mixed) - 1
    assert mixed.sum() == in_order.sum()


def test_fewer_clients_are_a_choice_of_pieces_and_small_owners_stay_out() -> None:
    federation = cut(dataset(), 6, knobs={"min_samples": 50})
    assert len(federation.clients) == 6
    assert {c.name[:-3] for c in federation.clients} <= {"ann", "cy"}
    with pytest.raises(DataError, match="16 clients cannot be made from 15 pieces of owners with"):
        cut(dataset(), 16, knobs={"min_samples": 50})


def test_the_published_test_rows_of_an_owner_are_shared_by_its_clients() -> None:
    data = dataset(test=60)
    assert data.owner is not None
    federation = cut(data, test_from="matched", knobs={"size": 30})
    tested = np.concatenate([c.test for c in federation.clients])
    assert sorted(tested.tolist()) == data.official_test.tolist()
    for client in federation.clients:
        (owner,) = np.unique(data.owner[all_rows(client)])
        assert client.name.startswith(data.owner_names[owner])
        assert not set(client.train) & set(data.official_test)
    sizes = [len(c.test) for c in federation.clients if c.name.startswith("ann")]
    assert len(sizes) > 1
    assert max(sizes) - min(sizes) <= 1


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"size of partition 'owner' must be a whole number of at least 0, not -1\.",
    ):
        cut(dataset(), knobs={"size": -1})
    with pytest.raises(
        ConfigError,
        match="size of partition 'owner' must be a whole number of at least 0, not 'ten'",
    ):
        cut(dataset(), knobs={"size": "ten"})


@pytest.mark.real_data
def test_ten_x_ray_sources_make_about_a_hundred_clients(data_dir: Path) -> None:
    xray = load("chest-xray", data_dir, normal_or_not=True)
    federation = build(xray, partition="owner", clients=None, seed=0, knobs={"size": 100})
    # Sources of 54, 2431, 400, 258, 55, 768, 2338, 183, 3000 and 119 images.
    assert len(federation.clients) == 1 + 24 + 4 + 3 + 1 + 8 + 23 + 2 + 30 + 1
    sizes = np.array([len(all_rows(c)) for c in federation.clients])
    assert (sizes.sum(), sizes.min(), sizes.max()) == (9606, 54, 119)
    assert federation.by_name["rsna-29"].name == federation.clients[-2].name


@pytest.mark.real_data
def test_har_subjects_in_pieces_keep_their_windows_together(data_dir: Path) -> None:
    har = load("har", data_dir)
    assert har.segment is not None
    federation = build(har, partition="owner", clients=None, seed=0, knobs={"size": 100})
    held = in_parts([all_rows(c) for c in federation.clients], har.segment)
    assert sum(map(len, held)) == len(np.unique(har.segment))
    assert 95 <= len(federation.clients) <= 110
