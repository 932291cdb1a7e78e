"""New samples are prepared as a run's were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quick_digits import Stored

import fedskew
from fedskew.api import run
from fedskew.data.datasets import load
from fedskew.deploy.preparation import preparation_of
from fedskew.errors import DataError, RunError
from fedskew.runs.experiment import Run, make_federation
from fedskew.runs.preparation import described, load_preparation


def test_other_data_than_the_runs_are_noticed(tmp_path: Path) -> None:
    """A run on a user's own file, which then changes: its figures would be wrong."""
    path, rng = tmp_path / "own.npz", np.random.default_rng(0)
    x, y = rng.random((60, 4), dtype=np.float32), np.arange(60) % 3
    np.savez(path, x=x, y=y)
    federation = {"dataset": str(path), "clients": 3, "partition": "iid"}
    settings = {"model": "logistic", "federation": federation, "train": {"rounds": 1}}
    done = run(settings, out=tmp_path / "runs", draw=False)
    np.savez(path, x=x + 1, y=y)
    # The figures stand in the run's folder; one of an earlier version lacks them.
    assert fedskew.adapt(done, x, y).about["adapted"]["samples"] == 60
    (done.path / "preparation.json").unlink()
    with pytest.raises(RunError, match="made with other data than are here now"):
        fedskew.adapt(done, x, y)
    np.savez(path, x=x, y=y)
    fedskew.adapt(done, x, y)
    path.unlink()
    assert fedskew.adapt(done, x, y).about["adapted"]["samples"] == 60


@pytest.mark.parametrize(
    "federation",
    [
        {},
        {"normalise": "unit"},
        {"normalise": "signed", "classes": [8, 3]},
        {"image": {"side": 12, "channels": 3}},
        {"classes": [5, 2, 7], "image": {"side": 4}},
    ],
)
def test_samples_as_stored_become_the_very_samples_of_the_federation(
    federation: dict[str, Any], stored: Stored
) -> None:
    config = fedskew.make_config({"federation": {"clients": 3, **federation}})
    made = make_federation(config)
    preparation = described(config, made)
    x, y = stored
    kept = np.isin(y, federation.get("classes", np.arange(10)))
    assert torch.equal(preparation.samples(x[kept]), made.x)
    np.testing.assert_array_equal(preparation.labels(y[kept]), made.y.numpy())
    named = preparation.labels([str(label) for label in y[kept]])
    np.testing.assert_array_equal(named, made.y.numpy())


def test_labels_of_merged_classes_are_told_by_any_of_their_numbers(stored: Stored) -> None:
    config = fedskew.make_config({"federation": {"clients": 3, "classes": [[5, 2], [7]]}})
    made = make_federation(config)
    preparation = described(config, made)
    y = stored[1]
    kept = y[np.isin(y, [5, 2, 7])]
    np.testing.assert_array_equal(preparation.labels(kept), made.y.numpy())
    assert preparation.labels(["5+2", "7"]).tolist() == [0, 1]
    with pytest.raises(DataError, match="none of the run's classes"):
        preparation.labels([3])


def test_grey_samples_of_a_coloured_run_are_grey_in_three_channels(stored: Stored) -> None:
    skewed = {"clients": 3, "normalise": "unit", "skew": ["colour"]}
    config = fedskew.make_config({"federation": skewed})
    preparation = described(config, make_federation(config))
    made = preparation.samples(stored[0][:4])
    assert torch.equal(made, torch.from_numpy(stored[0][:4]).expand(-1, 3, -1, -1))
    coloured = np.random.default_rng(0).random((4, 3, 8, 8), dtype=np.float32)
    assert torch.equal(preparation.samples(coloured), torch.from_numpy(coloured))


@pytest.mark.real_data
@pytest.mark.parametrize("scale", ["client", "feature"])
def test_features_are_chosen_and_scaled_as_the_runs(data_dir: Path, scale: str) -> None:
    """Rows of a client come out bit for bit; a newcomer's range is that of its samples."""
    federation = {
        "dataset": "har", "partition": "owner", "clients": "all", "unseen": 9,
        "features": {"top": 144, "scale": scale},
    }  # fmt: skip
    config = fedskew.make_config({"federation": federation})
    made = make_federation(config, data_dir)
    preparation = described(config, made)
    raw = load("har", data_dir, normalise="unit")
    assert raw.owner is not None
    client = made.clients[2]
    rows = np.flatnonzero(raw.owner == raw.owner_names.index(client.name))
    mine = preparation.of_client(client.name).samples(raw.x[rows].numpy())
    theirs = made.x[np.concatenate([client.train, client.validation, client.test])]
    assert set(map(bytes, mine.numpy())) == set(map(bytes, theirs.numpy()))
    new = preparation.of_new(raw.x[rows[:40]].numpy()).samples(raw.x[rows[:40]].numpy())
    low, high = new.aminmax(dim=0) if scale == "feature" else new.aminmax()
    assert torch.allclose(low, torch.zeros_like(low), atol=1e-6)
    assert torch.allclose(high, torch.ones_like(high), atol=1e-6)


def test_a_preparation_is_read_back_as_it_was_written(finished: Run, tmp_path: Path) -> None:
    preparation = preparation_of(finished)
    preparation.save(tmp_path)
    assert load_preparation(tmp_path) == preparation
