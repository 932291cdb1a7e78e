"""Every first method against plain loops written from the papers' equations, on real MNIST.

The loops share nothing with the package but the order of the batches. Momentum starts anew in
every round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Run, assert_close, make_holdings, run
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import find
from fedskew.models.registry import Classifier

Weights = dict[str, Tensor]
ROUNDS, EPOCHS, BATCH, LR, SEED = 3, 2, 20, 0.01, 7

pytestmark = pytest.mark.real_data
momenta = pytest.mark.parametrize("momentum", [0.0, 0.9])


@pytest.fixture(scope="session")
def mnist(data_dir: Path) -> Federation:
    """Four clients of different sizes, each with mostly its own digits; 95 leaves a short batch."""
    data = load("mnist", data_dir)
    labels = data.y[:4000].numpy()
    rng = np.random.default_rng(0)
    clients = []
    for k, size in enumerate((200, 95, 240, 160)):
        favourite = np.isin(labels, (k, k + 4))
        chance = np.where(favourite, 5.0, 1.0)
        rows = rng.choice(4000, size, replace=False, p=chance / chance.sum())
        clients.append(Client(f"client-{k}", np.sort(rows)))
    x = data.x[:4000].clone()
    return Federation("mnist", x, data.y[:4000].clone(), data.class_names, tuple(clients))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make()


def logistic() -> nn.Module:
    """Convex, so that rounding stays rounding over hundreds of steps with momentum."""
    return seeded(lambda: Classifier(nn.Flatten(), nn.Linear(784, 10)))


def mlp() -> nn.Module:
    return seeded(
        lambda: Classifier(
            nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU()), nn.Linear(16, 10)
        )
    )


def normalised_mlp() -> nn.Module:
    return seeded(
        lambda: Classifier(
            nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU()),
            nn.Linear(16, 10),
        )
    )


@dataclass
class Plain:
    """A federation seen by a plain loop: local SGD from given weights, and nothing else."""

    data: Federation
    model: nn.Module
    momentum: float

    @property
    def clients(self) -> list[Client]:
        return list(self.data.clients)

    @property
    def shares(self) -> list[float]:
        total = sum(len(c.train) for c in self.clients)
        return [len(c.train) / total for c in self.clients]

    def start(self) -> Weights:
        return {n: t.detach().clone() for n, t in self.model.state_dict().items()}

    def local_sgd(
        self,
        start: Mapping[str, Tensor],
        client: Client,
        round_number: int,
        extra: Callable[[str, Tensor], Tensor | float] = lambda name, w: 0.0,
        phase: int = 0,
        moves: str = "",
    ) -> tuple[Weights, int]:
        """EPOCHS over the client's data; ``extra(name, w)`` is added to every gradient.

        Only parameters whose names begin with ``moves`` are changed.
        """
        model = copy.deepcopy(self.model).train()
        model.load_state_dict(dict(start))
        ragged = any(isinstance(layer, nn.BatchNorm1d) for layer in model.modules())
        key = (SEED, "main", "train", phase, client.name, round_number)
        plan = schedule(client.train, key, BATCH, EPOCHS, not ragged)
        velocity = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for positions, mask in zip(plan.positions, plan.mask, strict=True):
            rows = torch.from_numpy(client.train[positions[mask > 0]])
            loss = F.cross_entropy(model(self.data.x[rows]), self.data.y[rows])
            named = dict(model.named_parameters())
            gradients = torch.autograd.grad(loss, list(named.values()))
            with torch.no_grad():
                for (name, w), gradient in zip(named.items(), gradients, strict=True):
                    g = gradient + extra(name, w)
                    velocity[name] = self.momentum * velocity[name] + g
                    if name.startswith(moves):
                        w.sub_(LR * velocity[name])
        return {n: t.detach().clone() for n, t in model.state_dict().items()}, plan.steps


def combination(weights: list[float], models: list[Weights]) -> Weights:
    return {
        n: sum(p * m[n] for p, m in zip(weights, models, strict=True))  # type: ignore[misc]
        if t.is_floating_point()
        else t
        for n, t in models[0].items()
    }


def ours(name: str, data: Federation, model: nn.Module, momentum: float = 0.0, **knobs: Any) -> Run:
    settings = Settings(Optimiser("sgd", LR, momentum), EPOCHS, BATCH)
    holdings = make_holdings(find(name).recipe(**knobs), data, model, settings, chunk=4, seed=SEED)
    return run(holdings, ROUNDS)


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
