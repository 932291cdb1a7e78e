"""Every first method against plain loops written from the papers' equations, on real MNIST."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers import assert_close
from plain_loops import (
    LR,
    ROUNDS,
    Plain,
    Weights,
    combination,
    logistic,
    mlp,
    momenta,
    normalised_mlp,
    ours,
)
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.data.federation import Client, Federation

pytestmark = pytest.mark.real_data


@momenta
@pytest.mark.parametrize("make", [mlp, normalised_mlp])
def test_fedavg_is_the_mean_by_size(
    mnist: Federation, momentum: float, make: Callable[[], nn.Module]
) -> None:
    plain = Plain(mnist, make(), momentum)
    x = plain.start()
    for t in range(1, ROUNDS + 1):
        x = combination(plain.shares, [plain.local_sgd(x, c, t)[0] for c in plain.clients])
    assert_close(ours("fedavg", mnist, make(), momentum).shared, x, 1e-5)


@momenta
def test_fedprox_adds_the_pull_to_every_gradient(mnist: Federation, momentum: float) -> None:
    plain = Plain(mnist, mlp(), momentum)
    x = plain.start()
    for t in range(1, ROUNDS + 1):
        sent = x

        def pull(name: str, w: Tensor, sent: Weights = sent) -> Tensor:
            return 0.5 * (w - sent[name])

        x = combination(plain.shares, [plain.local_sgd(sent, c, t, pull)[0] for c in plain.clients])
    assert_close(ours("fedprox", mnist, mlp(), momentum, mu=0.5).shared, x, 1e-5)


@pytest.mark.parametrize("server_lr", [1.0, 0.7])
def test_scaffold_follows_algorithm_1_with_option_2(mnist: Federation, server_lr: float) -> None:
    plain = Plain(mnist, mlp(), 0.0)
    x = plain.start()
    c = {n: torch.zeros_like(t) for n, t in x.items()}
    own = {client.name: dict(c) for client in plain.clients}
    for t in range(1, ROUNDS + 1):
        moves, changes = [], []
        for client in plain.clients:
            c_k = own[client.name]

            def drift(name: str, w: Tensor, c_k: Weights = c_k, c: Weights = c) -> Tensor:
                return c[name] - c_k[name]

            y, steps = plain.local_sgd(x, client, t, drift)
            new = {n: c_k[n] - c[n] + (x[n] - y[n]) / (steps * LR) for n in x}
            moves.append({n: y[n] - x[n] for n in x})
            changes.append({n: new[n] - c_k[n] for n in x})
            own[client.name] = new
        quarter = [1 / 4] * 4
        step, shift = combination(quarter, moves), combination(quarter, changes)
        x = {n: x[n] + server_lr * step[n] for n in x}
        c = {n: c[n] + shift[n] for n in c}
    result = ours("scaffold", mnist, mlp(), server_lr=server_lr)
    assert_close(result.shared, x, 1e-5)
    assert_close(result.progress.state.memory["control"], c, 1e-4)


@momenta
def test_fednova_averages_normalised_gradients(mnist: Federation, momentum: float) -> None:
    """With a in closed form: τ, or [τ - ρ(1-ρ^τ)/(1-ρ)]/(1-ρ) under momentum ρ."""
    plain = Plain(mnist, mlp(), momentum)
    x = plain.start()
    for t in range(1, ROUNDS + 1):
        directions, lengths = [], []
        for client in plain.clients:
            y, tau = plain.local_sgd(x, client, t)
            rho = momentum
            a = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
            directions.append({n: (x[n] - y[n]) / a for n in x})
            lengths.append(a)
        effective = sum(p * a for p, a in zip(plain.shares, lengths, strict=True))
        d = combination(plain.shares, directions)
        x = {n: x[n] - effective * d[n] for n in x}
    assert_close(ours("fednova", mnist, mlp(), momentum).shared, x, 1e-5)


@momenta
def test_fedbn_averages_everything_but_batch_norm(mnist: Federation, momentum: float) -> None:
    plain = Plain(mnist, normalised_mlp(), momentum)
    own = {client.name: plain.start() for client in plain.clients}
    for t in range(1, ROUNDS + 1):
        trained = [plain.local_sgd(own[c.name], c, t)[0] for c in plain.clients]
        mean = combination(plain.shares, trained)
        for client, kept in zip(plain.clients, trained, strict=True):
            own[client.name] = {n: kept[n] if "body.2." in n else mean[n] for n in mean}
    result = ours("fedbn", mnist, normalised_mlp(), momentum)
    for client in plain.clients:
        assert_close(result.model_of(client.name), own[client.name], 1e-5)


@momenta
def test_ditto_trains_a_personal_model_beside_fedavg(mnist: Federation, momentum: float) -> None:
    plain = Plain(mnist, mlp(), momentum)
    x = plain.start()
    v = {client.name: x for client in plain.clients}
    for t in range(1, ROUNDS + 1):
        sent = x

        def pull(name: str, w: Tensor, sent: Weights = sent) -> Tensor:
            return 0.8 * (w - sent[name])

        for client in plain.clients:
            v[client.name] = plain.local_sgd(v[client.name], client, t, pull, phase=1)[0]
        x = combination(plain.shares, [plain.local_sgd(sent, c, t)[0] for c in plain.clients])
    result = ours("ditto", mnist, mlp(), momentum, lam=0.8)
    assert_close(result.shared, x, 1e-5)
    for client in plain.clients:
        assert_close(result.backend.private_of(client.name)["personal"], v[client.name], 1e-5)


@momenta
def test_local_never_meets(mnist: Federation, momentum: float) -> None:
    plain = Plain(mnist, mlp(), momentum)
    result = ours("local", mnist, mlp(), momentum)
    for client in plain.clients:
        w = plain.start()
        for t in range(1, ROUNDS + 1):
            w, _ = plain.local_sgd(w, client, t)
        assert_close(result.model_of(client.name), w, 1e-5)


@momenta
def test_central_trains_on_the_union(mnist: Federation, momentum: float) -> None:
    plain = Plain(mnist, logistic(), momentum)
    union = Client("pooled", np.concatenate([client.train for client in plain.clients]))
    w = plain.start()
    for t in range(1, ROUNDS + 1):
        w, _ = plain.local_sgd(w, union, t)
    assert_close(ours("central", mnist, logistic(), momentum).shared, w, 1e-5)


def test_scores_are_the_accuracy_and_loss_of_plain_forward_passes(mnist: Federation) -> None:
    scored = mnist.with_data(
        clients=tuple(Client(c.name, c.train, test=c.train[:50]) for c in mnist.clients),
        central_test=np.arange(3000, 3400),
    )
    result = ours("fedavg", scored, mlp())
    model = mlp().eval()
    model.load_state_dict(result.shared)
    with torch.no_grad():
        for client, rows in [("", scored.central_test)] + [
            (c.name, c.test) for c in scored.clients
        ]:
            logits, y = model(scored.x[rows]), scored.y[rows]
            on = "central" if client == "" else "seen"
            key = (ROUNDS, "global", on, client, "none", "test")
            accuracy = float((logits.argmax(dim=1) == y).float().mean())
            assert result.scores[(*key, "accuracy")] == pytest.approx(accuracy, abs=1e-6)
            loss = float(F.cross_entropy(logits, y))
            assert result.scores[(*key, "loss")] == pytest.approx(loss, abs=1e-5)
