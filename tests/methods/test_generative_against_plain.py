"""Federated VAEs against plain loops written from the papers' equations, on real MNIST.

The loops share with the package the order of the batches and the drawn noise, nothing else: their
networks are written out layer by layer, and Adam is torch's own, made anew every round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close
from numpy.typing import NDArray
from plain_loops import Weights, combination
from plain_vaes import BATCH, CLOSE, EPOCHS, LR, ROUNDS, SEED, affine, final
from scipy.stats import norm, wasserstein_distance
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew import run
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.rng import stream, torch_seed
from fedskew.runs.experiment import Run

SIZES = (60, 75, 100, 81, 64, 90)
pytestmark = pytest.mark.real_data


@pytest.fixture(scope="module")
def digits(data_dir: Path) -> Federation:
    """Six clients with mostly their own digits; some sizes leave a short batch."""
    data = load("mnist", data_dir)
    labels = data.y[:3000].numpy()
    rng = np.random.default_rng(0)
    clients = []
    for k, size in enumerate(SIZES):
        chance = np.where(np.isin(labels[:2500], (k, k + 4)), 8.0, 1.0)
        rows = rng.choice(2500, size, replace=False, p=chance / chance.sum())
        clients.append(Client(f"client-{k}", np.sort(rows)))
    return Federation(
        "mnist", data.x[:3000].clone(), data.y[:3000].clone(), data.class_names, tuple(clients),
        central_test=np.arange(2500, 2800),
    )  # fmt: skip


@dataclass(frozen=True)
class Thesis:
    """784-16-2 and back; the second half of the codes' description is log σ."""

    settings: dict[str, Any] = field(default_factory=lambda: {"name": "beta-vae", "hidden": [16]})
    latent: int = 2
    beta: float = 10.0

    def initial(self, seed: int) -> Weights:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = {
                "encoder.1": nn.Linear(784, 16), "encoder.3": nn.Linear(16, 4),
                "decoder.0": nn.Linear(2, 16), "decoder.2": nn.Linear(16, 784),
            }  # fmt: skip
        return tensors_of(layers)

    def codes(self, w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        found = affine(w, "encoder.3", affine(w, "encoder.1", x.flatten(1)).relu())
        return found[:, :2], found[:, 2:].exp()

    def drawn(self, w: Weights, z: Tensor) -> Tensor:
        return affine(w, "decoder.2", affine(w, "decoder.0", z).relu()).sigmoid()

    def terms(self, w: Weights, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Of every sample: Σ(x̂ - x)² over pixels, and -½·Σ(1 + log σ² - μ² - σ²)."""
        mu, sigma = self.codes(w, x)
        error = ((self.drawn(w, mu + sigma * noise) - x.flatten(1)) ** 2).sum(1)
        return error, -0.5 * (1 + 2 * sigma.log() - mu**2 - sigma**2).sum(1)


@dataclass(frozen=True)
class OneClass(Thesis):
    """The one-class paper's convolutions on 28 pixels; both terms are means, log σ² is given."""

    settings: dict[str, Any] = field(default_factory=lambda: {"name": "conv-vae", "latent": 8})
    latent: int = 8
    beta: float = 0.05

    def initial(self, seed: int) -> Weights:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = {
                "encoder.0": nn.Conv2d(1, 6, 4, stride=2),
                "encoder.2": nn.Conv2d(6, 16, 5, stride=2),
                "encoder.5": nn.Linear(400, 16),
                "decoder.0": nn.Linear(8, 400),
                "decoder.2": nn.ConvTranspose2d(16, 6, 5, stride=2),
                "decoder.4": nn.ConvTranspose2d(6, 1, 4, stride=2),
            }
        return tensors_of(layers)

    def codes(self, w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        for name in ("encoder.0", "encoder.2"):
            x = F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride=2).relu()
        found = affine(w, "encoder.5", x.flatten(1))
        return found[:, :8], found[:, 8:].exp().sqrt()

    def drawn(self, w: Weights, z: Tensor) -> Tensor:
        x = affine(w, "decoder.0", z).reshape(-1, 16, 5, 5)
        x = F.conv_transpose2d(x, w["decoder.2.weight"], w["decoder.2.bias"], stride=2).relu()
        x = F.conv_transpose2d(x, w["decoder.4.weight"], w["decoder.4.bias"], stride=2)
        return x.tanh().flatten(1)

    def terms(self, w: Weights, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        error, divergence = super().terms(w, x, noise)
        return error / 784, divergence / self.latent


PAPER = {"beta": 0.05, "reconstruction": "mean", "kl": "mean"}


def tensors_of(layers: Mapping[str, nn.Module]) -> Weights:
    return {
        f"{name}.{n}": t.detach().clone()
        for name, layer in layers.items()
        for n, t in layer.state_dict().items()
    }


@dataclass(frozen=True)
class Plain:
    """A federation seen by a plain loop in one stage."""

    data: Federation
    net: Thesis = field(default_factory=Thesis)
    stage: str = "main"

    @property
    def clients(self) -> tuple[Client, ...]:
        return self.data.clients

    @property
    def shares(self) -> list[float]:
        return [size / sum(SIZES) for size in SIZES]

    def start(self, *who: str) -> Weights:
        return self.net.initial(torch_seed(SEED, self.stage, "model", *who))

    def trained(self, start: Weights, client: Client, round_number: int) -> Weights:
        """EPOCHS of a new Adam over the client's data."""
        key = (SEED, self.stage, "train", 0, client.name, round_number)
        plan = schedule(client.train, key, BATCH, EPOCHS, True)
        shape = (plan.steps, BATCH, self.net.latent)
        noise = stream(0, "noise", "codes", *key).standard_normal(shape, dtype=np.float32)
        w = {n: t.clone().requires_grad_() for n, t in start.items()}
        adam = torch.optim.Adam(list(w.values()), LR)
        for positions, mask, drawn in zip(plan.positions, plan.mask, noise, strict=True):
            real = mask > 0
            x = self.data.x[torch.from_numpy(client.train[positions[real]])]
            error, divergence = self.net.terms(w, x, torch.from_numpy(drawn[real]))
            adam.zero_grad()
            (error.mean() + self.net.beta * divergence.mean()).backward()  # type: ignore[no-untyped-call]
            adam.step()
        return {n: t.detach() for n, t in w.items()}

    def round(self, start: Weights, number: int) -> list[Weights]:
        return [self.trained(start, client, number) for client in self.clients]

    def said(self, client: Client, round_number: int) -> np.random.Generator:
        """What a client's reports of a round are drawn from."""
        return stream(SEED, self.stage, "report", client.name, round_number)

    def discrepancies(self, w: Weights, round_number: int) -> list[float]:
        """W1 of one drawn code a sample from a fine grid of normal quantiles, mean over both."""
        grid = norm.ppf((np.arange(200_000) + 0.5) / 200_000)
        found = []
        for client in self.clients:
            mu, sigma = self.net.codes(w, self.data.x[torch.from_numpy(client.train)])
            rng = self.said(client, round_number)
            noise = torch.from_numpy(rng.standard_normal(mu.shape, dtype=np.float32))
            codes = (mu + sigma * noise).double().numpy()
            found.append(float(np.mean([wasserstein_distance(z, grid) for z in codes.T])))
        return found

    def by_discrepancy(self, alpha: float, found: Sequence[float]) -> list[float]:
        raw = [max(0.0, n - alpha * d) for n, d in zip(self.shares, found, strict=True)]
        return [w / sum(raw) for w in raw]


def ours(
    out: Path, data: Federation, method: dict[str, Any], net: Thesis | None = None, rounds: int = 2
) -> Run:
    train = {
        "rounds": rounds, "epochs": EPOCHS, "batch_size": BATCH, "optimiser": "adam", "lr": LR,
    }  # fmt: skip
    config = {
        "seed": SEED, "model": (net or Thesis()).settings, "method": method, "train": train,
    }  # fmt: skip
    return run(config, out=out, federation=data, draw=False)


def recorded(done: Run, metric: str, round_number: int) -> list[float]:
    """What the server wrote down about each client in a round of the main stage."""
    found = {
        row.client: row.value
        for row in done.rows()
        if (row.stage, row.split, row.metric, row.round) == ("main", "server", metric, round_number)
    }
    return [found[name] for name in sorted(found)]


def test_the_mean_by_size_of_vaes_trained_from_the_received_one(
    digits: Federation, tmp_path: Path
) -> None:
    plain = Plain(digits)
    w = plain.start()
    for t in range(1, ROUNDS + 1):
        w = combination(plain.shares, plain.round(w, t))
    assert_close(final(ours(tmp_path, digits, {"name": "vae"})), w, CLOSE)


def test_scores_draw_one_code_a_sample_and_weigh_the_divergence_with_one(
    digits: Federation, tmp_path: Path
) -> None:
    """Trained with β = 10. The legacy number adds up means of batches of 128: 128, 128 and 44."""
    done = ours(tmp_path, digits, {"name": "vae"})
    rows = digits.central_test
    noise = stream(0, "score", "codes", SEED, "main", "test", "").standard_normal(
        (300, 2), dtype=np.float32
    )
    error, divergence = Thesis().terms(final(done), digits.x[rows], torch.from_numpy(noise))
    loss = (error + divergence).double()
    expected = {
        "loss": loss.mean(), "reconstruction": error.mean(), "kl": divergence.mean(),
        "legacy": (loss[:128].mean() + loss[128:256].mean() + loss[256:].mean()) / 300,
    }  # fmt: skip
    found = {r.metric: r.value for r in done.rows() if (r.on, r.round) == ("central", ROUNDS)}
    assert found == {m: pytest.approx(float(v), rel=1e-5) for m, v in expected.items()}


def plainly_apart(plain: Plain, starts: Sequence[Weights]) -> list[Weights]:
    """Every client's model after ROUNDS in which none of them saw anything of another."""
    models = list(starts)
    for t in range(1, ROUNDS + 1):
        models = [plain.trained(w, c, t) for w, c in zip(models, plain.clients, strict=True)]
    return models


@pytest.mark.parametrize(
    ("net", "together"), [(Thesis(), True), (Thesis(), False), (OneClass(), False)]
)
def test_clients_that_never_load_the_average_are_averaged_all_the_same(
    digits: Federation, tmp_path: Path, net: Thesis, together: bool
) -> None:
    plain = Plain(digits, net)
    starts = [plain.start() if together else plain.start(c.name) for c in plain.clients]
    models = plainly_apart(plain, starts)
    knobs = PAPER if isinstance(net, OneClass) else {}
    method = {"name": "vae", "sync": False, "shared_start": together, **knobs}
    done = ours(tmp_path, digits, method, net)
    for client, w in zip(plain.clients, models, strict=True):
        assert_close(final(done, client.name), w, CLOSE)
    assert_close(final(done), combination(plain.shares, models), CLOSE)


def by_batches(plain: Plain, models: list[Weights], t: int) -> list[float]:
    batches = [-(-size // BATCH) for size in SIZES]
    return [count / sum(batches) for count in batches]


def by_nothing(plain: Plain, models: list[Weights], t: int) -> list[float]:
    return [1 / 6] * 6


def by_loss(plain: Plain, models: list[Weights], t: int) -> list[float]:
    """1/loss of the trained model on the client's own data, β = 1, one drawn code a sample."""
    raw = []
    for client, w in zip(plain.clients, models, strict=True):
        rng = plain.said(client, t)
        noise = rng.standard_normal((len(client.train), 2), dtype=np.float32)
        x = plain.data.x[torch.from_numpy(client.train)]
        error, divergence = plain.net.terms(w, x, torch.from_numpy(noise))
        raw.append(1 / float((error + divergence).mean()))
    return [r / sum(raw) for r in raw]


@pytest.mark.parametrize(
    ("weights", "rule"), [("batches", by_batches), ("uniform", by_nothing), ("loss", by_loss)]
)
def test_other_weights_than_sizes(
    digits: Federation,
    tmp_path: Path,
    weights: str,
    rule: Callable[[Plain, list[Weights], int], list[float]],
) -> None:
    plain = Plain(digits)
    w = plain.start()
    for t in range(1, ROUNDS + 1):
        models = plain.round(w, t)
        shares = rule(plain, models, t)
        w = combination(shares, models)
    done = ours(tmp_path, digits, {"name": "vae", "weights": weights})
    assert_close(final(done), w, CLOSE)
    if weights == "loss":
        assert recorded(done, "weight", ROUNDS) == pytest.approx(shares, rel=1e-4)


def test_a_reptile_server_goes_half_of_the_way(digits: Federation, tmp_path: Path) -> None:
    plain = Plain(digits)
    w = plain.start()
    for t in range(1, ROUNDS + 1):
        mean = combination(plain.shares, plain.round(w, t))
        w = {n: w[n] + 0.5 * (mean[n] - w[n]) for n in w}
    assert_close(final(ours(tmp_path, digits, {"name": "vae", "server_lr": 0.5})), w, CLOSE)


def test_the_central_vae_trains_on_the_union(digits: Federation, tmp_path: Path) -> None:
    plain = Plain(digits)
    union = Client("pooled", np.concatenate([client.train for client in plain.clients]))
    w = plain.start()
    for t in range(1, ROUNDS + 1):
        w = plain.trained(w, union, t)
    assert_close(final(ours(tmp_path, digits, {"name": "vae", "base": "central"})), w, CLOSE)


def test_local_vaes_never_meet(digits: Federation, tmp_path: Path) -> None:
    plain = Plain(digits)
    models = plainly_apart(plain, [plain.start()] * len(plain.clients))
    done = ours(tmp_path, digits, {"name": "vae", "base": "local"})
    for client, w in zip(plain.clients, models, strict=True):
        assert_close(final(done, client.name), w, CLOSE)


def test_latent_weights_measures_one_vae_and_trains_a_second_with_what_it_found(
    digits: Federation, tmp_path: Path
) -> None:
    first = Plain(digits, stage="baseline")
    w = first.start()
    for t in range(1, ROUNDS + 1):
        w = combination(first.shares, first.round(w, t))
    found = first.discrepancies(w, ROUNDS)
    second = Plain(digits)
    shares = second.by_discrepancy(0.5, found)
    w = second.start()
    for t in range(1, ROUNDS + 1):
        w = combination(shares, second.round(w, t))
    done = ours(tmp_path, digits, {"name": "latent-weights", "alpha": 0.5})
    assert recorded(done, "discrepancy", ROUNDS) == pytest.approx(found, abs=2e-5)
    assert recorded(done, "weight", ROUNDS) == pytest.approx(shares, abs=2e-5)
    assert 0.0 in shares, "one client at least should be left out here"
    assert_close(final(done), w, CLOSE)


@pytest.mark.parametrize("every", [1, 2])
def test_online_weights_follow_the_model_of_the_moment(
    digits: Federation, tmp_path: Path, every: int
) -> None:
    """Measured on the received model; sizes decide in the first round, old numbers between."""
    plain = Plain(digits)
    w, shares = plain.start(), plain.shares
    measured: list[NDArray[np.float64]] = []
    for t in range(1, 5):
        if t > 1 and (t - 1) % every == 0:
            measured.append(np.array(plain.discrepancies(w, t)))
            shares = plain.by_discrepancy(0.4, list(measured[-1]))
        w = combination(shares, plain.round(w, t))
    done = ours(
        tmp_path, digits, {"name": "latent-weights-online", "alpha": 0.4, "every": every}, rounds=4
    )
    assert len(measured) == 3 // every
    assert recorded(done, "weight", 1) == pytest.approx(plain.shares, abs=1e-9)
    assert recorded(done, "discrepancy", 1) == []
    assert recorded(done, "discrepancy", 4) == pytest.approx(list(measured[-1]), abs=2e-5)
    assert recorded(done, "weight", 4) == pytest.approx(shares, abs=2e-5)
    assert_close(final(done), w, CLOSE)
