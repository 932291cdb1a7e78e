"""Optimiser steps on stacks against torch's own optimisers, client by client."""

from __future__ import annotations

import pytest
import torch

from fedskew.engine.optim import Optimiser

SETTINGS = [
    Optimiser("sgd", 0.1),
    Optimiser("sgd", 0.1, momentum=0.9),
    Optimiser("sgd", 0.1, momentum=0.5, weight_decay=0.01),
    Optimiser("adam", 0.01),
    Optimiser("adam", 0.01, weight_decay=0.1),
]


def torch_optimiser(settings: Optimiser, parameter: torch.Tensor) -> torch.optim.Optimizer:
    if settings.kind == "adam":
        return torch.optim.Adam([parameter], settings.lr, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        [parameter], settings.lr, settings.momentum, weight_decay=settings.weight_decay
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_stack_steps_as_each_client_would_with_torch(settings: Optimiser) -> None:
    """Three clients, five steps; the third leaves after two, so the stack is narrowed."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 4, generator=generator)
    gradients = torch.randn(5, 3, 4, generator=generator)
    parameters = [start.clone()]
    state = settings.start(parameters)
    lr = torch.tensor(settings.lr, dtype=torch.float64)
    for step in range(5):
        if step == 2:
            third = parameters[0][2].clone()
            parameters = [p[:2] for p in parameters]
            state = [[t[:2] for t in moments] for moments in state]
        settings.step(parameters, [gradients[step, : len(parameters[0])]], state, lr)
    ours = [*parameters[0], third]
    for k, steps in enumerate((5, 5, 2)):
        parameter = start[k].clone().requires_grad_()
        theirs = torch_optimiser(settings, parameter)
        for step in range(steps):
            parameter.grad = gradients[step, k].clone()
            theirs.step()
        torch.testing.assert_close(ours[k], parameter.detach(), rtol=1e-6, atol=1e-6)


def test_momentum_makes_a_gradient_travel_further() -> None:
    """1 + 1/2 + 1/4 + ... = 2 for ρ = 1/2; a single unit gradient ends lr·2 away."""
    settings = Optimiser("sgd", 0.1, momentum=0.5)
    assert settings.travelled_per_gradient() == 2.0
    parameter = torch.zeros(1, 1)
    state = settings.start([parameter])
    for step in range(40):
        gradient = torch.full((1, 1), 1.0 if step == 0 else 0.0)
        settings.step([parameter], [gradient], state, torch.tensor(0.1, dtype=torch.float64))
    assert float(parameter) == pytest.approx(-0.2, abs=1e-6)
