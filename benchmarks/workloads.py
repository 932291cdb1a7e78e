"""What is trained: one definition per workload, shared by every contender."""

from __future__ import annotations

import functools
import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import models

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
SEED = 20


@dataclass(frozen=True)
class Workload:
    """One federated training problem; every client runs ``epochs`` epochs in each round.

    Where clients stay ``apart`` nothing is averaged: each goes on with its own model, and after
    every round looks at those of its samples that are held out.
    """

    name: str
    source: str
    clients: int
    per_round: int
    batch: int
    optimizer: str
    learning_rate: float
    make_model: Callable[[], nn.Module]
    loss: Loss = models.cross_entropy
    flat: bool = True
    samples: int = 50
    check_rounds: int = 20
    epochs: int = 1
    held_out: int = 0
    apart: bool = False

    def model(self) -> nn.Module:
        """The initial model: the same weights in every contender."""
        torch.manual_seed(SEED)
        return self.make_model()


@dataclass(frozen=True)
class Data:
    """Training rows with the rows of each client, a test set, and whether the data are real.

    ``held_out`` are rows a client does not train on, where the workload has such.
    """

    x: Tensor
    y: Tensor
    clients: tuple[Tensor, ...]
    test_x: Tensor
    test_y: Tensor
    real: bool
    held_out: tuple[Tensor, ...] = ()

    def cohort(self, round_number: int, size: int) -> list[int]:
        """Clients take turns, so every contender trains the same ones in the same round."""
        start = round_number * size
        return [(start + offset) % len(self.clients) for offset in range(size)]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mlr", "mnist", 1000, 50, 10, "sgd", 0.1, models.logistic),
        Workload("2nn", "mnist", 1000, 50, 10, "sgd", 0.1, models.two_layer),
        Workload(
            "cnn", "mnist", 1000, 50, 10, "sgd", 0.1, models.fedavg_cnn, flat=False, check_rounds=10
        ),
        Workload(
            "beta-vae",
            "mnist",
            10,
            10,
            64,
            "adam",
            1e-3,
            models.BetaVae,
            loss=models.vae_training_loss,
            samples=600,
            check_rounds=5,
        ),
        Workload(
            "femnist-cnn",
            "femnist",
            25,
            25,
            4,
            "adam",
            1e-3,
            models.femnist_cnn,
            flat=False,
            check_rounds=5,
        ),
        Workload("har-mlp", "har", 21, 21, 8, "adam", 1e-3, models.har_mlp, check_rounds=5),
        Workload(
            "made",
            "mnist",
            100,
            100,
            32,
            "adam",
            3e-3,
            models.Made,
            loss=models.density_loss,
            samples=575,
            check_rounds=10,
            epochs=5,
            held_out=75,
            apart=True,
        ),
    )
}


@functools.lru_cache(maxsize=1)
def load(name: str, clients: int | None = None) -> Data:
    """The data of a workload; ``clients`` overrides their number for the memory rows."""
    workload = WORKLOADS[name]
    count = clients or workload.clients
    if workload.source == "mnist":
        return _mnist(workload, count)
    if workload.source == "femnist":
        return _femnist(count)
    return _har()


def _find(*parts: str) -> Path | None:
    folder = os.environ.get("FEDSKEW_DATA")
    if not folder:
        return None
    path = Path(folder, *parts)
    return path if path.exists() else None


def _idx(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8, offset=header)


def _mnist(workload: Workload, clients: int) -> Data:
    x, y, test_x, test_y, real = _mnist_arrays()
    rng = np.random.default_rng(SEED)
    wanted = clients * workload.samples
    rows = (
        rng.permutation(len(y))[:wanted] if wanted <= len(y) else rng.integers(len(y), size=wanted)
    )
    by_client = torch.from_numpy(rows).view(clients, workload.samples)
    shape = (-1, 784) if workload.flat else (-1, 1, 28, 28)
    return Data(
        x=_pixels(x).reshape(shape),
        y=torch.from_numpy(y.astype(np.int64)),
        clients=tuple(by_client[:, workload.held_out :].unbind()),
        test_x=_pixels(test_x).reshape(shape),
        test_y=torch.from_numpy(test_y.astype(np.int64)),
        real=real,
        held_out=tuple(by_client[:, : workload.held_out].unbind()),
    )


def _pixels(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32) / 255)


def _mnist_arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    paths = [_find("MNIST", "raw", f"{stem}-ubyte.gz") for stem in stems]
    if all(paths):
        x, y, test_x, test_y = (
            _idx(path, 16 if "images" in path.name else 8) for path in paths if path
        )
        return x.reshape(-1, 784), y, test_x.reshape(-1, 784), test_y, True
    rng = np.random.default_rng(SEED)
    images = rng.integers(256, size=(70_000, 784), dtype=np.uint8)
    labels = rng.integers(10, size=70_000, dtype=np.uint8)
    return images[:60_000], labels[:60_000], images[60_000:], labels[60_000:], False


def _by_owner(owner: np.ndarray) -> tuple[Tensor, ...]:
    """The rows of each owner, mixed once: pfl never shuffles and the files are in label order."""
    rng = np.random.default_rng(SEED)
    names = np.unique(owner)
    return tuple(torch.from_numpy(rng.permutation(np.flatnonzero(owner == name))) for name in names)


def _femnist(clients: int) -> Data:
    """Digits of the first writers who wrote at least 80; the next as many writers are the test."""
    path = _find("femnist.npz")
    if path:
        with np.load(path, allow_pickle=False) as archive:
            digits = archive["y"] < 10
            x, y, owner = (archive[key][digits] for key in ("x", "y", "owner"))
        writers = np.flatnonzero(np.bincount(owner) >= 80)[: 2 * clients]
    else:
        rng = np.random.default_rng(SEED)
        writers = np.arange(2 * clients)
        owner = np.repeat(writers, rng.integers(80, 131, size=len(writers)))
        x = rng.integers(256, size=(len(owner), 28, 28), dtype=np.uint8)
        y = rng.integers(10, size=len(owner), dtype=np.uint8)
    train, test = (np.isin(owner, part) for part in (writers[:clients], writers[clients:]))
    return _split(_pixels(x)[:, None], y, owner, train, test, real=path is not None)


def _har() -> Data:
    """All windows of the 21 official training subjects; the official test subjects are the test."""
    path = _find("har.npz")
    if path:
        with np.load(path, allow_pickle=False) as archive:
            features = archive["x"][:, :144].astype(np.float32) * archive["x_scale"]
            y, owner, train = archive["y"], archive["owner"], archive["split"] == 0
    else:
        rng = np.random.default_rng(SEED)
        owner = np.repeat(np.arange(30), rng.integers(281, 410, size=30))
        features = rng.standard_normal((len(owner), 144), dtype=np.float32)
        y, train = rng.integers(6, size=len(owner), dtype=np.uint8), owner < 21
    x = torch.from_numpy(features)
    return _split(x, y, owner, train, ~train, real=path is not None)


def _split(
    x: Tensor, y: np.ndarray, owner: np.ndarray, train: np.ndarray, test: np.ndarray, *, real: bool
) -> Data:
    labels = torch.from_numpy(y.astype(np.int64))
    return Data(
        x=x[train],
        y=labels[train],
        clients=_by_owner(owner[train]),
        test_x=x[test],
        test_y=labels[test],
        real=real,
    )
