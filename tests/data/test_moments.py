"""Figures to standardise by: from what clients that train tell of their training rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from toy_data import owned_dataset

from fedskew.config import make_config
from fedskew.data.build import build
from fedskew.data.federation import Federation
from fedskew.data.moments import Moments, figures
from fedskew.runs.experiment import make_federation
from fedskew.runs.preparation import described

Array = np.ndarray[Any, Any]


def test_two_holders_tell_counts_sums_and_squares_around_their_own_means() -> None:
    """1, 3 and 8 lie around 4: squares 9 + 1 + 16 = 26, of which 2 around the first's mean, 2."""
    x = np.array([[1.0], [3.0], [8.0]], np.float32)
    first, second = (Moments.of(x, np.array(rows)) for rows in ([0, 1], [2]))
    assert (first.count, first.total.item(), first.squares.item()) == (2, 4.0, 2.0)
    assert (second.count, second.total.item(), second.squares.item()) == (1, 8.0, 0.0)
    mean, deviation = figures([first, second])
    assert mean.item() == 4.0
    assert deviation.item() == pytest.approx((26 / 3) ** 0.5, rel=1e-7)


def test_images_have_one_figure_a_channel() -> None:
    x = np.random.default_rng(0).random((9, 3, 4, 5), dtype=np.float32)
    mean, deviation = figures([Moments.of(x, np.arange(4)), Moments.of(x, np.arange(4, 9))])
    np.testing.assert_allclose(mean.reshape(-1), x.mean(axis=(0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(deviation.reshape(-1), x.std(axis=(0, 2, 3)), rtol=1e-5)


@given(st.integers(1, 5), st.integers(0, 2**32), st.sampled_from([0.0, 1e3, -1e6]))
def test_dividing_rows_over_holders_changes_no_figure(holders: int, seed: int, far: float) -> None:
    """Even far from zero, where sums of plain squares would have lost the deviation."""
    rng = np.random.default_rng(seed)
    x = (far + rng.normal(0, 10, (40, 3))).astype(np.float32)
    parts = np.array_split(rng.permutation(40), holders)
    mean, deviation = figures([Moments.of(x, rows) for rows in parts])
    np.testing.assert_allclose(mean[0], x.mean(axis=0, dtype=np.float64), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(deviation[0], x.std(axis=0, dtype=np.float64), rtol=1e-6)


def test_constant_features_are_shifted_and_not_blown_up() -> None:
    x = np.full((6, 1), 0.1, np.float32)
    mean, deviation = figures([Moments.of(x, np.arange(2)), Moments.of(x, np.arange(2, 6))])
    assert (mean.item(), deviation.item()) == (pytest.approx(0.1), 1.0)


def test_neither_unseen_clients_nor_held_back_rows_count() -> None:
    dataset = owned_dataset([20, 30, 10], standardise=True, owner_names=("a", "b", "c"))
    made = build(dataset, partition="owner", clients=None, seed=0, unseen=["b"])
    training = np.concatenate([client.train for client in made.clients])
    assert 0 < len(training) < 30
    mean, deviation = training.mean(), training.std()
    expected = (np.arange(60) - mean) / deviation
    np.testing.assert_allclose(made.x[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_the_dataset_itself_is_left_as_it_was() -> None:
    dataset = owned_dataset([20, 30], standardise=True, owner_names=("a", "b"))
    for seed in (0, 1):
        build(dataset, partition="iid", clients=2, seed=seed)
    assert torch.equal(dataset.x, torch.arange(50.0)[:, None])
    assert dataset.standardise


Rows = tuple[Array, Array, Array]


def as_npz(folder: Path, rows: Rows) -> Path:
    x, y, owner = rows
    np.savez(folder / "own.npz", x=x, y=y, owner=owner)
    return folder / "own.npz"


def as_tables(folder: Path, rows: Rows) -> Path:
    x, y, owner = rows
    for name in np.unique(owner):
        lines = [
            ",".join([*map(str, values.reshape(-1)), str(label)])
            for values, label in zip(x[owner == name], y[owner == name], strict=True)
        ]
        header = ",".join([*(f"f{i}" for i in range(x[0].size)), "label"])
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]))
    return folder


def as_pictures(folder: Path, rows: Rows) -> Path:
    for i, (values, label, name) in enumerate(zip(*rows, strict=True)):
        place = folder / str(name) / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(place / f"{i:03d}.png")
    return folder


@pytest.mark.parametrize("write", [as_npz, as_tables, as_pictures])
def test_own_data_of_any_form_are_scaled_by_those_who_train(tmp_path: Path, write: Any) -> None:
    """Inverting every pixel of test rows and of the unseen client moves nobody's training rows."""
    rng = np.random.default_rng(0)
    # Class and owner in order, as pictures are read.
    owner, y = np.repeat(list("abc"), 30), np.tile(np.repeat([0, 1], 15), 3)
    x = rng.integers(0, 200, (90, 4, 4), dtype=np.uint8)

    def made(name: str, x: Array, normalise: str = "standard") -> Federation:
        (tmp_path / name).mkdir(exist_ok=True)
        federation = {
            "dataset": str(write(tmp_path / name, (x, y, owner))),
            "partition": "owner", "clients": "all", "unseen": ["c"], "normalise": normalise,
        }  # fmt: skip
        config = make_config({"federation": federation})
        built = make_federation(config)
        taken = described(config, built)
        as_stored = make_federation(
            make_config({"federation": {**federation, "normalise": "unit"}})
        )
        assert torch.equal(taken.samples(as_stored.x.numpy()), built.x)
        return built

    before = made("before", x)
    changed = x.copy()
    for client in before.by_name.values():
        rows = client.test if client in before.clients else slice(60, 90)
        changed[rows] = 255 - changed[rows]
    after = made("after", changed)
    for one, other in zip(before.clients, after.clients, strict=True):
        np.testing.assert_array_equal(one.train, other.train)
        for rows in (one.train, one.validation):
            assert torch.equal(before.x[rows], after.x[rows])
        assert not torch.equal(before.x[one.test], after.x[other.test])
    training = before.x[np.concatenate([client.train for client in before.clients])].double()
    axes = (0, 2, 3) if training.dim() == 4 else (0,)
    assert float(training.mean(dim=axes).abs().max()) < 1e-5
    assert float((training.std(dim=axes, correction=0) - 1).abs().max()) < 1e-5
