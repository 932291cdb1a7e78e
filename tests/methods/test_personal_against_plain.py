"""The personalised methods against plain loops written from the papers' equations, on MNIST.

The loops share nothing with the package but the order of the batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest
import torch
from helpers import assert_close
from plain_loops import (
    BATCH,
    EPOCHS,
    LR,
    ROUNDS,
    SEED,
    Plain,
    Weights,
    combination,
    momenta,
    ours,
    seeded,
)
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.federate.rows import rows_of, score_tasks
from fedskew.federate.tasks import Ask
from fedskew.methods import find
from fedskew.models.registry import Classifier

pytestmark = pytest.mark.real_data


def smooth() -> nn.Module:
    """No ReLU: its corner would turn a rounding error into another gradient now and then."""
    return seeded(
        lambda: Classifier(
            nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Tanh()), nn.Linear(16, 10)
        )
    )


class Double(nn.Module):
    """Samples in double precision."""

    def forward(self, x: Tensor) -> Tensor:
        return x.double()


def normalised() -> nn.Module:
    """In double precision: to normalise two samples is to divide by their difference, which
    makes the rounding of single precision visible."""
    return seeded(
        lambda: Classifier(
            nn.Sequential(
                Double(), nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU()
            ),
            nn.Linear(16, 10),
        ).double()
    )


both_models = pytest.mark.parametrize("make", [smooth, normalised])


@pytest.fixture(scope="session")
def awkward(mnist: Federation) -> Federation:
    """The same clients, but one lacks two digits, and two have 81 and 62 samples: with batches of
    20 their last ones hold one and two."""
    a, b, c, d = mnist.clients
    without = c.train[mnist.y.numpy()[c.train] > 1]
    clients = (
        a,
        Client(b.name, b.train[:81]),
        Client(c.name, without),
        Client(d.name, d.train[:62]),
    )
    return mnist.with_data(clients=clients)


def state_of(model: nn.Module) -> Weights:
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def started(plain: Plain, start: Mapping[str, Tensor]) -> nn.Module:
    model = copy.deepcopy(plain.model).train()
    model.load_state_dict(dict(start))
    return model


def sgd(parameters: Iterator[nn.Parameter], momentum: float, lr: float = LR) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def batches(
    plain: Plain, client: Client, key: tuple[str | int, ...], epochs: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of a client's batches, without padding."""
    ragged = any(isinstance(layer, nn.BatchNorm1d) for layer in plain.model.modules())
    plan = schedule(client.train, (SEED, "main", *key), BATCH, epochs, not ragged)
    for positions, mask in zip(plan.positions, plan.mask, strict=True):
        rows = torch.from_numpy(client.train[positions[mask > 0]])
        yield plain.data.x[rows], plain.data.y[rows]


def backwards(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def with_mean_body(shares: list[float], trained: list[Weights]) -> list[Weights]:
    """Every client with the mean body and the head it trained itself."""
    mean = combination(shares, trained)
    return [{n: t if "head." in n else mean[n] for n, t in own.items()} for own in trained]


@momenta
@both_models
def test_fedper_averages_the_body_and_leaves_the_heads(
    mnist: Federation,
    momentum: float,
    make: Callable[[], nn.Module],
) -> None:
    plain = Plain(mnist, make(), momentum)
    own = [plain.start() for _ in plain.clients]
    for t in range(1, ROUNDS + 1):
        trained = [
            plain.local_sgd(w, client, t)[0] for w, client in zip(own, plain.clients, strict=True)
        ]
        own = with_mean_body(plain.shares, trained)
    result = ours("fedper", mnist, make(), momentum)
    for client, expected in zip(plain.clients, own, strict=True):
        assert_close(result.model_of(client.name), expected, 1e-5)


@momenta
@both_models
def test_fedrep_trains_the_head_and_then_the_body(
    mnist: Federation,
    momentum: float,
    make: Callable[[], nn.Module],
) -> None:
    plain = Plain(mnist, make(), momentum)
    own = [plain.start() for _ in plain.clients]
    for t in range(1, ROUNDS + 1):
        trained = []
        for w, client in zip(own, plain.clients, strict=True):
            model = started(plain, w)
            for phase, (part, epochs) in enumerate((("head", EPOCHS), ("body", 1))):
                optimiser = sgd(model.get_submodule(part).parameters(), momentum)
                for x, y in batches(plain, client, ("train", phase, client.name, t), epochs):
                    model.zero_grad()
                    backwards(F.cross_entropy(model(x), y))
                    optimiser.step()
            trained.append(state_of(model))
        own = with_mean_body(plain.shares, trained)
    result = ours("fedrep", mnist, make(), momentum)
    for client, expected in zip(plain.clients, own, strict=True):
        assert_close(result.model_of(client.name), expected, 1e-5)


@momenta
@both_models
def test_fedrod_is_two_optimisers_on_two_losses(
    awkward: Federation, momentum: float, make: Callable[[], nn.Module]
) -> None:
    """The logarithm of a missing digit's count is -∞ here: it is never a target."""
    plain = Plain(awkward, make(), momentum)
    shared = plain.start()
    precision = shared["head.weight"].dtype
    personal = [nn.Linear(16, 10, dtype=precision) for _ in plain.clients]
    for layer in personal:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    missing = 0
    for t in range(1, ROUNDS + 1):
        trained = []
        for h, client in zip(personal, plain.clients, strict=True):
            counts = torch.bincount(awkward.y[client.train], minlength=10)
            missing += int((counts == 0).sum())
            model = started(plain, shared)
            generic_step = sgd(model.parameters(), momentum)
            personal_step = sgd(h.parameters(), momentum)
            for x, y in batches(plain, client, ("train", 0, client.name, t), EPOCHS):
                features = model.get_submodule("body")(x)
                logits = model.get_submodule("head")(features)
                generic_step.zero_grad()
                backwards(F.cross_entropy(logits + counts.log(), y))
                generic_step.step()
                personal_step.zero_grad()
                backwards(F.cross_entropy(logits.detach() + h(features.detach()), y))
                personal_step.step()
            trained.append(state_of(model))
        shared = combination(plain.shares, trained)
    assert missing >= 2 * ROUNDS
    result = ours("fedrod", awkward, make(), momentum)
    assert_close(result.shared, shared, 1e-5)
    for h, client in zip(personal, plain.clients, strict=True):
        kept = result.backend.private_of(client.name)["model"]
        assert_close(kept, {f"personal.{n}": p for n, p in state_of(h).items()}, 1e-5)


def test_fedrod_without_balancing_shares_the_model_of_fedavg(awkward: Federation) -> None:
    fedrod = ours("fedrod", awkward, smooth(), 0.9, gamma=0.0)
    assert_close(fedrod.shared, ours("fedavg", awkward, smooth(), 0.9).shared, 1e-6)


def step_ahead(
    model: nn.Module, optimiser: torch.optim.SGD, x: Tensor, y: Tensor, alpha: float
) -> None:
    """One batch of Per-FedAvg; batch statistics of fewer than two samples do not exist."""
    normalises = any(isinstance(layer, nn.BatchNorm1d) for layer in model.modules())
    whole = len(x) < (4 if normalises else 2)
    first, second = (slice(None), slice(None)) if whole else (slice(0, None, 2), slice(1, None, 2))
    here = [p.detach().clone() for p in model.parameters()]
    model.zero_grad()
    backwards(F.cross_entropy(model(x[first]), y[first]))
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p.sub_(alpha * p.grad)
    model.zero_grad()
    backwards(F.cross_entropy(model(x[second]), y[second]))
    with torch.no_grad():
        for p, before in zip(model.parameters(), here, strict=True):
            p.copy_(before)
    optimiser.step()


def plain_per_fedavg(plain: Plain, alpha: float) -> Weights:
    shared = plain.start()
    for t in range(1, ROUNDS + 1):
        trained = []
        for client in plain.clients:
            model = started(plain, shared)
            optimiser = sgd(model.parameters(), plain.momentum)
            for x, y in batches(plain, client, ("train", 0, client.name, t), EPOCHS):
                step_ahead(model, optimiser, x, y, alpha)
            trained.append(state_of(model))
        shared = combination(plain.shares, trained)
    return shared


@momenta
@both_models
def test_per_fedavg_follows_the_gradient_one_step_ahead(
    awkward: Federation, momentum: float, make: Callable[[], nn.Module]
) -> None:
    expected = plain_per_fedavg(Plain(awkward, make(), momentum), 0.05)
    result = ours("per-fedavg", awkward, make(), momentum, alpha=0.05)
    assert_close(result.shared, expected, 1e-5)


@momenta
def test_per_fedavg_is_scored_after_an_epoch_at_the_inner_rate_on_training_data(
    awkward: Federation, momentum: float
) -> None:
    tested = awkward.with_data(
        clients=tuple(
            Client(c.name, c.train, test=awkward.clients[k - 1].train[:60])
            for k, c in enumerate(awkward.clients)
        )
    )
    result = ours("per-fedavg", tested, smooth(), momentum, alpha=0.05)
    adapts = find("per-fedavg").recipe(alpha=0.05).adapts
    assert adapts is not None
    plan = replace(result.holdings.plan, adapts=(adapts,))
    result.backend.begin(plan)
    roster = result.backend.roster
    asked = score_tasks(plan, roster, result.progress.state, ROUNDS, [0], last=True)
    kept = result.progress.kept
    asks = [Ask(name, tuple(tasks), since=kept.get(name, "")) for name, tasks in asked.items()]
    rows = rows_of(plan, roster, asks, result.backend.exchange(asks))
    found = {(r.client, r.metric): r.value for r in rows if r.adapted == "fine-tuned 1"}
    assert len(found) == len(rows)

    plain = Plain(tested, smooth(), momentum)
    for client in plain.clients:
        model = started(plain, result.shared)
        optimiser = sgd(model.parameters(), momentum, lr=0.05)
        for x, y in batches(plain, client, ("adapt", 0, client.name, ROUNDS), 1):
            optimiser.zero_grad()
            backwards(F.cross_entropy(model(x), y))
            optimiser.step()
        with torch.no_grad():
            logits, y = model(tested.x[client.test]), tested.y[client.test]
        loss, correct = float(F.cross_entropy(logits, y)), (logits.argmax(dim=1) == y).float()
        assert found[client.name, "loss"] == pytest.approx(loss, abs=1e-4)
        assert found[client.name, "accuracy"] == pytest.approx(float(correct.mean()), abs=1e-6)
