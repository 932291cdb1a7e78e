"""Frozen heads and similarity-weighted models against plain loops and numpy's CKA, on MNIST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Run, assert_close
from numpy.typing import NDArray
from plain_loops import ROUNDS, Plain, Weights, combination, mlp, momenta, ours
from torch import nn

from fedskew.data.federation import Client, Federation
from fedskew.rng import stream

pytestmark = pytest.mark.real_data
SHARPEN = 3.0
Array = NDArray[np.float64]
Rows = Callable[[Plain, list[Weights]], Array]
"""From the trained models to a matrix of row weights."""


def features(plain: Plain, weights: Weights, x: torch.Tensor) -> Array:
    model = plain.model
    model.load_state_dict(weights)
    body = model.get_submodule("body")
    with torch.no_grad():
        return np.asarray(body.eval()(x).numpy(), dtype=np.float64)


def normalised(similar: Array) -> Array:
    sharpened = similar**SHARPEN
    return np.asarray(sharpened / sharpened.sum(axis=1, keepdims=True))


def rows_by_covariance(plain: Plain, models: list[Weights]) -> Array:
    """FedSHIBU's rule on feature covariances of each client's own data."""
    made = []
    for client, weights in zip(plain.clients, models, strict=True):
        found = features(plain, weights, plain.data.x[torch.from_numpy(client.train)])
        made.append(np.cov(found.T))
    similar = np.array(
        [[(a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()) for b in made] for a in made]
    )
    return normalised(similar)


def rows_by_probe(plain: Plain, models: list[Weights]) -> Array:
    """FedSHIBU's rule on CKA over thirty noise images all clients see."""
    noise = stream(7, "main", "agreed").standard_normal((30, 1, 28, 28), dtype=np.float32)
    h = np.eye(30) - 1 / 30
    grams = []
    for weights in models:
        found = features(plain, weights, torch.from_numpy(noise))
        grams.append(h @ found @ found.T @ h)
    similar = np.array(
        [[np.trace(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)) for b in grams] for a in grams]
    )
    return normalised(similar)


def rows_of_groups(plain: Plain, models: list[Weights]) -> Array:
    half = np.full((2, 2), 0.5)
    return np.asarray(np.kron(np.eye(2), half))


def rows_of_self_mix(plain: Plain, models: list[Weights]) -> Array:
    return np.asarray(np.full((4, 4), 0.2) + 0.2 * np.eye(4))


def plainly_mixed(data: Federation, momentum: float, rows: Rows, moves: str) -> dict[str, Weights]:
    """Every client's next model after ROUNDS of local SGD and mixing by rows."""
    plain = Plain(data, mlp(), momentum)
    own = {client.name: plain.start() for client in plain.clients}
    for t in range(1, ROUNDS + 1):
        trained = [plain.local_sgd(own[c.name], c, t, moves=moves)[0] for c in plain.clients]
        weights = rows(plain, trained)
        for client, row in zip(plain.clients, weights.tolist(), strict=True):
            own[client.name] = combination(row, trained)
    return own


def assert_same_models(result: Run, expected: dict[str, Weights]) -> None:
    for name, weights in expected.items():
        assert_close(result.model_of(name), weights, 1e-5)


@momenta
def test_fedbabu_averages_bodies_under_a_frozen_head(mnist: Federation, momentum: float) -> None:
    plain = Plain(mnist, mlp(), momentum)
    x = plain.start()
    for t in range(1, ROUNDS + 1):
        trained = [plain.local_sgd(x, c, t, moves="body")[0] for c in plain.clients]
        x = combination([0.25] * 4, trained)
    result = ours("fedbabu", mnist, mlp(), momentum)
    for client in plain.clients:
        assert_close(result.model_of(client.name), x, 1e-5)


CASES: dict[str, tuple[str, dict[str, Any], Rows, str]] = {
    "fedshibu-feature": (
        "fedshibu",
        {"mode": "feature", "sharpen": SHARPEN},
        rows_by_covariance,
        "body",
    ),
    "fedshibu-probe": (
        "fedshibu",
        {"mode": "probe", "samples": 30, "sharpen": SHARPEN},
        rows_by_probe,
        "body",
    ),
    "fedavg-crsm": ("fedavg-crsm", {"mode": "feature", "sharpen": SHARPEN}, rows_by_covariance, ""),
    "grouped": ("grouped", {"groups": [[0, 1], [2, 3]]}, rows_of_groups, "body"),
    "grouped-whole": ("grouped", {"groups": [[0, 1], [2, 3]], "part": "all"}, rows_of_groups, ""),
    "self-mix": ("self-mix", {"self_weight": 0.4}, rows_of_self_mix, "body"),
}


@momenta
@pytest.mark.parametrize("case", sorted(CASES))
def test_models_are_mixed_by_rows(mnist: Federation, momentum: float, case: str) -> None:
    name, knobs, rows, moves = CASES[case]
    expected = plainly_mixed(mnist, momentum, rows, moves)
    assert_same_models(ours(name, mnist, mlp(), momentum, **knobs), expected)


def test_measured_self_mix_spreads_the_mean_self_weight(mnist: Federation) -> None:
    def rows(plain: Plain, models: list[Weights]) -> Array:
        own = rows_by_covariance(plain, models).diagonal().mean()
        return np.asarray(np.full((4, 4), (1 - own) / 3) + (own - (1 - own) / 3) * np.eye(4))

    expected = plainly_mixed(mnist, 0.0, rows, "body")
    knobs = {"self_weight": "measured", "mode": "feature", "sharpen": SHARPEN}
    assert_same_models(ours("self-mix", mnist, mlp(), **knobs), expected)


def test_personal_models_without_sharpening_are_fedbabus(mnist: Federation) -> None:
    flat, babu = ours("fedshibu", mnist, mlp(), sharpen=0.0), ours("fedbabu", mnist, mlp())
    for client in mnist.clients:
        assert_close(flat.model_of(client.name), babu.model_of(client.name), 1e-5)


@pytest.mark.parametrize("name", ["fedavg-crsm", "self-mix"])
def test_all_weight_on_oneself_is_local_training(mnist: Federation, name: str) -> None:
    knobs = {"part": "all"} if name == "self-mix" else {}
    alone = ours(name, mnist, mlp(), self_weight=1.0, **knobs)
    local = ours("local", mnist, mlp())
    for client in mnist.clients:
        assert_close(alone.model_of(client.name), local.model_of(client.name), 1e-6)


def test_clients_of_two_kinds_are_grouped_by_kind(mnist: Federation) -> None:
    """Six clients, three with digits 0 to 4 and three with 5 to 9: nobody says so to the server."""
    labels = mnist.y.numpy()
    low, high = (np.flatnonzero(part)[:300] for part in (labels < 5, labels >= 5))
    rows = [*np.array_split(low, 3), *np.array_split(high, 3)]
    clients = tuple(Client(f"client-{k}", part) for k, part in enumerate(rows))
    result = ours("grouped", mnist.with_data(clients=clients), mlp(), 0.9, mode="feature")
    group = [int(result.progress.state.memory["group"][c.name]) for c in clients]
    assert group[0] == group[1] == group[2] != group[3]
    assert group[3] == group[4] == group[5]


def module_of(weights: Weights) -> nn.Module:
    model = mlp()
    model.load_state_dict(weights)
    return model.eval()


def test_the_frozen_head_is_everybodys_first_one(mnist: Federation) -> None:
    result = ours("fedshibu", mnist, mlp())
    first = mlp().get_submodule("head").weight
    for client in mnist.clients:
        head = module_of(result.model_of(client.name)).get_submodule("head").weight
        assert torch.equal(head, first)  # type: ignore[arg-type]
