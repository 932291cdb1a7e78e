"""Law 2: one client alone trains plainly; identical clients leave the mean unchanged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import (
    Tensors,
    assert_close,
    copied,
    every_method,
    method_holdings,
    needs_noise,
    run,
    toy_federation,
)
from torch.nn import functional as F

from fedskew.data.federation import Client
from fedskew.engine.batches import schedule
from fedskew.engine.optim import Optimiser
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.parts.invariance import IbIrm, Irm
from fedskew.parts.objective import Erm
from fedskew.parts.personal import OneStepAhead


def neutral(name: str) -> dict[str, Any]:
    """The knobs at which a method adds nothing to plain training, as its card says."""
    knobs: dict[str, Any] = {}
    for reduction in find(name).card.reduces:
        if reduction.method in ("fedavg", "local"):
            knobs |= reduction.at
    return knobs


def plainly_trained(holdings: Holdings, client: str, rounds: int) -> Tensors:
    """What a textbook PyTorch loop makes of the client's batches; no engine, no parts."""
    model = copy.deepcopy(holdings.plan.module).train()
    model.load_state_dict(holdings.plan.initial)
    rows = holdings.clients[client].train
    has_statistics = any("running_mean" in name for name in model.state_dict())
    settings = holdings.plan.settings
    for round_number in range(1, rounds + 1):
        for number, phase in enumerate(holdings.plan.recipe.trains):
            if phase.model != "shared":
                continue
            moving = phase.trains.names(model)
            optimiser = torch.optim.SGD(
                [p for n, p in model.named_parameters() if n in moving],
                lr=settings.optimiser.lr if phase.lr is None else phase.lr,
                momentum=settings.optimiser.momentum,
            )
            key = (holdings.plan.seed, holdings.plan.stage, "train", number, client, round_number)
            epochs = settings.epochs if phase.epochs is None else phase.epochs
            plan = schedule(rows, key, settings.batch_size, epochs, not has_statistics)
            for positions, mask in zip(plan.positions, plan.mask, strict=True):
                chosen = torch.from_numpy(rows[positions[mask > 0]])
                model.zero_grad()
                logits = model(holdings.federation.x[chosen])
                loss = F.cross_entropy(logits, holdings.federation.y[chosen])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    return copied(model.state_dict())


@every_method
@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
def test_one_client_alone_trains_as_plain_pytorch_does(name: str, kind: str) -> None:
    recipe = find(name).recipe(**neutral(name))
    if any((phase.objective or recipe.objective) != Erm() for phase in recipe.trains):
        pytest.skip("its objective is not the cross-entropy of the plain loop")
    settings = Settings(Optimiser("sgd", 0.1, momentum=0.5), epochs=2, batch_size=8)
    knobs = neutral(name) or None
    alone = method_holdings(name, kind, knobs, federation=toy_federation((19,)), settings=settings)
    trainer = "pooled" if recipe.pools else "c0"
    result = run(alone, 2)
    assert_close(result.model_of(trainer), plainly_trained(alone, trainer, 2), 1e-5)


@every_method
def test_identical_clients_end_where_one_of_them_would_alone(name: str) -> None:
    knobs = {"noise": 0.0} if name == "private" else {}  # its noise differs with their number
    recipe = find(name).recipe(**knobs)
    if needs_noise(recipe):
        pytest.skip("noise is keyed by the client's name, so no two clients are identical")
    if isinstance(recipe.objective, OneStepAhead | Irm | IbIrm):
        pytest.skip("which half a sample falls in is keyed by the client's name; see its own test")
    one = toy_federation((16,))
    rows = one.clients[0].train
    many = one.with_data(clients=tuple(Client(f"twin{i}", rows) for i in range(3)))
    settings = Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=48)
    together = run(method_holdings(name, knobs=knobs, federation=many, settings=settings))
    alone = run(method_holdings(name, knobs=knobs, federation=one, settings=settings))
    assert_close(together.shared, alone.shared, 1e-5)
    for client in many.clients if not recipe.pools else ():
        assert_close(together.model_of(client.name), alone.model_of("c0"), 1e-5)
