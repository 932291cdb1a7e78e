"""How good generated samples are, judged by a classifier trained on the real ones.

Nothing is downloaded: the judge is a small network trained on the federation's own data. Every
distance here depends on its features: compare only numbers of the same judge, which is the same for
the same federation and seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.config import FEWEST_JUDGED, Named
from fedskew.data.federation import Client, Federation, check_samples
from fedskew.data.fingerprint import fingerprint
from fedskew.engine.executor import choose
from fedskew.engine.optim import Optimiser
from fedskew.engine.workers import in_workers, one_intra_op_thread
from fedskew.errors import ConfigError, DataError, RunError
from fedskew.federate.client import train_clients
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Plan, Settings
from fedskew.federate.recipe import Recipe
from fedskew.federate.tasks import TrainTask
from fedskew.models import seeded
from fedskew.rng import stream, torch_seed

HIDDEN, BATCH = (128, 64), 64
EPOCHS, STEPS = 2, 800
"""The least number of epochs, and of steps, for which a classifier trains."""
NEIGHBOURS, MOST = FEWEST_JUDGED - 1, 1000
"""For manifolds: the neighbour that sets a ball's radius, and the most samples used."""
NEGLIGIBLE = 1e-12
"""Relative differences smaller than this are rounding errors."""


@dataclass(frozen=True, eq=False)
class Judge:
    """A trained classifier, and how often it is right about the central test set.

    ``real`` are its features of the central test samples.
    """

    model: nn.Module
    real: Tensor
    accuracy: float

    def features(self, x: Tensor) -> Tensor:
        """The body's features of samples, one row each."""
        return _features(self.model, x)

    def labels(self, x: Tensor) -> Tensor:
        """The class the classifier predicts for each sample."""
        return _labels(self.model, self.features(x))


_last: dict[tuple[Any, ...], Judge] = {}
"""The latest judge, by everything it depends on; one is enough for a suite of runs."""


def judge_for(federation: Federation, seed: int) -> Judge:
    """The classifier trained on the pooled training samples of all seen clients."""
    rows, tested_on = federation.pooled().train, federation.central_test
    for kind, given in (("training", rows), ("central test", tested_on)):
        if len(given) <= NEIGHBOURS:
            raise DataError(
                f"federation {federation.name!r} has {len(given)} {kind} samples: give it at "
                f"least {NEIGHBOURS + 1} to judge generated ones by, or set evaluate.generated = 0."
            )
    key = (fingerprint(federation), federation.classes, tested_on.tobytes(), seed)
    judge = _last.get(key)
    if judge is None:
        x, y = (values[torch.from_numpy(rows)] for values in (federation.x, federation.y))
        judge = _taught("real", x, y, federation, seed)
        _last.clear()
        _last[key] = judge
    return judge


def judged(generated: Tensor, federation: Federation, seed: int) -> dict[str, float]:
    """Scores of generated samples against the real ones of the central test set.

    "cas", the classification accuracy score: the accuracy on real samples of a classifier trained
    on generated ones alone; "frechet", the distance between the judge's features of both;
    "precision", the share of generated samples that look real to the judge; and "recall", the
    share of real samples that could have been generated.
    """
    generated = generated.detach().to("cpu", torch.float32)
    if tuple(generated.shape[1:]) != federation.sample_shape:
        raise DataError(
            f"generated samples have shape {tuple(generated.shape[1:])}, but those of "
            f"{federation.name!r} have {federation.sample_shape}: let the model make the same."
        )
    if len(generated) <= NEIGHBOURS:
        raise ConfigError(
            f"evaluate.generated must be at least {NEIGHBOURS + 1}, not {len(generated)}."
        )
    judge = judge_for(federation, seed)
    made = judge.features(generated)
    labels = _labels(judge.model, made)
    check_samples("generated samples", generated, labels)
    check_samples("features of generated samples", made, labels)
    federation.problem.check("generated samples", labels, federation.class_names)
    # On several threads the last bits would depend on how many there are.
    with one_intra_op_thread():
        some_made, some_real = _some(made, seed, "generated"), _some(judge.real, seed, "real")
        return {
            "cas": _accuracy_score(generated, labels, federation, seed),
            "frechet": frechet(made, judge.real),
            "precision": float(inside(some_made, some_real).to(torch.float64).mean()),
            "recall": float(inside(some_real, some_made).to(torch.float64).mean()),
        }


def _accuracy_score(x: Tensor, labels: Tensor, federation: Federation, seed: int) -> float:
    """The accuracy, on real samples, of a classifier trained on generated ones.

    It only sees those that lie in the manifold of real training samples. The judge's labels carry
    information even for meaningless inputs: from enough pure noise with such labels, a student
    learns all that the judge knows. If no sample is left, it has to guess.
    """
    rows = torch.from_numpy(federation.pooled().train)
    real = federation.x[_some(rows, seed, "training")]
    kept = inside(x.flatten(start_dim=1), real.flatten(start_dim=1))
    if not bool(kept.any()):
        return 1.0 / federation.classes
    return _taught("generated", x[kept], labels[kept], federation, seed).accuracy


def frechet(ours: Tensor, theirs: Tensor) -> float:
    """|μ - ν|² + tr(S + T - 2·(ST)^½) for the means μ, ν and covariances S, T of two samples.

    With S = A'A and T = B'B, tr (ST)^½ is the sum of the singular values of AB'. This avoids a
    matrix root, which need not exist if there are few samples or constant features.

    >>> one, other = torch.tensor([[0.0], [2.0]]), torch.tensor([[10.0], [14.0]])
    >>> round(frechet(one, other), 6)  # (1 - 12)² + (√2 - √8)²
    123.0
    """
    mean, root = _gaussian(ours)
    other_mean, other_root = _gaussian(theirs)
    spread = root.square().sum() + other_root.square().sum()
    common = torch.linalg.svdvals(root @ other_root.T).sum()
    distance = float((mean - other_mean).square().sum() + spread - 2 * common)
    return distance if distance > NEGLIGIBLE * float(spread) else 0.0


def _gaussian(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of some features, and a triangular matrix A whose A'A is their covariance."""
    features = features.to(torch.float64)
    mean = features.mean(dim=0)
    root = torch.linalg.qr(features - mean, mode="r").R
    return mean, root / max(len(features) - 1, 1) ** 0.5


def inside(points: Tensor, samples: Tensor) -> Tensor:
    """Which points lie in the manifold of some samples (Kynkäänniemi et al., 2019).

    The manifold is the union of balls, one around each sample, that reach to the sample's third
    nearest neighbour. Precision is the share of the generated in the manifold of the real,
    recall that of the real in the manifold of the generated.

    >>> line = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> inside(torch.tensor([[-3.0], [4.0], [9.0]]), line).tolist()
    [True, True, False]
    """
    # Counting from one, and the nearest to every sample is the sample itself.
    radii = _squared_distances(samples, samples).kthvalue(NEIGHBOURS + 1, dim=1).values
    parts = torch.split(points, 1024)
    return torch.cat([(_squared_distances(p, samples) <= radii).any(dim=1) for p in parts])


def _squared_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Of every row to every column; exactly zero for equal ones despite rounding."""
    rows, columns = rows.to(torch.float64), columns.to(torch.float64)
    sizes = rows.square().sum(dim=1)[:, None] + columns.square().sum(dim=1)
    squares = sizes - 2 * rows @ columns.T
    return torch.where(squares > NEGLIGIBLE * sizes, squares, 0.0)


def _some(items: Tensor, seed: int, side: str) -> Tensor:
    if len(items) <= MOST:
        return items
    chosen = stream(seed, "judged", side).choice(len(items), MOST, replace=False)
    return items[torch.from_numpy(chosen)]


def _features(model: nn.Module, x: Tensor) -> Tensor:
    body = model.get_submodule("body")

    def part_of(x: Tensor) -> Tensor:
        # Inside the function, because no_grad applies per thread.
        with torch.no_grad():
            features: Tensor = body(x)
            return features

    return torch.cat(in_workers(part_of, torch.split(x, 512)))


def _labels(model: nn.Module, features: Tensor) -> Tensor:
    with torch.no_grad(), one_intra_op_thread():
        labels: Tensor = model.get_submodule("head")(features).argmax(dim=1)
        return labels


def _taught(name: str, x: Tensor, y: Tensor, federation: Federation, seed: int) -> Judge:
    """A classifier of a federation's classes, trained on these samples and labels alone."""
    lessons = Federation(name, x, y, federation.class_names, (Client(name, np.arange(len(y))),))
    shape, classes = federation.sample_shape, federation.classes
    role = f"taught by {name}"
    model = seeded("mlp", shape, classes, seed=torch_seed(seed, role, "model"), hidden=HIDDEN)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    epochs = max(EPOCHS, -(-STEPS // -(-len(y) // BATCH)))
    plan = Plan(
        recipe=Recipe(),
        module=model,
        initial=initial,
        settings=Settings(Optimiser("adam", lr=1e-3), epochs, BATCH),
        execution=choose(model),
        seed=seed,
        stage=role,
        model=Named(name="mlp", hidden=HIDDEN),
    )
    outcome = train_clients(Holdings(plan, lessons), [TrainTask(name, 0, initial)], {name: {}})[0]
    if outcome.update is None:
        raise RunError(f"no classifier could be trained on {name} samples: {outcome.error}.")
    model.load_state_dict(outcome.update.tensors)
    rows = torch.from_numpy(federation.central_test)
    real = _features(model, federation.x[rows])
    right = _labels(model, real) == federation.y[rows]
    return Judge(model, real, accuracy=float(right.to(torch.float64).mean()))
