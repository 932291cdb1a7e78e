"""The federations that recommendations are tried on: real data, small models, few rounds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew.config import Config, make_config
from fedskew.data.example_data import write_example
from fedskew.data.federation import Federation
from fedskew.rng import keyed_rng
from fedskew.runs.experiment import make_federation
from fedskew.runs.given import on_given

ROUNDS = 20
"""Of a full run."""
MLP = {"name": "mlp", "hidden": [64]}
SMALL = {"side": 14, "channels": 1}
COLOURED = {"side": 16, "channels": 3}


@dataclass(frozen=True)
class Case:
    """A federation by name, for how it was made and which part of the work it belongs to.

    ``design`` says that rungs and thresholds were chosen while looking at it. ``permuted`` clients
    of four mean other classes by the same labels.
    """

    name: str
    about: str
    federation: Mapping[str, Any]
    design: bool
    model: Mapping[str, Any] | str = "mlp"
    train: Mapping[str, Any] | None = None
    permuted: int = 0

    def config(self, folder: Path, seed: int, method: Any = "fedavg") -> Config:
        """Its settings; example data are written into a folder."""
        section = {"validation": 0.2, **self.federation}
        name = str(section["dataset"])
        if name.endswith(".npz"):
            section["dataset"] = str(Path(os.environ["FEDSKEW_DATA"]) / name)
        elif name in EXAMPLES:
            place = folder / "data" / name
            if not place.exists():
                write_example(name, place)
            section["dataset"] = str(place)
        train = {"rounds": ROUNDS, "batch_size": 16, "lr": 0.1, **(self.train or {})}
        values = {"federation": section, "model": self.model, "train": train}
        return make_config({**values, "method": method, "seed": seed})

    def changed(self, config: Config) -> Federation | None:
        """The federation where it is none that a config describes."""
        if not self.permuted:
            return None
        return permuted(make_federation(config), self.permuted, config.seed)

    def on_its_data(self, config: Config, given: Federation | None) -> Config:
        return config if given is None else on_given(config, given)


def permuted(federation: Federation, groups: int, seed: int) -> Federation:
    """Clients in groups, each of which has an order of classes of its own: concept skew."""
    classes = len(federation.class_names)
    y = federation.y.clone()
    for place, client in enumerate(federation.clients):
        if turn := place % groups:
            order = torch.from_numpy(keyed_rng(seed, "order", str(turn)).permutation(classes))
            rows = np.concatenate([client.train, client.validation, client.test])
            y[rows] = order[federation.y[rows]]
    return federation.with_data(y=y)


EXAMPLES = ("hospitals", "manuals")
IMAGES: dict[str, Any] = {"clients": 20, "test_samples": 3000, "image": SMALL}
CASES = (
    Case(
        "mnist, Dirichlet 0.1", "20 clients, 3,000 images",
        {**IMAGES, "dataset": "mnist", "samples": 3000,
         "partition": {"name": "dirichlet", "alpha": 0.1}},
        True, MLP,
    ),
    Case(
        "mnist, iid", "20 clients, 2,000 images",
        {**IMAGES, "dataset": "mnist", "samples": 2000, "partition": "iid"}, True, MLP,
    ),
    Case(
        "fashion, two shards", "20 clients of about two classes, 3,000 images",
        {**IMAGES, "dataset": "fashion-mnist", "samples": 3000, "partition": "shards"}, True, MLP,
    ),
    Case(
        "har, subjects", "20 natural owners, phone sensors as 561 features",
        {"dataset": "har.npz", "clients": 20, "partition": "owner", "samples": 3000,
         "test_from": "holdout", "test": 0.4}, True, MLP, {"lr": 0.05},
    ),
    Case(
        "mnist, two meanings", "20 clients, half of them with permuted classes, 3,000 images",
        {**IMAGES, "dataset": "mnist", "samples": 3000, "partition": "iid"},
        True, MLP, permuted=2,
    ),
    Case(
        "hospitals", "the example's tables: tumours at five hospitals",
        {"dataset": "hospitals", "label": "diagnosis", "positive": "malignant",
         "columns": {"patient": "ignore"}, "partition": "owner", "clients": "all", "test": 0.4},
        True, {"name": "mlp", "hidden": [16]},
    ),
    Case(
        "femnist, writers", "20 natural owners, 62 classes",
        {"dataset": "femnist.npz", "clients": 20, "partition": {"name": "owner",
         "min_samples": 100}, "image": SMALL, "test": 0.4}, False, MLP,
    ),
    Case(
        "fashion, Dirichlet 0.5", "20 clients, 3,000 images",
        {**IMAGES, "dataset": "fashion-mnist", "samples": 3000,
         "partition": {"name": "dirichlet", "alpha": 0.5}}, False, MLP,
    ),
    Case(
        "traffic signs, Dirichlet 0.3", "20 clients, 3,000 colour images",
        {"dataset": "gtsrb10.npz", "clients": 20, "samples": 3000, "image": COLOURED,
         "partition": {"name": "dirichlet", "alpha": 0.3}}, False, MLP, {"lr": 0.05},
    ),
    Case(
        "X-rays, sources", "ten natural owners, 3,000 images, six classes",
        {"dataset": "chest_xray.npz", "clients": "all", "samples": 3000, "partition": "owner",
         "image": {"side": 16, "channels": 1}, "test_from": "holdout", "test": 0.4},
        False, MLP, {"lr": 0.05},
    ),
    Case(
        "mnist, turned", "20 clients, each turned by an angle of its own, 3,000 images",
        {**IMAGES, "dataset": "mnist", "samples": 3000, "partition": "iid",
         "skew": [{"name": "rotation", "low": 0, "high": 179, "spread": 0.0}]}, False, MLP,
    ),
    Case(
        "manuals", "the example's texts: paragraphs of twelve libraries' manuals",
        {"dataset": "manuals", "partition": "owner", "clients": "all", "test": 0.4},
        False, "embedding", {"optimiser": "adam", "lr": 0.01},
    ),
    Case(
        "har, Dirichlet 0.3", "20 clients, phone sensors as 561 features",
        {"dataset": "har.npz", "clients": 20, "samples": 3000,
         "partition": {"name": "dirichlet", "alpha": 0.3}}, False, MLP, {"lr": 0.05},
    ),
    Case(
        "fashion, four meanings", "20 clients in four groups with permuted classes, 4,000 images",
        {**IMAGES, "dataset": "fashion-mnist", "samples": 4000,
         "partition": {"name": "dirichlet", "alpha": 1.0}}, False, MLP, permuted=4,
    ),
)  # fmt: skip
