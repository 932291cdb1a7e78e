"""Every objective over environments against plain loops written from its definition, on real MNIST.

The loops share nothing with the package but the order of the batches: penalties come from autograd
as the definitions say, not from closed forms, and steps from torch's own optimisers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close, copied, make_holdings, run
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.registry import Classifier
from fedskew.rng import stream

Batches = list[tuple[Tensor, Tensor]]
Gradients = dict[str, Tensor]
ROUNDS, EPOCHS, BATCH, LR, SEED, ANNEAL = 3, 2, 8, 0.05, 7, 10

pytestmark = pytest.mark.real_data


@pytest.fixture(scope="session")
def mnist(data_dir: Path) -> Federation:
    """Three clients: with three environments, with two of them, and with a single one.

    The last has 43 samples, so that its last batches are short and of an odd number.
    """
    data = load("mnist", data_dir)
    rng = np.random.default_rng(1)
    rows = rng.permutation(4000)
    clients = (
        Client("three", rows[:96]), Client("two", rows[96:176]), Client("one", rows[176:219]),
    )  # fmt: skip
    environment = torch.zeros(4000, dtype=torch.int64)
    environment[rows[:96]] = torch.arange(96) % 3
    environment[rows[96:176]] = 2 * (torch.arange(80) % 2)
    environment[rows[176:219]] = 1
    x = F.avg_pool2d(data.x[:4000], 4)
    return Federation(
        "mnist", x, data.y[:4000].clone(), data.class_names, clients, environment=environment
    )


def model() -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        body = nn.Sequential(nn.Flatten(), nn.Linear(49, 12), nn.Tanh())
        return Classifier(body, nn.Linear(12, 10))


def losses(net: Classifier, batches: Batches) -> list[Tensor]:
    return [F.cross_entropy(net(x), y) for x, y in batches]


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()


def slopes(net: Classifier, batches: Batches) -> Tensor:
    """IRM's penalty with a factor on the logits that autograd differentiates by."""
    found = []
    for x, y in batches:
        scale = torch.ones((), requires_grad=True)
        halves = [F.cross_entropy(net(x)[h::2] * scale, y[h::2]) for h in (0, 1) if len(y) > h]
        grads = [torch.autograd.grad(half, scale, create_graph=True)[0] for half in halves]
        found.append(grads[0] * grads[1] if len(grads) == 2 else torch.zeros(()))
    return mean(found)


def variances(net: Classifier, batches: Batches) -> Tensor:
    return mean([net.body(x).var(dim=0).mean() if len(x) > 1 else x.sum() * 0 for x, _ in batches])


def lam(step: int, before: float, after: float) -> float:
    return before if step < ANNEAL else after


def kernels(a: Tensor, b: Tensor) -> Tensor:
    squares = (a[:, None] - b[None]).square().sum(dim=2)
    return sum((-(10.0**power) * squares).exp() for power in range(-3, 4)).mean()  # type: ignore


def pairwise(net: Classifier, batches: Batches, distance: Callable[..., Tensor]) -> Tensor:
    features = [net.body(x) for x, _ in batches]
    found = [distance(a, b) for a, b in combinations(features, 2)]
    return mean(found) if found else torch.zeros(())


def mmd(a: Tensor, b: Tensor) -> Tensor:
    return kernels(a, a) + kernels(b, b) - 2 * kernels(a, b)


def coral(a: Tensor, b: Tensor) -> Tensor:
    covariance = (torch.cov(a.T) - torch.cov(b.T)).square().mean()
    return (a.mean(dim=0) - b.mean(dim=0)).square().mean() + covariance


LOSSES: dict[str, Callable[[Classifier, Batches, int], Tensor]] = {
    "erm": lambda net, batches, step: mean(losses(net, batches)),
    "irm": lambda net, batches, step: (
        mean(losses(net, batches)) + lam(step, 1.0, 3.0) * slopes(net, batches)
    ),
    "vrex": lambda net, batches, step: (
        mean(losses(net, batches))
        + lam(step, 1.0, 10.0) * torch.stack(losses(net, batches)).var(correction=0)
    ),
    "ib-erm": lambda net, batches, step: (
        mean(losses(net, batches)) + lam(step, 0.0, 5.0) * variances(net, batches)
    ),
    "ib-irm": lambda net, batches, step: (
        mean(losses(net, batches))
        + lam(step, 1.0, 3.0) * slopes(net, batches)
        + lam(step, 0.0, 5.0) * variances(net, batches)
    ),
    "mmd": lambda net, batches, step: (
        mean(losses(net, batches)) + 0.1 * pairwise(net, batches, mmd)
    ),
    "coral": lambda net, batches, step: (
        mean(losses(net, batches)) + 2.0 * pairwise(net, batches, coral)
    ),
}
KNOBS: dict[str, dict[str, Any]] = {
    "erm": {},
    "irm": {"lam": 3.0, "anneal": ANNEAL},
    "vrex": {"anneal": ANNEAL},
    "ib-erm": {"lam": 5.0, "anneal": ANNEAL},
    "ib-irm": {"lam": 3.0, "ib": 5.0, "anneal": ANNEAL},
    "mmd": {"gamma": 0.1},
    "coral": {"gamma": 2.0},
    "groupdro": {"eta": 0.5},
    "and-mask": {"tau": 0.6},
    "sand-mask": {"tau": 0.4, "k": 1e-4},
    "mldg": {"beta": 0.7},
}


def grads(net: nn.Module, loss: Tensor) -> Gradients:
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def masked(net: Classifier, batches: Batches, mask: Callable[[Tensor], Tensor]) -> Gradients:
    by_environment = [grads(net, loss) for loss in losses(net, batches)]
    found = {}
    for name in by_environment[0]:
        stacked = torch.stack([g[name] for g in by_environment])
        kept = mask(stacked)
        found[name] = kept * stacked.mean(dim=0) / (1e-10 + kept.mean())
    return found


def soft_mask(stacked: Tensor) -> Tensor:
    variance = stacked.var(dim=0) if len(stacked) > 1 else torch.full_like(stacked[0], 1e-17)
    agreed = stacked.sign().mean(dim=0).abs() - 0.4
    return torch.tanh(1e-4 * agreed / variance).clamp(min=0).nan_to_num(0.0)


def looking_ahead(net: Classifier, batches: Batches, order: list[int]) -> Gradients:
    """First-order MLDG with a copy of the network that really takes a step."""
    total = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for i, j in zip(order, [*order[1:], order[0]], strict=True):
        here = grads(net, losses(net, [batches[i]])[0])
        ahead = copy.deepcopy(net)
        with torch.no_grad():
            for name, p in ahead.named_parameters():
                p -= LR * here[name]
        there = grads(ahead, losses(ahead, [batches[j]])[0])
        for name, sum_ in total.items():
            sum_ += (here[name] + 0.7 * there[name]) / len(order)
    return total


class PlainClient:
    """One client's textbook loop, and what it remembers between rounds."""

    def __init__(self, data: Federation, client: Client, objective: str) -> None:
        self.data, self.client, self.objective = data, client, objective
        self.step = 0
        assert data.environment is not None
        self.environment = data.environment.numpy()[client.train]
        self.shares = np.ones(3) / len(set(self.environment.tolist()))

    def train(self, weights: Gradients, round_number: int) -> Gradients:
        net = model()
        net.load_state_dict(weights)
        optimiser = torch.optim.SGD(net.parameters(), lr=LR)
        key = (SEED, "main", "train", 0, self.client.name, round_number)
        plan = schedule(self.client.train, key, BATCH, EPOCHS, True, self.environment, 3)
        draws = stream(0, "noise", "order", *key).standard_normal(
            (plan.steps, 3 * BATCH), dtype=np.float32
        )
        for t in range(plan.steps):
            positions, mask = plan.positions[t].reshape(3, -1), plan.mask[t].reshape(3, -1)
            ids = [e for e in range(3) if mask[e].any()]
            rows = [torch.from_numpy(self.client.train[positions[e][mask[e] > 0]]) for e in ids]
            batches = [(self.data.x[r], self.data.y[r]) for r in rows]
            order = np.argsort(draws[t].reshape(3, -1)[ids, 0]).tolist()
            found = self.followed(net, batches, ids, order)
            for name, p in net.named_parameters():
                p.grad = found[name]
            optimiser.step()
            self.step += 1
        return copied(net.state_dict())

    def followed(
        self, net: Classifier, batches: Batches, ids: list[int], order: list[int]
    ) -> Gradients:
        if self.objective in LOSSES:
            return grads(net, LOSSES[self.objective](net, batches, self.step))
        if self.objective == "and-mask":
            return masked(net, batches, lambda g: (g.sign().mean(dim=0).abs() >= 0.6).float())
        if self.objective == "sand-mask":
            return masked(net, batches, soft_mask)
        if self.objective == "mldg":
            return looking_ahead(net, batches, order)
        risks = losses(net, batches)
        for e, risk in zip(ids, risks, strict=True):
            self.shares[e] *= np.exp(0.5 * float(risk.detach()))
        self.shares /= self.shares[ids].sum()
        weighted = [float(self.shares[e]) * risk for e, risk in zip(ids, risks, strict=True)]
        return grads(net, torch.stack(weighted).sum())


def plainly(data: Federation, objective: str, aggregate: Callable[..., Tensor]) -> Gradients:
    weights = copied(model().state_dict())
    clients = [PlainClient(data, client, objective) for client in data.clients]
    sizes = np.array([len(client.train) for client in data.clients])
    for t in range(1, ROUNDS + 1):
        ends = [client.train(weights, t) for client in clients]
        weights = {
            name: aggregate(torch.stack([end[name] for end in ends]), start, sizes / sizes.sum())
            for name, start in weights.items()
        }
    return weights


def by_size(ends: Tensor, start: Tensor, shares: Any) -> Tensor:
    return torch.tensordot(torch.from_numpy(shares).float(), ends, dims=1)


def where_they_agree(ends: Tensor, start: Tensor, shares: Any) -> Tensor:
    p = torch.from_numpy(shares).float()
    agreement = torch.tensordot(p, (ends - start).sign(), dims=1).abs()
    mask = torch.where(agreement >= 0.8, torch.ones(()), agreement)
    return start + mask * torch.tensordot(p, ends - start, dims=1)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("objective", sorted(KNOBS))
def test_an_objective_follows_its_definition(mnist: Federation, objective: str, chunk: int) -> None:
    recipe = find(objective).recipe(**KNOBS[objective])
    settings = Settings(Optimiser("sgd", LR), EPOCHS, BATCH)
    holdings = make_holdings(recipe, mnist, model(), settings, chunk=chunk, seed=SEED)
    expected = plainly(mnist, objective, by_size)
    assert_close(run(holdings, ROUNDS).shared, expected, 2e-4)


@pytest.mark.parametrize("objective", ["erm", "irm", "groupdro"])
def test_an_objective_goes_with_another_aggregator(mnist: Federation, objective: str) -> None:
    recipe = find(objective).recipe(base={"name": "fedgma", "tau": 0.8}, **KNOBS[objective])
    settings = Settings(Optimiser("sgd", LR), EPOCHS, BATCH)
    holdings = make_holdings(recipe, mnist, model(), settings, seed=SEED)
    expected = plainly(mnist, objective, where_they_agree)
    assert_close(run(holdings, ROUNDS).shared, expected, 1e-3)
