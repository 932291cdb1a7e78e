"""Windows that overlap stay on one side of a split, unless somebody asks for the opposite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from toy_data import HAR_UNSEEN

from fedskew import make_config, make_federation
from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.types import Indices


def recorded(segments: bool = True) -> Dataset:
    """Two owners, three classes, five segments of eight rows of each class for each owner."""
    segment = np.repeat(np.arange(30), 8)
    return Dataset(
        "toy", torch.zeros(240, 1), torch.from_numpy(segment % 3), ("a", "b", "c"),
        owner=segment // 15, owner_names=("ann", "bob"), segment=segment if segments else None,
    )  # fmt: skip


def made(data: Dataset, by_segment: bool, seed: int = 0) -> Federation:
    return build(
        data, partition="owner", clients=None, seed=seed, test=0.4, validation=0.2,
        by_segment=by_segment,
    )  # fmt: skip


def torn(client: Client, segment: Indices) -> set[int]:
    """Segments with rows in more than one split of a client."""
    splits = [set(segment[client.split(name)].tolist()) for name in ("train", "validation", "test")]
    return {s for s in set().union(*splits) if sum(s in split for split in splits) > 1}


@pytest.mark.parametrize("seed", range(5))
def test_segments_are_torn_only_where_rows_are_split_at_random(seed: int) -> None:
    data = recorded()
    assert data.segment is not None
    for client in made(data, True, seed).clients:
        assert torn(client, data.segment) == set()
    for client in made(data, False, seed).clients:
        # Eight rows all on one side of .4 have a chance of .02: most of the 15 segments are torn.
        assert len(torn(client, data.segment)) >= 10


def test_a_random_split_is_stratified_by_class() -> None:
    federation = made(recorded(), False)
    # 40 rows a class: 16 to test, then a fifth of the other 24, 4.8, to validate.
    assert federation.class_counts("test").tolist() == [[16] * 3] * 2
    validation = federation.class_counts("validation")
    assert set(validation.flatten().tolist()) <= {4, 5}
    assert set(validation.sum(axis=1).tolist()) <= {14, 15}


def test_a_random_split_is_that_of_data_without_segments() -> None:
    known, unknown = made(recorded(), False), made(recorded(segments=False), False)
    assert fingerprint(known) == fingerprint(unknown)
    assert fingerprint(unknown) == fingerprint(made(recorded(segments=False), True))
    assert fingerprint(known) != fingerprint(made(recorded(), True))
    assert fingerprint(known) == fingerprint(made(recorded(), False))


@pytest.mark.real_data
@pytest.mark.parametrize("by_segment", [True, False])
def test_har_has_the_21_and_9_subjects_of_the_thesis_under_either_split(
    data_dir: Path, by_segment: bool
) -> None:
    settings = {
        "dataset": "har", "normalise": "unit", "partition": "owner", "clients": "all",
        "unseen": HAR_UNSEEN, "test": 0.4, "validation": 0.1, "by_segment": by_segment,
    }  # fmt: skip
    federation = make_federation(make_config({"federation": settings}), data_dir)
    assert [client.name for client in federation.unseen] == HAR_UNSEEN
    seen = (1, 3, 5, 6, 7, 8, 11, 14, 15, 16, 17, 19, 21, 22, 23, 25, 26, 27, 28, 29, 30)
    assert [client.name for client in federation.clients] == [f"subject_{n:02d}" for n in seen]
    stored = load("har", data_dir, normalise="unit")
    assert stored.segment is not None
    for client in federation.by_name.values():
        assert len(np.unique(stored.y[client.train])) == 6
        assert len(np.unique(stored.y[client.test])) == 6
        whole = len(client.train) + len(client.validation) + len(client.test)
        # Of segments of up to 29 windows, the last taken may stick out by half its length.
        slack = 14.5 if by_segment else 1
        assert abs(len(client.test) - 0.4 * whole) <= slack
        assert abs(len(client.validation) - 0.1 * (whole - len(client.test))) <= slack
        assert bool(torn(client, stored.segment)) != by_segment
