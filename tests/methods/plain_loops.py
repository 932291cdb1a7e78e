"""Plain loops written from the papers' equations; they share nothing with the package but the
order of the batches. Momentum starts anew in every round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import Run, make_holdings, run
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.registry import Classifier

Weights = dict[str, Tensor]
ROUNDS, EPOCHS, BATCH, LR, SEED = 3, 2, 20, 0.01, 7

momenta = pytest.mark.parametrize("momentum", [0.0, 0.9])


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
