"""The federations that the rule is tested on; none was looked at while it was made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import fedskew
from fedskew.data.federation import Client, Federation
from fedskew.rng import keyed_rng

DESIGN = (
    "scikit-learn's digits (Dirichlet 0.3, 12 clients)",
    "MNIST images (Dirichlet 0.5, and dealt at random; 20 clients)",
    "simulated clients",
)
SMALL = 20
"""Validation samples of each client, in the small case."""


@dataclass(frozen=True)
class World:
    """A federation: its section, whether clients are real owners, and whether all are alike."""

    name: str
    section: dict[str, Any]
    natural: bool = False
    identical: bool = False


def _dirichlet(alpha: float) -> dict[str, Any]:
    return {"name": "dirichlet", "alpha": alpha}


WORLDS = (
    World("FEMNIST writers",
          {"dataset": "femnist", "partition": "owner", "clients": 30}, natural=True),
    World("HAR subjects",
          {"dataset": "har", "partition": "owner", "clients": "all"}, natural=True),
    World("X-ray sources",
          {"dataset": "chest-xray", "partition": "owner", "clients": "all"}, natural=True),
    World("MNIST writers",
          {"dataset": "mnist", "options": {"writers": True}, "partition": "owner", "clients": 30,
           "test_from": "holdout"}, natural=True),
    World("Fashion, labels 0.3",
          {"dataset": "fashion-mnist", "partition": _dirichlet(0.3), "clients": 20,
           "samples": 6000}),
    World("Fashion, rotated",
          {"dataset": "fashion-mnist", "partition": "iid", "clients": 20, "samples": 6000,
           "skew": [{"name": "rotation"}]}),
    World("GTSRB, labels 0.5",
          {"dataset": "gtsrb", "partition": _dirichlet(0.5), "clients": 15}),
    World("CIFAR-10, labels 0.5",
          {"dataset": "cifar10", "partition": _dirichlet(0.5), "clients": 20}),
    World("Fashion, identical",
          {"dataset": "fashion-mnist", "partition": "iid", "clients": 20, "samples": 6000},
          identical=True),
)  # fmt: skip


def config_of(world: World, method: str, seed: int, rounds: int) -> dict[str, Any]:
    """The settings of a run; the same for all federations."""
    return {
        "seed": seed,
        "federation": {"validation": 0.3, "test": 0.3, **world.section},
        "model": {"name": "mlp", "hidden": [64]},
        "method": method,
        "train": {"rounds": rounds},
        "evaluate": {"keep": "best", "fine_tune_at": "selected", "every": 2},
    }


def federation_of(world: World, seed: int, few: bool) -> Federation:
    """The federation; with ``few`` validation samples the others are nobody's."""
    made = _whole(world.name, seed)
    if not few:
        return made
    return made.with_data(clients=tuple(_thinned(client, seed) for client in made.clients))


@lru_cache(maxsize=1)
def _whole(name: str, seed: int) -> Federation:
    """All of it, but for clients with fewer than ten training or four validation samples."""
    world = next(world for world in WORLDS if world.name == name)
    settings = fedskew.make_config(config_of(world, "fedavg", seed, 1))
    made = fedskew.make_federation(settings)
    clients = [c for c in made.clients if len(c.train) >= 10 and len(c.validation) >= 4]
    return made.with_data(clients=tuple(clients))


def _thinned(client: Client, seed: int) -> Client:
    rng = keyed_rng(seed, "few validation samples", client.name)
    rows = rng.permutation(client.validation)[:SMALL]
    return replace(client, validation=rows)
