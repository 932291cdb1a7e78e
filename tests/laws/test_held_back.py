"""Law 8: what is held back for tests, and what unseen clients hold, decides nothing.

Not a weight, a selected round or a threshold: own data, from the file to the finished run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedskew
from fedskew.config import make_config
from fedskew.federate.holdings import roster_of
from fedskew.runs.experiment import make_federation

Array = np.ndarray[Any, Any]
METHODS = ("fedavg", "scaffold", "ditto", "fedshibu", "feddisk", "central", "local")
OWNERS = ("ann", "bob", "cy", "dan")


def written(folder: Path, **changes: Array) -> Path:
    """40 samples of each of four owners, of three classes and features of unlike scales."""
    rng = np.random.default_rng(0)
    owner = np.repeat(OWNERS, 40)
    x = (rng.normal(size=(160, 5)) + np.repeat(np.arange(4), 40)[:, None]) * [1, 5, 20, 0.1, 300]
    arrays = {"x": x.astype(np.float32), "y": np.arange(160) % 3, "owner": owner, **changes}
    folder.mkdir()
    np.savez(folder / "own.npz", **arrays)
    return folder / "own.npz"


def settings(path: Path, method: str = "fedavg") -> dict[str, Any]:
    return {
        "method": method,
        "model": {"name": "mlp", "hidden": [6]},
        "federation": {
            "dataset": str(path), "partition": "owner", "clients": "all", "unseen": ["dan"],
            "validation": 0.3,
        },
        "train": {"rounds": 3, "batch_size": 8},
    }  # fmt: skip


def decided(path: Path, method: str) -> tuple[fedskew.Run, dict[str, Any]]:
    """The run, and all that nobody's test may have a say in."""
    run = fedskew.run(settings(path, method), out=path.parent / "runs", draw=False)
    weights = {
        str(file.relative_to(run.path)): file.read_bytes()
        for file in sorted((run.path / "models").rglob("*.safetensors"))
        if "dan" not in file.stem
    }
    assert weights
    client = None if run.result["primary_model"] == "global" else "ann"
    answers = fedskew.predict(run, np.ones((2, 5), np.float32), client=client)
    return run, {
        **weights,
        "round": run.result["selected_round"],
        "threshold": answers.threshold,
        "answers": answers.probability.tolist(),
    }


def stored(path: Path) -> tuple[Array, Array]:
    with np.load(path) as found:
        return found["x"], found["y"]


@pytest.mark.parametrize("method", METHODS)
def test_features_held_back_or_unseen_move_no_weight(tmp_path: Path, method: str) -> None:
    path = written(tmp_path / "before")
    federation = make_federation(make_config(settings(path)))
    x, y = stored(path)
    held_back = np.concatenate([client.test for client in federation.clients])
    x[held_back] *= 30
    x[120:] *= 30
    y[120:] = 2 - y[120:]
    other = written(tmp_path / "after", x=x, y=y)
    (one, before), (two, after) = decided(path, method), decided(other, method)
    assert before == after
    assert one.result["scores"] != two.result["scores"]
    assert one.path.name != two.path.name, "other data are another run"


@pytest.mark.parametrize("method", METHODS)
def test_labels_held_back_or_unseen_move_no_weight(tmp_path: Path, method: str) -> None:
    split = (np.arange(160) % 4 == 0).astype(np.uint8)
    path = written(tmp_path / "before", split=split)
    _, y = stored(path)
    y[(split == 1) | (np.arange(160) >= 120)] = 1
    other = written(tmp_path / "after", split=split, y=y)
    (one, before), (two, after) = decided(path, method), decided(other, method)
    assert before == after
    assert one.result["scores"] != two.result["scores"]


def test_a_model_that_is_picked_by_the_range_of_values_asks_those_who_train(tmp_path: Path) -> None:
    """Values in 0..1 get a density of binary inputs, whatever the test rows hold."""
    unit = {"x": np.random.default_rng(1).random((160, 5), dtype=np.float32)}
    path = written(tmp_path / "before", **unit)
    section = {**settings(path)["federation"], "normalise": "unit"}
    federation = make_federation(make_config({"federation": section}))
    x = unit["x"].copy()
    x[np.concatenate([client.test for client in federation.clients])] *= 30
    x[120:] *= -30
    held = make_federation(
        make_config({"federation": {**section, "dataset": str(written(tmp_path / "after", x=x))}})
    )
    assert not torch.equal(federation.x, held.x)
    one, other = roster_of(federation), roster_of(held)
    trained = federation.x[np.concatenate([client.train for client in federation.clients])]
    assert (one.low, one.high) == (float(trained.min()), float(trained.max()))
    assert (one.low, one.high) == (other.low, other.high)
