"""A loss that is divided takes all that is added to it along: pulls and weight decay.

Dividing the loss by λ is then nothing but a learning rate divided by λ, and Adam, which does not
see the length of gradients, does not notice it at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close, make_holdings, run, toy_federation, toy_model
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedskew.engine.optim import Optimiser
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.types import Tensors

LAM, DECAY, MU = 100.0, 0.01, 0.05
ALONE = replace(toy_federation([16]), unseen=())
"""One client with two environments of eight samples, so that a step sees all of them."""


def holdings_of(method: str, optimiser: Optimiser, **knobs: Any) -> Holdings:
    knobs = {"lam": LAM, "before": 1.0, "anneal": 3, **knobs}
    settings = Settings(optimiser, epochs=6, batch_size=8)
    return make_holdings(find(method).recipe(**knobs), ALONE, toy_model(), settings)


def trained(method: str, optimiser: Optimiser, **knobs: Any) -> Tensors:
    return run(holdings_of(method, optimiser, **knobs), 1).shared


def by_plain_pytorch(optimiser: Optimiser, mu: float, rescale: bool) -> Tensors:
    """VREx's own words: mean risk + λ·variance of risks + δ/2·|w|² + μ/2·|w - w₀|², in autograd."""
    module = toy_model()
    weights = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    start = {n: p.detach().clone() for n, p in weights.items()}
    kind = torch.optim.Adam if optimiser.kind == "adam" else torch.optim.SGD
    steps = kind(weights.values(), lr=optimiser.lr)
    rows = ALONE.clients[0].train
    environment = np.asarray(ALONE.environment)[rows]
    for step in range(6):
        lam = LAM if step >= 3 else 1.0
        risks = torch.stack(
            [
                F.cross_entropy(functional_call(module, weights, (ALONE.x[own],)), ALONE.y[own])
                for own in (rows[environment == 0], rows[environment == 1])
            ]
        )
        loss = risks.mean() + lam * risks.var(unbiased=False)
        loss = loss + optimiser.weight_decay / 2 * squares(weights)
        loss = loss + mu / 2 * squares({n: w - start[n] for n, w in weights.items()})
        steps.zero_grad()
        (loss / lam if rescale else loss).backward()
        steps.step()
    return {n: w.detach() for n, w in weights.items()}


def squares(tensors: Tensors) -> Tensor:
    return sum((t.square().sum() for t in tensors.values()), torch.zeros(()))


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("mu", [0.0, MU])
def test_a_divided_step_is_that_of_the_divided_whole(kind: Any, mu: float, rescale: bool) -> None:
    optimiser = Optimiser(kind, 0.01, weight_decay=DECAY)
    base = {"name": "fedprox", "mu": mu}

    ours = trained("vrex", optimiser, base=base, rescale=rescale)

    assert_close(ours, by_plain_pytorch(optimiser, mu, rescale), 2e-5)


@pytest.mark.parametrize("method", ["irm", "vrex"])
def test_adam_with_decay_and_a_pull_does_not_notice_that_the_loss_is_divided(method: str) -> None:
    """C4: a decay of .01 acted like one of 1 where the loss was divided by 100."""
    adam = Optimiser("adam", 0.01, weight_decay=DECAY)
    base = {"name": "fedprox", "mu": MU}

    divided = trained(method, adam, base=base, rescale=True, anneal=0)
    whole = trained(method, adam, base=base, rescale=False, anneal=0)

    assert_close(divided, whole, 1e-4)


@pytest.mark.parametrize("method", ["irm", "ib-irm"])
def test_dividing_is_a_smaller_learning_rate_for_sgd_with_momentum_decay_and_a_pull(
    method: str,
) -> None:
    sgd = Optimiser("sgd", 0.05, momentum=0.5, weight_decay=DECAY)
    base = {"name": "fedprox", "mu": MU}

    divided = trained(method, sgd, base=base, rescale=True, anneal=0)
    slower = trained(method, replace(sgd, lr=0.05 / LAM), base=base, anneal=0)

    assert_close(divided, slower, 1e-6)


def test_control_variates_are_measured_in_steps_and_are_not_divided() -> None:
    """c_k = (w₀ - w)/(steps·lr): the mean of divided gradients, so g/λ - c_k + c has one scale."""
    sgd = Optimiser("sgd", 0.05)

    divided = run(holdings_of("irm", sgd, base="scaffold", rescale=True, anneal=0), 3)
    slower = run(holdings_of("irm", replace(sgd, lr=0.05 / LAM), base="scaffold", anneal=0), 3)

    assert_close(divided.shared, slower.shared, 1e-6)
