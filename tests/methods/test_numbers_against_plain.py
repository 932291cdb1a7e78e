"""Regression on scikit-learn's diabetes data: against plain loops, and against least squares."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import assert_close, make_holdings, run
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, QuantileRegressor
from torch import Tensor, nn

from fedskew.data.federation import Client, Federation
from fedskew.data.scaling import scaled_targets
from fedskew.engine.batches import schedule
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.registry import Classifier
from fedskew.parts.losses import SQUARED, Loss, Pinball
from fedskew.problem import Problem

ROUNDS, EPOCHS, BATCH, LR, SEED = 3, 2, 20, 0.05, 7
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def diabetes() -> Federation:
    """Patients by age, so that no two clients are alike."""
    found = load_diabetes()
    x = torch.from_numpy(found.data / found.data.std(axis=0)).float()
    order = np.argsort(found.data[:, 0], kind="stable")
    ends = (0, 100, 160, 300, 442)
    clients = [Client(f"c{k}", order[a:b]) for k, (a, b) in enumerate(pairwise(ends))]
    y = torch.from_numpy(found.target).float()
    raw = Federation("diabetes", x, y, (), tuple(clients), problem=Problem("regression"))
    return scaled_targets(raw)


def model(hidden: int = 8) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if not hidden:
            return Classifier(nn.Flatten(), nn.Linear(10, 1))
        return Classifier(nn.Sequential(nn.Linear(10, hidden), nn.Tanh()), nn.Linear(hidden, 1))


def local_sgd(
    start: Weights, data: Federation, client: Client, number: int, drift: Weights | None = None
) -> tuple[Weights, int]:
    """Written out: tanh layer, mean squared error, plain steps; no autograd of a module."""
    w = {name: t.clone().requires_grad_() for name, t in start.items()}
    key = (SEED, "main", "train", 0, client.name, number)
    plan = schedule(client.train, key, BATCH, EPOCHS, True)
    for positions, mask in zip(plan.positions, plan.mask, strict=True):
        rows = torch.from_numpy(client.train[positions[mask > 0]])
        hidden = torch.tanh(data.x[rows] @ w["body.0.weight"].T + w["body.0.bias"])
        said = (hidden @ w["head.weight"].T + w["head.bias"])[:, 0]
        loss = (said - data.y[rows]).square().sum() / len(rows)
        gradients = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for (name, t), g in zip(w.items(), gradients, strict=True):
                t.sub_(LR * (g + (drift[name] if drift else 0.0)))
    return {name: t.detach() for name, t in w.items()}, plan.steps


def ours(name: str, data: Federation) -> Weights:
    settings = Settings(Optimiser("sgd", LR), EPOCHS, BATCH)
    made = make_holdings(find(name).recipe(), data, model(), settings, chunk=4, seed=SEED)
    return run(made, ROUNDS).shared


def test_fedavg_of_numbers_is_the_mean_by_size(diabetes: Federation) -> None:
    x = {name: t.detach() for name, t in model().state_dict().items()}
    total = sum(len(client.train) for client in diabetes.clients)
    for number in range(1, ROUNDS + 1):
        found = [(c, local_sgd(x, diabetes, c, number)[0]) for c in diabetes.clients]
        shares = [(len(client.train) / total, w) for client, w in found]
        x = {name: torch.stack([s * w[name] for s, w in shares]).sum(dim=0) for name in x}
    assert_close(ours("fedavg", diabetes), x, 1e-6)


def test_scaffold_of_numbers_follows_algorithm_1_with_option_2(diabetes: Federation) -> None:
    x = {name: t.detach() for name, t in model().state_dict().items()}
    c = {name: torch.zeros_like(t) for name, t in x.items()}
    own = {client.name: dict(c) for client in diabetes.clients}
    for number in range(1, ROUNDS + 1):
        moves, changes = [], []
        for client in diabetes.clients:
            drift = {name: c[name] - own[client.name][name] for name in c}
            y, steps = local_sgd(x, diabetes, client, number, drift)
            new = {n: own[client.name][n] - c[n] + (x[n] - y[n]) / (steps * LR) for n in x}
            moves.append({n: y[n] - x[n] for n in x})
            changes.append({n: new[n] - own[client.name][n] for n in x})
            own[client.name] = new
        x = {n: x[n] + torch.stack([move[n] for move in moves]).mean(dim=0) for n in x}
        c = {n: c[n] + torch.stack([change[n] for change in changes]).mean(dim=0) for n in c}
    assert_close(ours("scaffold", diabetes), x, 1e-6)


def linear(data: Federation, loss: Loss, rounds: int, lr: float) -> Weights:
    """One full-batch step a round: federated gradient descent."""
    settings = Settings(Optimiser("sgd", lr), 1, 512, loss)
    made = make_holdings(find("fedavg").recipe(), data, model(0), settings, chunk=4)
    return run(made, rounds).shared


def test_a_linear_model_becomes_that_of_least_squares(diabetes: Federation) -> None:
    found = linear(diabetes, SQUARED, 2000, 0.2)
    exact = LinearRegression().fit(diabetes.x.double(), diabetes.y.double())
    said = diabetes.x.double() @ found["head.weight"][0].double() + found["head.bias"].double()
    np.testing.assert_allclose(said, exact.predict(diabetes.x.double()), atol=0.02)


def test_the_pinball_loss_learns_a_quantile(diabetes: Federation) -> None:
    found = linear(diabetes, Pinball(0.9), 1500, 0.05)
    said = diabetes.x @ found["head.weight"][0] + found["head.bias"]
    assert float((diabetes.y <= said).double().mean()) == pytest.approx(0.9, abs=0.02)
    exact = QuantileRegressor(quantile=0.9, alpha=0.0).fit(diabetes.x, diabetes.y)
    assert float(np.corrcoef(said, exact.predict(diabetes.x))[0, 1]) > 0.97
