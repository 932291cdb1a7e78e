"""What clients report: SCAFFOLD's variates and FedNova's lengths, against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import toy_federation, toy_model
from torch import Tensor

from fedskew.engine.optim import Optimiser
from fedskew.parts.report import Finished, LocalLength, VariateChange, accumulated_length

FEDERATION = toy_federation()


def finished(**changes: Any) -> Finished:
    known: dict[str, Any] = {
        "client": FEDERATION.clients[0],
        "x": FEDERATION.x,
        "y": FEDERATION.y,
        "classes": FEDERATION.classes,
        "module": toy_model(),
        "received": {"w": torch.tensor([1.0]), "count": torch.tensor(1)},
        "trained": {"w": torch.tensor([0.4]), "count": torch.tensor(3)},
        "changed": frozenset({"w"}),
        "steps": 2,
        "optimiser": Optimiser("sgd", 0.1),
        "private": {},
        "broadcast": {"control": {"w": torch.tensor([0.5])}},
        "public": np.arange(0),
        "rng": np.random.default_rng(0),
        "agreed": np.random.default_rng(1),
    }
    return Finished(**{**known, **changes})


def test_variates_of_a_first_round_start_from_zero() -> None:
    """(1 - 0.4)/(2·0.1) = 3 and c = 0.5: c_k⁺ = 0 - 0.5 + 3, which is also the change."""
    reported = VariateChange().report(finished())
    assert reported.sends["control_change"]["w"].tolist() == pytest.approx([2.5])
    assert reported.keeps["own_control"]["w"].tolist() == pytest.approx([2.5])


def test_variates_go_on_from_the_clients_own() -> None:
    """With c_k = 2 the change is still 3 - 0.5, and c_k⁺ = 2 - 0.5 + 3 = 4.5."""
    reported = VariateChange().report(finished(private={"own_control": {"w": torch.tensor([2.0])}}))
    assert reported.sends["control_change"]["w"].tolist() == pytest.approx([2.5])
    assert reported.keeps["own_control"]["w"].tolist() == pytest.approx([4.5])


def test_variates_under_momentum_divide_by_how_far_a_gradient_travels() -> None:
    """ρ = 1/2 doubles the way: (1 - 0.4)/(2·0.1·2) = 1.5."""
    reported = VariateChange().report(finished(optimiser=Optimiser("sgd", 0.1, momentum=0.5)))
    assert reported.sends["control_change"]["w"].tolist() == pytest.approx([1.0])


def test_variates_cover_only_what_was_trained_and_travels() -> None:
    reported = VariateChange().report(finished())
    assert reported.sends["control_change"].keys() == {"w"}
    assert reported.keeps["own_control"].keys() == {"w"}


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_length_with_momentum_is_the_closed_form(steps: int, momentum: float) -> None:
    rho = momentum
    closed = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    optimiser = Optimiser("sgd", 0.1, momentum)
    assert accumulated_length(steps, optimiser) == pytest.approx(closed)


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
def test_the_length_with_a_pull_is_the_geometric_sum(steps: int, mu: float) -> None:
    """a_{t+1} = (1 - lr·μ)·a_t + 1, so a_τ = (1 - k^τ)/(1 - k) with k = 1 - lr·μ."""
    kept = 1 - 0.1 * mu
    closed = steps if mu == 0 else (1 - kept**steps) / (1 - kept)
    assert accumulated_length(steps, Optimiser("sgd", 0.1), mu) == pytest.approx(closed)


def really_moved(steps: int, optimiser: Optimiser, mu: float) -> float:
    """The same by torch's own SGD: gradient 1 plus μ·(w - w₀), from w₀ = 0, over -lr."""
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([w], lr=optimiser.lr, momentum=optimiser.momentum)
    for _ in range(steps):
        gradient: Tensor = 1.0 + mu * w.detach()
        w.grad = gradient
        sgd.step()
    return float(w.detach()) / -optimiser.lr


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 2.0), (0.5, 2.0)])
def test_the_length_is_how_far_constant_gradients_really_carry_a_client(
    momentum: float, mu: float
) -> None:
    optimiser = Optimiser("sgd", 0.1, momentum)
    for steps in (1, 3, 10):
        moved = really_moved(steps, optimiser, mu)
        assert accumulated_length(steps, optimiser, mu) == pytest.approx(moved)


def test_the_length_is_sent_as_one_number() -> None:
    reported = LocalLength().report(finished(steps=5))
    assert float(reported.sends["length"]["a"]) == 5.0
    assert reported.keeps == {}
    pulled = LocalLength(mu=1.0).report(finished(steps=2))
    assert float(pulled.sends["length"]["a"]) == pytest.approx(1.9)


def test_a_finished_client_can_be_asked_for_its_samples_and_its_model() -> None:
    trained = dict(toy_model().state_dict())
    done = finished(trained=trained)
    x, y = done.samples()
    assert torch.equal(x, FEDERATION.x[:7])
    assert torch.equal(y, FEDERATION.y[:7])
    assert torch.equal(done.model()(x), toy_model()(x))
