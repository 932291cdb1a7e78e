"""Federations of real data, made unlike in known ways."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits

from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.data.own import load_own
from fedskew.data.selection_skew import selection
from fedskew.problem import Problem
from fedskew.rng import keyed_rng
from fedskew.types import Indices

DESIGN = ("mnist", "digits", "har", "cifar10")
"""Features and thresholds were chosen while looking at these."""
HELD_OUT = ("fashion-mnist", "gtsrb", "femnist", "xray", "cifar100")
FILES = {
    "har": "har.npz", "cifar10": "cifar10_subset.npz", "gtsrb": "gtsrb10_full.npz",
    "femnist": "femnist.npz", "xray": "chest_xray.npz", "cifar100": "cifar100.npz",
}  # fmt: skip
MOST = 60_000
"""Rows kept of a dataset, so that all fit in memory."""
SHIFTS = ("rotation", "noise", "permuted")
CONCEPT = ("permuted",)


class Pool:
    """Rows of a dataset outside its published test split, and who owns each."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, owner: Indices | None, classes: int):
        self.x, self.y, self.owner, self.classes = x, y, owner, classes

    @property
    def images(self) -> bool:
        return self.x.ndim == 4


@cache
def pool(name: str, folder: Path) -> Pool:
    if name == "digits":
        found = load_digits()
        x = torch.from_numpy(found.data.astype(np.float32)).reshape(-1, 1, 8, 8) / 16
        return Pool(x, torch.from_numpy(found.target.astype(np.int64)), None, 10)
    if name in FILES:
        made = load_own(folder / FILES[name], normalise="unit")
    else:
        made = load(name, folder, normalise="unit")
    rows = made.train_rows
    if made.owner is None and len(rows) > MOST:
        rows = np.sort(keyed_rng(0, "rows", name).choice(rows, MOST, replace=False))
    owner = None if made.owner is None else made.owner[rows]
    return Pool(made.x[rows], made.y[rows], owner, len(made.class_names))


def world(
    source: Pool, kind: str, clients: int, size: int, seed: int, alpha: float = 0.5
) -> Federation | None:
    """A federation of a kind; none where the dataset has too few rows or no images to turn."""
    if clients * size > len(source.y) or (
        kind in ("rotation", "one-rotated", "four") and not source.images
    ):
        return None
    rng = keyed_rng(seed, "world", kind)
    if kind == "owners":
        return _owners(source, clients, rng)
    rows = rng.choice(len(source.y), clients * size, replace=False)
    x, y = source.x[rows].clone(), source.y[rows].clone()
    parts = [np.arange(k * size, (k + 1) * size) for k in range(clients)]
    if kind == "dirichlet":
        parts = _dirichlet(y.numpy(), clients, alpha, source.classes, rng)
    elif kind == "selection":
        made = _federation(x, y, parts, source.classes)
        return selection(made, seed)
    else:
        for place, part in enumerate(parts):
            _change(kind, x, y, part, place, clients, source.classes, rng)
    return _federation(x, y, parts, source.classes)


def _change(
    kind: str, x: torch.Tensor, y: torch.Tensor, part: Indices, place: int, clients: int,
    classes: int, rng: np.random.Generator,
) -> None:  # fmt: skip
    turn, last = place % 4, place == clients - 1
    if (kind in ("rotation", "four") and turn) or (kind == "one-rotated" and last):
        x[part] = x[part].rot90(turn if kind in ("rotation", "four") else 1, (2, 3))
    if (kind == "noise" and turn) or (kind == "one-noisy" and last):
        spread = x.std(dim=0).mean() if x.ndim == 2 else x.std()
        level = 0.6 * float(spread) * (turn / 3 if kind == "noise" else 1)
        drawn = rng.standard_normal(tuple(x[part].shape)).astype(np.float32)
        scale = x.std(dim=0) / spread if x.ndim == 2 else torch.ones(())
        x[part] = x[part] + level * scale * torch.from_numpy(drawn)
    if (kind == "permuted" and turn) or (kind == "one-permuted" and last):
        order = rng.permutation(classes)
        while classes > 2 and (order == np.arange(classes)).mean() > 0.5:
            order = rng.permutation(classes)
        order = np.array([1, 0]) if classes == 2 else order
        y[part] = torch.from_numpy(order)[y[part]]


def _dirichlet(
    y: Indices, clients: int, alpha: float, classes: int, rng: np.random.Generator
) -> list[Indices]:
    """Each class divided by shares drawn from a Dirichlet law; clients below 10 rows left out."""
    shares = rng.dirichlet(np.full(clients, alpha), classes)
    owner = np.empty(len(y), np.int64)
    for c in range(classes):
        rows = np.flatnonzero(y == c)
        owner[rows] = rng.choice(clients, len(rows), p=shares[c])
    parts = [np.flatnonzero(owner == k) for k in range(clients)]
    return [part for part in parts if len(part) >= 10]


def _owners(source: Pool, clients: int, rng: np.random.Generator) -> Federation | None:
    if source.owner is None:
        return None
    ids, counts = np.unique(source.owner, return_counts=True)
    ids = ids[counts >= 40]
    chosen = np.sort(rng.permutation(ids)[:clients])
    parts = [np.flatnonzero(source.owner == each)[:1000] for each in chosen]
    return _federation(source.x, source.y, parts, source.classes)


def _federation(
    x: torch.Tensor, y: torch.Tensor, parts: Sequence[Indices], classes: int
) -> Federation:
    names = tuple(map(str, range(classes)))
    clients = tuple(Client(f"c{k:04d}", part) for k, part in enumerate(parts))
    return Federation("world", x, y, names, clients)


def diabetes(clients: int, seed: int, sorted_: bool = False) -> Federation:
    """A table with a target that is a number, dealt at random or in the order of the target."""
    found = load_diabetes()
    order = np.argsort(found.target) if sorted_ else keyed_rng(seed, "deal").permutation(442)
    parts = np.array_split(order, clients)
    x, y = (torch.from_numpy(v.astype(np.float32)) for v in (found.data, found.target))
    named = tuple(Client(f"c{k}", np.sort(part)) for k, part in enumerate(parts))
    return Federation("diabetes", x, y, (), named, problem=Problem("regression"))
