from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.federation import Client, Federation
from fedskew.data.scaling import scaled_targets
from fedskew.data.strata import kinds, strata, strata_names
from fedskew.errors import DataError
from fedskew.problem import Problem

RNG = np.random.default_rng(0)
TARGETS = (150 + 40 * RNG.normal(size=200)).astype(np.float32)
X = torch.from_numpy(RNG.normal(size=(200, 4)).astype(np.float32))
NUMBERS = Dataset("toy", X, torch.from_numpy(TARGETS), (), problem=Problem("regression"))
LABELS = torch.from_numpy((RNG.random((200, 3)) < (0.6, 0.3, 0.1)).astype(np.float32))
SEVERAL = Dataset("toy", X, LABELS, ("a", "b", "c"), problem=Problem("multi-label"))


def test_numbers_are_dealt_by_tenths_of_equal_size() -> None:
    found = strata(NUMBERS.y)
    assert np.bincount(found).tolist() == [20] * 10
    order = np.argsort(TARGETS)
    assert (np.diff(found[order]) >= 0).all()
    assert strata_names(NUMBERS.y, ())[found.max()] == "tenth 10"


def test_several_labels_are_dealt_by_the_rarest() -> None:
    found, names = strata(LABELS), strata_names(LABELS, SEVERAL.class_names)
    for held, stratum in zip(LABELS.numpy(), found, strict=True):
        rarest = next((n for n, h in (("c", held[2]), ("b", held[1]), ("a", held[0])) if h), "none")
        assert names[stratum] == rarest


@pytest.mark.parametrize("dataset", [NUMBERS, SEVERAL], ids=["numbers", "labels"])
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("iid", {}), ("dirichlet", {"alpha": 0.5, "min_size": 5}), ("graded", {}),
        ("shards", {"shards_per_client": 5}), ("quantity", {"min_size": 5}), ("label-groups", {}),
    ],
)  # fmt: skip
def test_partitions_deal_what_has_no_class(
    dataset: Dataset, name: str, knobs: dict[str, float]
) -> None:
    made = build(dataset, partition=name, clients=4, seed=1, knobs=knobs)
    rows = np.concatenate([np.r_[c.train, c.validation, c.test] for c in made.clients])
    assert len(np.unique(rows)) == len(rows)
    assert len(made.clients) == 4


def test_a_client_of_one_tenth_holds_the_targets_between_two_quantiles() -> None:
    made = build(NUMBERS, partition="one-class", clients=10, seed=1)
    held = [made.y[np.r_[c.train, c.validation, c.test]] for c in made.clients]
    ends = sorted((float(y.min()), float(y.max())) for y in held)
    assert all(high < low for (_, high), (low, _) in pairwise(ends))


def test_targets_are_scaled_by_the_training_rows_of_those_who_train() -> None:
    made = build(NUMBERS, partition="iid", clients=4, seed=1, unseen=1)
    rows = np.concatenate([client.train for client in made.clients])
    scaler = StandardScaler().fit(TARGETS[rows, None].astype(np.float64))
    assert made.problem.units == pytest.approx((scaler.mean_[0], scaler.scale_[0]), rel=1e-6)
    np.testing.assert_allclose(made.y, scaler.transform(TARGETS[:, None])[:, 0], atol=1e-5)
    np.testing.assert_allclose(made.problem.in_units(made.y), TARGETS, rtol=1e-5)


def test_targets_of_ones_own_federation_are_scaled_unless_they_have_units() -> None:
    rows = np.arange(200)
    clients = (Client("ann", rows[:120]), Client("bob", rows[120:]))
    raw = Federation("own", X, NUMBERS.y, (), clients, problem=Problem("regression"))
    made = scaled_targets(raw)
    assert made.problem.units == pytest.approx((TARGETS.mean(), TARGETS.std()), rel=1e-5)
    assert scaled_targets(made) is made
    assert torch.equal(made.x, raw.x)


def test_without_classes_few_shots_and_splits_take_any_sample() -> None:
    assert kinds(NUMBERS.y).tolist() == kinds(LABELS).tolist() == [0] * 200


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"features": {"top": 2}}, "top of federation.features needs samples that have a class"),
        ({"skew": [{"kind": "colour"}]}, "skew 'colour' needs samples that have a class"),
    ],
)
def test_what_needs_classes_is_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(DataError, match=match):
        build(NUMBERS, partition="iid", clients=4, seed=1, **settings)  # type: ignore[arg-type]
