"""Densities and sample weights against plain loops, from the first MADE to the weighted classifier.

The loops share with the package the order of the batches and the seeds of initial weights, nothing
else: the network is written out with its masks, and Adam is torch's own, made anew every round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close
from numpy.typing import NDArray
from plain_loops import Weights, combination
from scipy.optimize import brentq
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew import run
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.rng import torch_seed
from fedskew.runs.experiment import Run
from fedskew.runs.findings import load_arrays
from fedskew.store import load_groups

SEED, BATCH, ROUNDS, EPOCHS = 7, 20, 12, 10
ADAM, SGD, LAST = 0.02, 0.25, 0.5
"""Learning rates of a MADE by either optimiser, and of the classifier in the last stage."""
PIXELS, UNITS, CLIP = 64, 12, 3.0
SIZES = (60, 75, 100, 81)
CLOSE = 1e-4
"""Adam divides by the size of a gradient, so that roundings of tiny ones show, here those of
pixels that are always black; stage after stage they would grow, so that only the first has it."""

Loss = Callable[[Weights, Tensor, Tensor], Tensor]
"""One number a sample, given weights, samples and labels."""


@cache
def digits() -> Federation:
    """Four clients with mostly their own digits; some sizes leave a short batch."""
    data = load("digits", normalise="unit")
    labels = data.y.numpy()
    rng = np.random.default_rng(0)
    clients = []
    for k, size in enumerate(SIZES):
        chance = np.where(np.isin(labels, (k, k + 4)), 20.0, 1.0)
        rows = rng.choice(len(labels), size + 25, replace=False, p=chance / chance.sum())
        clients.append(Client(f"client-{k}", rows[:size], rows[size:]))
    return Federation("digits", data.x, data.y, data.class_names, tuple(clients))


def initial(seed: int, *layers: tuple[str, int, int]) -> Weights:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = {name: nn.Linear(inputs, outputs) for name, inputs, outputs in layers}
    return {f"{n}.{k}": t.clone() for n, m in made.items() for k, t in m.state_dict().items()}


def made_of(stage: str) -> Weights:
    seed = torch_seed(SEED, stage, "model")
    return initial(seed, ("hidden.1", PIXELS, UNITS), ("output", UNITS, PIXELS))


def nats(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    """-Σ log p(x_d | earlier pixels): unit h sees pixels up to its degree, pixel d lower units."""
    degree = torch.from_numpy(np.random.default_rng(1).integers(1, PIXELS, size=UNITS))
    pixel = torch.arange(1, PIXELS + 1)
    enters = w["hidden.1.weight"] * (pixel <= degree[:, None])
    leaves = w["output.weight"] * (degree < pixel[:, None])
    units = (x.flatten(1) @ enters.T + w["hidden.1.bias"]).relu()
    odds = units @ leaves.T + w["output.bias"]
    return -(x.flatten(1) * F.logsigmoid(odds) + (1 - x.flatten(1)) * F.logsigmoid(-odds)).sum(1)


def entropy(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    logits = x.flatten(1) @ w["head.weight"].T + w["head.bias"]
    return F.cross_entropy(logits, y, reduction="none")


def held_out(w: Weights, client: Client) -> Tensor:
    """What each validation sample costs, in nats."""
    rows = torch.from_numpy(client.validation)
    return nats(w, digits().x[rows], digits().y[rows]).double()


def trained(
    start: Weights, client: Client, stage: str, number: int, loss: Loss, weights: Tensor | None,
    make: Callable[[list[Tensor]], torch.optim.Optimizer], epochs: int = 1,
) -> Weights:  # fmt: skip
    """Epochs of a new optimiser over the client's data, each sample with its weight."""
    alpha = torch.ones(len(client.train)) if weights is None else weights
    plan = schedule(
        client.train, (SEED, stage, "train", 0, client.name, number), BATCH, epochs, True
    )
    w = {n: t.clone().requires_grad_() for n, t in start.items()}
    optimiser = make(list(w.values()))
    for positions, mask in zip(plan.positions, plan.mask, strict=True):
        chosen = torch.from_numpy(positions[mask > 0])
        rows = torch.from_numpy(client.train)[chosen]
        optimiser.zero_grad()
        value = (alpha[chosen] * loss(w, digits().x[rows], digits().y[rows])).mean()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {n: t.detach() for n, t in w.items()}


def adam(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, ADAM)


def sgd(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, SGD)


def last(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, LAST)


def averaged(
    start: Weights, stage: str, loss: Loss, weights: dict[str, Tensor], make: Any, rounds: int,
    epochs: int = 1,
) -> list[Weights]:  # fmt: skip
    """FedAvg: the model after each round."""
    models, shares = [start], [size / sum(SIZES) for size in SIZES]
    for t in range(1, rounds + 1):
        models.append(combination(shares, [
            trained(models[-1], c, stage, t, loss, weights.get(c.name), make, epochs)
            for c in digits().clients
        ]))  # fmt: skip
    return models[1:]


@dataclass(frozen=True)
class Plain:
    """All stages of the method, one after the other."""

    warm: bool

    def everybody(self) -> tuple[int, Weights]:
        """The round with the best mean validation loss over clients, and its model."""
        models = averaged(made_of("density"), "density", nats, {}, sgd, ROUNDS, epochs=2)
        costs = [np.mean([float(held_out(w, c).mean()) for c in digits().clients]) for w in models]
        best = int(np.argmin(costs))
        return best + 1, models[best]

    def own(self, client: Client, everybody: Weights) -> tuple[int, Weights]:
        """The client's best round, and its model."""
        models = [everybody if self.warm else made_of("local-density")]
        for t in range(1, EPOCHS + 1):
            models.append(trained(models[-1], client, "local-density", t, nats, None, sgd))
        best = int(np.argmin([float(held_out(w, client).mean()) for w in models[1:]]))
        return best + 1, models[best + 1]

    def weights(self, client: Client, everybody: Weights, own: Weights) -> tuple[float, Tensor]:
        """α^t with the power t at which validation ratios average 1, clipped, of mean 1."""
        ratios: NDArray[np.float64] = (held_out(own, client) - held_out(everybody, client)).numpy()
        power = 1.0
        if ratios.mean() >= 0:
            power = 0.0
        elif np.exp(ratios).mean() > 1:
            power = float(brentq(lambda t: np.exp(t * ratios).mean() - 1, 1e-4, 1.0))
        rows = torch.from_numpy(client.train)
        x, y = digits().x[rows], digits().y[rows]
        logs = power * (nats(own, x, y).double() - nats(everybody, x, y).double())
        alpha = logs.exp().clamp(1 / CLIP, CLIP)
        return power, (alpha / alpha.mean()).float()


def ours(out: Path, method: dict[str, Any], model: dict[str, Any], **train: Any) -> Run:
    config = {
        "seed": SEED, "method": method, "model": model,
        "train": {"rounds": 2, "batch_size": BATCH, **train},
    }  # fmt: skip
    return run(config, out=out, federation=digits(), draw=False)


def final(done: Run) -> Weights:
    return dict(done.model(round="last").state_dict())


def test_a_federated_made_is_the_mean_of_mades_trained_from_the_received_one(
    tmp_path: Path,
) -> None:
    model = {"name": "made", "hidden": [UNITS]}
    done = ours(tmp_path, {"name": "made"}, model, rounds=3, optimiser="adam", lr=ADAM, epochs=2)
    expected = averaged(made_of("main"), "main", nats, {}, adam, 3, epochs=2)
    assert_close(final(done), expected[-1], CLOSE)
    scores = {r.client: r.value for r in done.rows() if (r.split, r.round) == ("validation", 3)}
    assert scores == pytest.approx(
        {c.name: float(held_out(expected[-1], c).mean()) for c in digits().clients}, rel=1e-4
    )


@pytest.mark.parametrize("warm", [True, False])
def test_feddisk_is_two_densities_their_tempered_ratio_and_a_weighted_loss(
    tmp_path: Path, warm: bool
) -> None:
    plain = Plain(warm)
    chosen, everybody = plain.everybody()
    alphas, powers, rounds = {}, {}, {}
    for client in digits().clients:
        rounds[client.name], own = plain.own(client, everybody)
        powers[client.name], alphas[client.name] = plain.weights(client, everybody, own)
    start = initial(torch_seed(SEED, "main", "model"), ("head", PIXELS, 10))
    expected = averaged(start, "main", entropy, alphas, last, 2)

    done = ours(
        tmp_path,
        {
            "name": "feddisk", "density": {"name": "made", "hidden": [UNITS]}, "warm": warm,
            "density_rounds": ROUNDS, "density_patience": ROUNDS, "local_epochs": EPOCHS,
            "density_train": {"optimiser": "sgd", "lr": SGD, "batch_size": BATCH}, "clip": CLIP,
        },
        {"name": "logistic"},
        lr=LAST,
    )  # fmt: skip
    assert done.result["stages"][0]["selected_round"] == chosen
    assert chosen < ROUNDS, "the best round should not be the last here"
    assert min(rounds.values()) < EPOCHS, "nor the best of every client"
    assert any(0 < power < 1 for power in powers.values()), "one at least should be tempered here"
    stored = load_arrays(done.path, "sample_weights")
    for client in digits().clients:
        found = stored["weight"][stored["client"] == client.name]
        np.testing.assert_allclose(found, alphas[client.name].numpy(), rtol=1e-4)
    (kept,) = (done.path / "checkpoint").glob("private-local-density-handed*")
    groups = load_groups(kept)
    for name, power in powers.items():
        assert float(groups[f"{name}/weighing"]["power"]) == pytest.approx(power, abs=1e-4)
    assert_close(final(done), expected[-1], 1e-5)
    unweighted = averaged(start, "main", entropy, {}, last, 2)[-1]["head.weight"]
    assert (unweighted - expected[-1]["head.weight"]).abs().max() > 5e-3
