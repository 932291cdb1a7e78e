"""Law 6: two clients, two steps, worked out with pencil and paper.

One weight w, inputs of 1 and the loss (w - y)²/2, so that a gradient is w - y. Ann holds two
samples with y = 4, Bob four with y = 1; the learning rate is 1/2. One step takes

    Ann: w → w - (w - 4)/2 = w/2 + 2          Bob: w → w - (w - 1)/2 = w/2 + 1/2

and from w = 0, in batches that hold all of a client's samples, two steps take

    Ann: 0 → 2 → 3                            Bob: 0 → 1/2 → 3/4
"""

from __future__ import annotations

from dataclasses import replace

from by_hand import HalfSquare, is_, number, two_clients, worked
from helpers import Run, make_holdings, run
from torch import nn

from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.registry import Classifier


def test_fedavg_by_hand() -> None:
    """Round 1: (2·3 + 4·0.75)/6 = 1.5. Round 2 from 1.5, Ann: 2.75, 3.375; Bob: 1.25, 1.125;
    mean (2·3.375 + 4·1.125)/6 = 1.875."""
    assert number(worked("fedavg").shared) == is_(1.5)
    assert number(worked("fedavg", rounds=2).shared) == is_(1.875)


def test_feddisco_by_hand() -> None:
    """One class of five each: both discrepancies are log 5, half of their sum. Shares 1/3 and 2/3
    become 1/3 - 1/4 + 1/10 = 11/60 and 2/3 - 1/4 + 1/10 = 31/60: (11·3 + 31·0.75)/42."""
    assert number(worked("feddisco").shared) == is_((11 * 3 + 31 * 0.75) / 42)


def test_fedavg_with_uniform_weights_and_half_a_server_step_by_hand() -> None:
    """The mean of 3 and 0.75 is 1.875; half the way from 0 is 0.9375."""
    result = worked("fedavg", {"weights": "uniform", "server_lr": 0.5})
    assert number(result.shared) == is_(0.9375)


def test_fedavg_with_momentum_by_hand() -> None:
    """Velocity v ← v/2 + g. Ann: g = -4, w = 2; then g = -2, v = -4, w = 4. Bob: g = -1,
    w = 1/2; then g = -1/2, v = -1, w = 1. Mean (2·4 + 4·1)/6 = 2. The second round starts with
    no velocity. Ann: g = -2, w = 3; g = -1, v = -2, w = 4. Bob: g = 1, w = 1.5; g = 0.5, v = 1,
    w = 1. The mean is 2 again."""
    assert number(worked("fedavg", momentum=0.5).shared) == is_(2.0)
    assert number(worked("fedavg", rounds=2, momentum=0.5).shared) == is_(2.0)


def test_fedprox_by_hand() -> None:
    """With μ = 1/2 the first step feels no pull. Second, Ann: g = -2 + 1 = -1, w = 2.5;
    Bob: g = -1/2 + 1/4, w = 0.625. Mean (2·2.5 + 4·0.625)/6 = 1.25."""
    assert number(worked("fedprox", {"mu": 0.5}).shared) == is_(1.25)


def test_scaffold_by_hand() -> None:
    """Round 1: x = (3 + 0.75)/2 = 1.875; with S·lr = 1 the variates are c_ann = -3,
    c_bob = -0.75 and c = -1.875.

    Round 2, Ann: g = w - 4 + 3 - 1.875 = w - 2.875, so 1.875 → 2.375 → 2.625.
    Bob: g = w - 1 + 0.75 - 1.875 = w - 2.125, so 1.875 → 2 → 2.0625. x = 2.34375.
    c_ann = -3 + 1.875 + (1.875 - 2.625) = -1.875;
    c_bob = -0.75 + 1.875 + (1.875 - 2.0625) = 0.9375; c is their mean, -0.46875."""
    first = worked("scaffold")
    assert number(first.shared) == is_(1.875)
    assert number(first.progress.state.memory["control"]) == is_(-1.875)
    second = worked("scaffold", rounds=2)
    assert number(second.shared) == is_(2.34375)
    assert number(second.backend.private_of("ann")["own_control"]) == is_(-1.875)
    assert number(second.backend.private_of("bob")["own_control"]) == is_(0.9375)
    assert number(second.progress.state.memory["control"]) == is_(-0.46875)


def test_fednova_by_hand() -> None:
    """In batches of two Bob takes four steps: 1/2, 3/4, 7/8, 15/16. With p = 1/3, 2/3 and
    a = 2, 4: τ_eff = 10/3, Σ p·Δ/a = (1/3)(3/2) + (2/3)(15/64) = 0.65625, x = 2.1875."""
    assert number(worked("fednova", batch_size=2).shared) == is_(2.1875)


def test_fednova_with_momentum_by_hand() -> None:
    """ρ = 1/2. Ann moves to 4 in two steps (see FedAvg). Bob: w = 1/2, 1; then g = 0,
    v = -1/2, w = 1.25; then g = 1/4, v = 0, w = 1.25. Lengths 1 + 1.5 = 2.5 and
    1 + 1.5 + 1.75 + 1.875 = 6.125; τ_eff = 2.5/3 + 12.25/3 = 14.75/3;
    Σ p·Δ/a = (1/3)(4/2.5) + (2/3)(1.25/6.125) = (1/3)(1.6 + 20/49)."""
    expected = 14.75 / 3 * (1.6 + 20 / 49) / 3
    assert number(worked("fednova", batch_size=2, momentum=0.5).shared) == is_(expected)


def test_ditto_by_hand() -> None:
    """The global model is FedAvg's: 1.5, then 1.875. With λ = 1/2 the personal models of the
    first round are FedProx's clients: 2.5 and 0.625.

    Round 2, pulled to 1.5. Ann: g = -1.5 + 0.5 = -1, v = 3; g = -1 + 0.75, v = 3.125.
    Bob: g = -0.375 - 0.4375, v = 1.03125; g = 0.03125 - 0.234375, v = 1.1328125."""
    first, second = worked("ditto", {"lam": 0.5}), worked("ditto", {"lam": 0.5}, rounds=2)
    assert number(first.shared) == is_(1.5)
    assert number(second.shared) == is_(1.875)
    assert [number(first.backend.private_of(c)["personal"]) for c in ("ann", "bob")] == is_(
        [2.5, 0.625]
    )
    assert [number(second.backend.private_of(c)["personal"]) for c in ("ann", "bob")] == is_(
        [3.125, 1.1328125]
    )


def test_local_by_hand() -> None:
    """Nobody meets: Ann 3, then 3.5 and 3.75; Bob 0.75, then 0.875 and 0.9375."""
    apart = worked("local", rounds=2)
    assert number(apart.model_of("ann")) == is_(3.75)
    assert number(apart.model_of("bob")) == is_(0.9375)


def test_central_by_hand() -> None:
    """All six samples in one batch pull to (2·4 + 4·1)/6 = 2: 0 → 1 → 1.5."""
    assert number(worked("central", batch_size=6).shared) == is_(1.5)


def normalised(name: str) -> Run:
    """f = h·(γ·x̂ + β) with BatchNorm from h = γ = 1, β = 0; ε ≈ 0, lr = 1/2, two steps.

    Ann's inputs 0 and 2 and Bob's 2 and 6 both become x̂ = -1 and 1. Gradients of a batch, with
    the residual r = f - y: ∂γ = h·mean(r·x̂), ∂β = h·mean(r), ∂h = mean(r·(γ·x̂ + β)).

    Ann, y = 0 and 2: f = -1, 1, so r = -1, -1; ∂γ = 0, ∂β = -1, ∂h = 0, and β = 1/2.
    Then f = -1/2, 3/2, so r = -1/2, -1/2; ∂γ = 0, ∂β = -1/2, ∂h = -1/4:
    γ = 1, β = 0.75, h = 1.125.

    Bob, y = 0 and 4: r = -1, -3; ∂γ = -1, ∂β = -2, ∂h = -1, so γ = 1.5, β = 1, h = 1.5.
    Then γ·x̂ + β = -1/2, 5/2, f = -3/4, 15/4, r = -3/4, -1/4; ∂γ = 1.5·1/4, ∂β = -1.5/2,
    ∂h = (3/8 - 5/8)/2: γ = 1.3125, β = 1.375, h = 1.5625.

    Running statistics move a tenth of the way at each step. Means 1 and 4: 0.1, 0.19 and
    0.4, 0.76. Unbiased variances 2 and 8, from 1: 1.1, 1.19 and 1.7, 2.33.
    """
    model = Classifier(nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 1, bias=False))
    nn.init.ones_(next(model.head.parameters()))
    recipe = replace(find(name).recipe(), objective=HalfSquare())
    settings = Settings(Optimiser("sgd", 0.5), epochs=2, batch_size=4)
    federation = two_clients([0.0, 2.0, 2.0, 6.0], [0, 2, 0, 4], ann=2)
    return run(make_holdings(recipe, federation, model, settings), 1)


ENTRIES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def test_fedbn_by_hand() -> None:
    """Only h is averaged: (1.125 + 1.5625)/2; each client keeps the rest of its own."""
    result = normalised("fedbn")
    assert result.shared.keys() == {"head.weight"}
    assert number(result.shared) == is_(1.34375)
    ann, bob = ([number(result.model_of(c), f"body.{e}") for e in ENTRIES] for c in ("ann", "bob"))
    assert ann == is_([1.0, 0.75, 0.19, 1.19, 2])
    assert bob == is_([1.3125, 1.375, 0.76, 2.33, 2])


def test_fedavg_with_batch_norm_by_hand() -> None:
    """The statistics are averaged like the parameters; the counter of two steps is copied."""
    shared = normalised("fedavg").shared
    assert number(shared) == is_(1.34375)
    assert [number(shared, f"body.{e}") for e in ENTRIES] == is_([1.15625, 1.0625, 0.475, 1.76, 2])
