"""Studies that are run on sites and on one machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedskew.runs.experiment import Run

TRAIN = {"rounds": 3, "lr": 0.05, "batch_size": 16}
MLP = {"name": "mlp", "hidden": [12]}
VAE = {"name": "beta-vae", "hidden": [12]}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg", "model": MLP},
    "scaffold": {"method": "scaffold", "model": MLP},
    "ditto": {"method": "ditto", "model": MLP},
    "fedrep": {"method": "fedrep", "model": MLP},
    "fedshibu": {"method": "fedshibu", "model": MLP},
    "partial": {"method": "fedavg", "model": MLP, "train": {**TRAIN, "clients_per_round": 2}},
    "unseen": {
        "method": "fedper", "model": MLP, "federation": {"unseen": ["dan"]},
        "evaluate": {"shots": [1, "all"], "fine_tune_epochs": 1},
    },
    "irm": {"method": "irm", "model": MLP},
    "compressed": {"method": {"name": "compressed", "share": 0.1}, "model": MLP},
    "seldom": {"method": "fedavg", "model": MLP, "evaluate": {"every": 2}},
    "auroc": {"method": "fedavg", "model": MLP, "evaluate": {"metric": "auroc"}},
    "patience": {
        "method": "fedavg", "model": MLP,
        "train": {"rounds": 30, "lr": 0.5, "batch_size": 16, "patience": 2},
    },
    "feddisk": {"method": {"name": "feddisk", "density_rounds": 2, "local_epochs": 1},
                "model": MLP},
    "vae": {"method": "vae", "model": VAE},
    "latent-weights": {"method": "latent-weights", "model": VAE},
    "distilled-vae": {"method": {"name": "distilled-vae"}, "model": VAE},
}  # fmt: skip


def settings(name: str) -> dict[str, Any]:
    return {"train": TRAIN, **CASES[name]}


def rows_of(run: Run) -> dict[tuple[Any, ...], float]:
    return {
        (r.stage, r.round, r.model, r.on, r.client, r.adapted, r.split, r.metric): r.value
        for r in run.rows()
        if r.on != "central"
    }


def assert_same(one: Run, other: Run) -> None:
    """Global models to the bit, scores to 1e-6."""
    for path in (one.path / "models").rglob("global.safetensors"):
        theirs = load_file(other.path / path.relative_to(one.path))
        for key, tensor in load_file(path).items():
            assert torch.equal(theirs[key], tensor), key
    assert_same_scores(one, other)


def assert_same_scores(one: Run, other: Run) -> None:
    mine, found = rows_of(one), rows_of(other)
    assert mine.keys() == found.keys()
    for key, value in mine.items():
        assert found[key] == pytest.approx(value, rel=1e-6, abs=1e-6, nan_ok=True), key
